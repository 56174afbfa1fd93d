"""Load: many users post Chinese prompts at once, each waits for its answer and asks again.

USERS (50) and REQUESTS (500) set the size. Every answer is checked; the summary has requests and
tokens a second and the latency at the median and at the 99th percentile.
"""

import asyncio
import random
import time

import httpx

from settings import API_KEY, BASE_URL, MODEL, count

USERS = count("USERS", 50)
REQUESTS = count("REQUESTS", 500)
MAX_TOKENS = count("MAX_TOKENS", 64)
PROMPTS = [
    "你好，请介绍一下你自己。",
    "写一首关于春天的短诗。",
    "请解释什么是人工智能，以及它在医疗领域的应用。",
    "把下面的句子翻译成英文：今天的天气非常好，我们一起去公园散步吧。",
    "北京有哪些值得参观的景点？请列出五个并简单说明。",
    "用 Python 写一个函数，计算斐波那契数列的第 n 项。",
    "总结以下内容：量子计算利用量子力学的叠加和纠缠来处理信息，它在密码学、材料科学和优化问题上有很大潜力。" * 3,
    "什么是大语言模型？",
]


async def ask(client: httpx.AsyncClient, number: int, draw: random.Random) -> tuple[float, int]:
    """One request; returns its seconds and its number of generated tokens."""
    body = {"model": MODEL, "prompt": draw.choice(PROMPTS), "max_tokens": MAX_TOKENS,
            "temperature": draw.choice([0.0, 0.7]), "seed": number}
    start = time.perf_counter()
    response = await client.post("/v1/completions", json=body)
    seconds = time.perf_counter() - start
    assert response.status_code == 200, f"{response.status_code}: {response.text[:300]}"
    answer = response.json()
    choice, usage = answer["choices"][0], answer["usage"]
    assert choice["finish_reason"] in ("stop", "length"), choice
    assert usage["completion_tokens"] <= MAX_TOKENS, usage
    return seconds, usage["completion_tokens"]


async def user(client: httpx.AsyncClient, numbers: asyncio.Queue, results: list) -> None:
    """Takes numbers until none is left."""
    while not numbers.empty():
        number = numbers.get_nowait()
        results.append(await ask(client, number, random.Random(number)))


async def main() -> None:
    numbers: asyncio.Queue = asyncio.Queue()
    for number in range(REQUESTS):
        numbers.put_nowait(number)
    results: list[tuple[float, int]] = []
    limits = httpx.Limits(max_connections=USERS, max_keepalive_connections=USERS)
    headers = {"Authorization": f"Bearer {API_KEY}"}
    start = time.perf_counter()
    async with httpx.AsyncClient(base_url=BASE_URL, timeout=600, limits=limits,
                                 headers=headers) as client:
        await asyncio.gather(*(user(client, numbers, results) for _ in range(USERS)))
    wall = time.perf_counter() - start
    assert len(results) == REQUESTS, f"{len(results)} answers to {REQUESTS} requests"
    seconds = sorted(result[0] for result in results)
    tokens = sum(result[1] for result in results)
    print(f"load: ok, {REQUESTS / wall:.1f} requests/s, {tokens / wall:.0f} tokens/s, "
          f"latency p50 {seconds[len(seconds) // 2]:.2f} s, "
          f"p99 {seconds[len(seconds) * 99 // 100]:.2f} s")


if __name__ == "__main__":
    asyncio.run(main())
