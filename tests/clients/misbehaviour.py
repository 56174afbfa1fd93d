"""Clients that misbehave. After each kind the server must answer others and hold nothing.

ABORTS (1,000) sets how many requests are cut at random moments, QUEUE (600) how many are thrown at
a full queue. IDLE_SECONDS (30) is how long the gauges may take to come back.
"""

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import time

import httpx

from settings import API_KEY, BASE_URL, MODEL, count

ABORTS = count("ABORTS", 1000)
QUEUE = count("QUEUE", 600)
IDLE_SECONDS = count("IDLE_SECONDS", 30)
HEADERS = {"Authorization": f"Bearer {API_KEY}"}
GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def body(**values) -> dict:
    """A small completion request with some fields replaced."""
    return {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, **values}


async def gauges(client: httpx.AsyncClient) -> tuple[float, ...]:
    """Running, waiting, and the used part of the KV cache."""
    text = (await client.get("/metrics")).text
    found = []
    for name in GAUGES:
        line = re.search(rf"^{name}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
        assert line, f"no {name} in /metrics"
        found.append(float(line[1]))
    return tuple(found)


async def comes_to_rest(client: httpx.AsyncClient, idle_usage: float, after: str) -> None:
    """Waits until nothing runs or waits and the cache is as it was when idle."""
    deadline = time.monotonic() + IDLE_SECONDS
    while time.monotonic() < deadline:
        running, waiting, usage = await gauges(client)
        if running == 0 and waiting == 0 and abs(usage - idle_usage) < 1e-9:
            answer = await client.post("/v1/completions", json=body())
            if answer.status_code == 200:
                print(f"misbehaviour: {after}: at rest", flush=True)
                return
        await asyncio.sleep(0.1)
    raise AssertionError(f"after {after}: running, waiting, usage = {await gauges(client)}, "
                         f"idle usage was {idle_usage}")


def check_error(answer: httpx.Response, *statuses: int) -> dict:
    """The answer has one of the statuses and OpenAI's error object."""
    assert answer.status_code in statuses, f"{answer.status_code}: {answer.text[:300]}"
    error = answer.json()["error"]
    assert error["message"] and error["type"] and {"param", "code"} <= error.keys(), error
    return error


STREAMER = """
import json, sys, httpx
with httpx.stream("POST", sys.argv[1], json=json.loads(sys.argv[2]), timeout=60,
                  headers=json.loads(sys.argv[3])) as answer:
    for line in answer.iter_lines():
        print(line, flush=True)
"""


def killed_client() -> None:
    """A process that is killed in mid-stream, without closing anything in order."""
    request = json.dumps(body(stream=True, max_tokens=2000, ignore_eos=True))
    child = subprocess.Popen(
        [sys.executable, "-c", STREAMER, f"{BASE_URL}/v1/completions", request,
         json.dumps(HEADERS)], stdout=subprocess.PIPE, text=True)
    for _ in range(4):
        assert child.stdout.readline(), "the stream ended before it was cut"
    child.send_signal(signal.SIGKILL)
    child.wait()


async def full_queue(client: httpx.AsyncClient) -> None:
    """More requests than the queue takes: each is answered or told when to come again."""
    async def one() -> httpx.Response:
        return await client.post("/v1/completions", json=body(max_tokens=100, ignore_eos=True))

    answers = await asyncio.gather(*(one() for _ in range(QUEUE)))
    refused = [answer for answer in answers if answer.status_code != 200]
    for answer in refused:
        check_error(answer, 429)
        assert int(answer.headers["Retry-After"]) >= 1, answer.headers
    if count("EXPECT_FULL", 0):
        assert refused, "no request of the burst was refused"
    assert len(refused) < QUEUE, "every request was refused"
    print(f"misbehaviour: full queue: {len(refused)} of {QUEUE} refused", flush=True)


async def raw(request: bytes) -> bytes:
    """What the server answers to these bytes until it closes or says nothing for a second."""
    url = httpx.URL(BASE_URL)
    reader, writer = await asyncio.open_connection(url.host, url.port or 80)
    answer = b""
    try:
        writer.write(request)
        await writer.drain()
        while part := await asyncio.wait_for(reader.read(65536), 1.0):
            answer += part
    except (TimeoutError, ConnectionError):
        pass
    finally:
        writer.close()
    return answer


async def large_body(client: httpx.AsyncClient) -> None:
    """100 MB in one body: refused by its announced length, and by what really comes."""
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {100 << 20}\r\n")
    for more in ("\r\n", "Expect: 100-continue\r\n\r\n"):
        answer = await raw((head + more).encode())
        assert b"HTTP/1.1 413 " in answer, answer[:200]

    async def parts():
        yield b'{"model":"x","prompt":"'
        for _ in range(100):
            yield b" " * (1 << 20)

    try:
        answer = await client.post("/v1/completions", content=parts(),
                                   headers={"Content-Type": "application/json"})
    except (httpx.WriteError, httpx.ReadError, httpx.RemoteProtocolError):
        # The server answers and closes before it has read everything; a client that is still
        # writing may then see a broken pipe and no answer.
        return
    check_error(answer, 413)


async def broken_http(client: httpx.AsyncClient) -> None:
    """Bytes that are no HTTP, and requests that stop half way."""
    post = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    for request in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
                    b"GET /" + b"a" * (1 << 20) + b" HTTP/1.1\r\n\r\n",
                    post + b"X-Long: " + b"a" * (1 << 20) + b"\r\n\r\n",
                    post + b"".join(b"X-%d: 1\r\n" % i for i in range(10_000)) + b"\r\n",
                    post + b"Content-Length: -1\r\n\r\n", post + b"Content-Length: 100\r\n\r\n{",
                    post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", post):
        answer = await raw(request)
        assert not answer or answer.split(b" ", 2)[1].startswith((b"4", b"5")), answer[:200]
    assert (await client.get("/health")).status_code == 200


async def rubbish(client: httpx.AsyncClient) -> None:
    """Bodies that are no request, and routes and methods that do not exist."""
    deep = b"[" * 100_000
    bodies = [b"", b"{", b"null", b"[]", b"42", b'"text"', b"{}", b"\xff\xfe\x00", deep,
              b'{"model":' + deep, b'{"model": 1e999}', b"{'model': 'x'}",
              json.dumps(body(prompt={"a": 1})).encode(), json.dumps(body(n="three")).encode(),
              json.dumps(body(max_tokens=10**30)).encode(),
              json.dumps(body(temperature="NaN")).encode()]
    for path in ("/v1/completions", "/v1/chat/completions"):
        for content in bodies:
            answer = await client.post(path, content=content,
                                       headers={"Content-Type": "application/json"})
            check_error(answer, 400)
    check_error(await client.get("/v1/no-such-route"), 404)
    check_error(await client.get("/v1/completions"), 405)
    check_error(await client.delete("/v1/models"), 405)
    check_error(await client.post("/v1/completions", json=body(model="no-such-model")), 404)


async def long_prompt(client: httpx.AsyncClient) -> None:
    """A prompt over the context is named as such, in both endpoints, streamed or not."""
    text = "word " * 200_000
    for stream in (False, True):
        requests = {"/v1/completions": body(prompt=text, stream=stream),
                    "/v1/chat/completions": {"model": MODEL, "stream": stream,
                                             "messages": [{"role": "user", "content": text}]}}
        for path, request in requests.items():
            error = check_error(await client.post(path, json=request), 400)
            assert error["code"] == "context_length_exceeded", error


async def aborted(client: httpx.AsyncClient, seed: int) -> None:
    """One request of random shape, cut at a random moment."""
    draw = random.Random(seed)
    request = body(prompt="Tell me a story. " * draw.randint(1, 40), n=draw.choice([1, 1, 2, 4]),
                   max_tokens=draw.randint(1, 200), stream=draw.random() < 0.7, temperature=0.8,
                   ignore_eos=True)
    try:
        async with asyncio.timeout(draw.choice([0.0, 0.001, 0.02, 0.1, 0.3])):
            async with client.stream("POST", "/v1/completions", json=request) as answer:
                async for _ in answer.aiter_bytes():
                    if draw.random() < 0.05:
                        return
    except (TimeoutError, httpx.HTTPError):
        pass


async def random_aborts(client: httpx.AsyncClient) -> None:
    """Many cut requests, up to 32 at a time."""
    places = asyncio.Semaphore(32)

    async def one(seed: int) -> None:
        async with places:
            await aborted(client, seed)

    await asyncio.gather(*(one(seed) for seed in range(ABORTS)))


async def main() -> None:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=BASE_URL, timeout=300, limits=limits,
                                 headers=HEADERS) as client:
        assert (await client.post("/v1/completions", json=body())).status_code == 200
        running, waiting, idle_usage = await gauges(client)
        assert running == 0 and waiting == 0, "the server is not idle"
        await asyncio.to_thread(killed_client)
        await comes_to_rest(client, idle_usage, "a killed client")
        for kind in (rubbish, broken_http, long_prompt, large_body, full_queue, random_aborts):
            await kind(client)
            await comes_to_rest(client, idle_usage, kind.__name__.replace("_", " "))
    print("misbehaviour: ok")


if __name__ == "__main__":
    asyncio.run(main())
