#!/bin/sh
# wrk with 100 connections, then ApacheBench with 10, against BASE_URL. Fails on any other answer
# than 200 and on any broken connection. Needs Debian's wrk and apache2-utils.
set -eu
cd "$(dirname "$0")"
: "${BASE_URL:=http://127.0.0.1:8000}" "${MODEL:=SmolLM2-135M-Instruct}"
: "${CONNECTIONS:=100}" "${DURATION:=20s}" "${API_KEY:=none}"
export MODEL API_KEY

wrk --threads 2 --connections "$CONNECTIONS" --duration "$DURATION" --timeout 120s --latency \
    --script post.lua "$BASE_URL"

# wrk leaves in the middle of its last requests; the server drops them at its next step.
for _ in $(seq 300); do
    curl --silent "$BASE_URL/metrics" | grep -q '^vllm:num_requests_waiting{.* 0\(\.0\)\?$' && break
    sleep 0.1
done

request=$(mktemp)
report=$(mktemp)
trap 'rm -f "$request" "$report"' EXIT
printf '{"model": "%s", "prompt": "Hello", "max_tokens": 16, "temperature": 0}' "$MODEL" >"$request"
# -l: answers may differ in length, since each has an id and a time of its own.
ab -l -n 100 -c 10 -p "$request" -T application/json -H "Authorization: Bearer $API_KEY" \
    "$BASE_URL/v1/completions" | tee "$report"
grep -q '^Complete requests: *100$' "$report"
grep -q '^Failed requests: *0$' "$report"
if grep -q '^Non-2xx' "$report"; then exit 1; fi
echo "wrk_ab: ok"
