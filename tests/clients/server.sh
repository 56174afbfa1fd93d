# shellcheck shell=bash
# Functions for the scripts of this folder, to be read with `.`: start and stop servers.
#
# PAGEDLLM_BIN is the program, MODEL_PATH what it serves, MODEL the name it serves it under,
# SERVER_ARGS further arguments.

SERVER_PIDS=""

start_server() { # PORT: starts a server and waits until it is ready.
    if curl --silent "http://127.0.0.1:$1/health" >/dev/null; then
        echo "port $1 is taken; set PORT to another" >&2
        return 1
    fi
    # shellcheck disable=SC2086
    "$PAGEDLLM_BIN" serve "$MODEL_PATH" --served-model-name "$MODEL" --host 127.0.0.1 \
        --port "$1" ${SERVER_ARGS:-} >"$RUN_DIR/server-$1.log" 2>&1 &
    pid=$!
    SERVER_PIDS="$SERVER_PIDS $pid"
    for _ in $(seq 600); do
        curl --silent --fail "http://127.0.0.1:$1/health" >/dev/null && return 0
        if ! kill -0 "$pid" 2>/dev/null; then break; fi
        sleep 0.1
    done
    echo "the server on port $1 did not become ready:" >&2
    tail -n 40 "$RUN_DIR/server-$1.log" >&2
    return 1
}

stop_servers() { # Asks every server to end and waits for it; fails where one ends badly.
    worst=0
    for pid in $SERVER_PIDS; do
        kill -TERM "$pid" 2>/dev/null || true
        wait "$pid" || worst=$?
    done
    SERVER_PIDS=""
    return "$worst"
}
