"""One streamed completion, timed; and many of them with a fixed number in flight."""

import asyncio
import json
import time
from dataclasses import dataclass, field

import aiohttp

from traffic import Request


@dataclass
class Answer:
    """What one request gave. Times are in seconds from the moment it was sent."""

    first: float = 0.0
    total: float = 0.0
    gaps: list[float] = field(default_factory=list)
    prompt_tokens: int = 0
    output_tokens: int = 0
    text: str = ""
    error: str = ""


@dataclass
class Target:
    """Where requests go. `extra` are further fields of each body."""

    base_url: str
    model: str
    api_key: str
    extra: dict


async def complete(session: aiohttp.ClientSession, target: Target, request: Request) -> Answer:
    """Sends one request and follows its stream."""
    body = {"model": target.model, "prompt": request.prompt, "max_tokens": request.max_tokens,
            "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}, **target.extra}
    answer, pieces, last = Answer(), [], 0.0
    start = time.perf_counter()
    try:
        async with session.post(f"{target.base_url}/v1/completions", json=body) as response:
            if response.status != 200:
                answer.error = f"{response.status}: {(await response.text())[:200]}"
                return answer
            async for line in response.content:
                if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                    continue
                now = time.perf_counter() - start
                event = json.loads(line[6:])
                if "error" in event:
                    answer.error = str(event["error"])[:200]
                    return answer
                if usage := event.get("usage"):
                    answer.prompt_tokens = usage["prompt_tokens"]
                    answer.output_tokens = usage["completion_tokens"]
                if not event.get("choices") or not event["choices"][0].get("text"):
                    continue
                pieces.append(event["choices"][0]["text"])
                if answer.first == 0.0:
                    answer.first = now
                else:
                    answer.gaps.append(now - last)
                last = now
    except (aiohttp.ClientError, TimeoutError, json.JSONDecodeError) as error:
        answer.error = f"{type(error).__name__}: {error}"
    answer.total, answer.text = time.perf_counter() - start, "".join(pieces)
    return answer


async def run(target: Target, requests: list[Request],
              in_flight: int) -> tuple[float, list[Answer]]:
    """Keeps `in_flight` requests going until all are answered: wall seconds, answers in order."""
    answers: list[Answer] = [Answer() for _ in requests]
    waiting = iter(enumerate(requests))
    # Some servers close an idle connection just as the next request goes out on it.
    connector = aiohttp.TCPConnector(limit=in_flight, force_close=True)
    timeout = aiohttp.ClientTimeout(total=None, sock_read=1800)
    headers = {"Authorization": f"Bearer {target.api_key}"}
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers,
                                     read_bufsize=1 << 20) as session:
        async def one_place() -> None:
            for number, request in waiting:
                answers[number] = await complete(session, target, request)

        start = time.perf_counter()
        await asyncio.gather(*(one_place() for _ in range(in_flight)))
        return time.perf_counter() - start, answers
