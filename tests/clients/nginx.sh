#!/bin/bash
# nginx in front of three servers: streams pass unbuffered and all three get work.
#
#     PAGEDLLM_BIN=target/release/pagedllm MODEL_PATH=model.gguf tests/clients/nginx.sh
set -euo pipefail
cd "$(dirname "$0")"
: "${PAGEDLLM_BIN:?the program to test}" "${MODEL_PATH:?the model to serve}"
: "${MODEL:=SmolLM2-135M-Instruct}" "${PORT:=18100}" "${PYTHON:=python3}"
export MODEL
RUN_DIR=$(mktemp -d)
. ./server.sh

nginx_pid=""
clean_up() {
    [ -z "$nginx_pid" ] || kill "$nginx_pid" 2>/dev/null || true
    stop_servers || true
    rm -rf "$RUN_DIR"
}
trap clean_up EXIT

for offset in 1 2 3; do start_server $((PORT + offset)); done
sed -e "s|RUN_DIR|$RUN_DIR|g" -e "s/PORT_A/$((PORT + 1))/; s/PORT_B/$((PORT + 2))/" \
    -e "s/PORT_C/$((PORT + 3))/; s/PORT;/$PORT;/" nginx.conf >"$RUN_DIR/nginx.conf"
nginx -e "$RUN_DIR/error.log" -c "$RUN_DIR/nginx.conf" &
nginx_pid=$!
for _ in $(seq 100); do
    curl --silent --fail "http://127.0.0.1:$PORT/health" >/dev/null && break
    sleep 0.1
done

export BASE_URL="http://127.0.0.1:$PORT"
"$PYTHON" openai_async.py
"$PYTHON" behind_proxy.py
USERS=${USERS:-12} REQUESTS=${REQUESTS:-60} MAX_TOKENS=${MAX_TOKENS:-16} "$PYTHON" load.py
for offset in 1 2 3; do
    curl --silent "http://127.0.0.1:$((PORT + offset))/metrics" |
        grep -E '^vllm:generation_tokens_total' | grep -qv ' 0\(\.0\)\?$' ||
        { echo "the server on port $((PORT + offset)) got no work" >&2; exit 1; }
done
echo "nginx: ok"
