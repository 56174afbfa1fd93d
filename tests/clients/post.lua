-- A small completion request for wrk; MODEL names the model, API_KEY the key.
wrk.method = "POST"
wrk.path = "/v1/completions"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. (os.getenv("API_KEY") or "none")
wrk.body = string.format(
  '{"model": "%s", "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0}',
  os.getenv("MODEL"))

local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init()
  refused = 0
end

function response(status, headers, body)
  if status ~= 200 then
    refused = refused + 1
  end
end

function done(summary, latency, requests)
  local total = 0
  for _, thread in ipairs(threads) do
    total = total + thread:get("refused")
  end
  local errors = summary.errors
  print(string.format("answers %d, not 200: %d, connect %d, read %d, write %d, timeout %d",
    summary.requests, total, errors.connect, errors.read, errors.write, errors.timeout))
  if summary.requests == 0 or total + errors.connect + errors.read + errors.write > 0 then
    os.exit(1)
  end
end
