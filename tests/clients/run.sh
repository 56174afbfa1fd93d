#!/bin/bash
# Starts a server and runs every client against it; fails where one fails.
#
#     PAGEDLLM_BIN=target/release/pagedllm MODEL_PATH=model.gguf tests/clients/run.sh [--quick]
#
# Without MODEL_PATH the Q4_1 file of the model cache is served. --quick makes the load small, for
# CI. KEEP_LOGS names a folder for the server's log. Tools that are not installed (wrk, ab, nginx)
# are named as skipped.
set -euo pipefail
cd "$(dirname "$0")"
CACHE=${PAGEDLLM_CACHE:-$HOME/.cache/pagedllm}
: "${PAGEDLLM_BIN:?the program to test}"
: "${MODEL_PATH:=$CACHE/models/SmolLM2-135M-Instruct.Q4_1.gguf}"
: "${MODEL:=SmolLM2-135M-Instruct}"
[ -n "${PORT:-}" ] || PORT=$((20000 + RANDOM % 10000))
PAGEDLLM_BIN=$(realpath "$PAGEDLLM_BIN")
MODEL_PATH=$(realpath "$MODEL_PATH")
if [ "${1:-}" = --quick ]; then
    export USERS=8 REQUESTS=40 MAX_TOKENS=16 PARALLEL=4 ABORTS=100 QUEUE=300 DURATION=10s
fi
export PAGEDLLM_BIN MODEL_PATH MODEL

venv=$CACHE/clients-venv
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check --requirement requirements.txt
export PYTHON=$venv/bin/python

RUN_DIR=$(mktemp -d)
. ./server.sh
clean_up() {
    stop_servers || true
    if [ -n "${KEEP_LOGS:-}" ]; then cp "$RUN_DIR"/server-*.log "$KEEP_LOGS"; fi
    rm -rf "$RUN_DIR"
}
trap clean_up EXIT

failed=""
run() { # NAME COMMAND...: runs one client and goes on when it fails.
    name=$1
    shift
    echo "== $name"
    "$@" || { failed="$failed $name"; echo "== $name FAILED"; }
}

# Few places and a short queue: wrk's 100 connections find room and misbehaviour.py's burst does not.
export EXPECT_FULL=1
SERVER_ARGS="${SERVER_ARGS:-} --max-num-seqs 16 --max-num-queued-reqs 100" start_server "$PORT"
export BASE_URL=http://127.0.0.1:$PORT
for client in langchain_llm openai_async openai_errors langchain_openai_client load misbehaviour; do
    run "$client" "$PYTHON" "$client.py"
done
if command -v wrk >/dev/null && command -v ab >/dev/null; then
    run wrk_ab ./wrk_ab.sh
else
    echo "skipped: wrk_ab (wrk or ab is not installed)"
fi
run shutdown stop_servers
if command -v nginx >/dev/null; then
    run nginx env PORT=$((PORT + 10)) ./nginx.sh
else
    echo "skipped: nginx (not installed)"
fi

[ -z "$failed" ] || { echo "failed:$failed"; exit 1; }
echo "all clients: ok"
