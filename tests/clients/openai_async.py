"""The official `openai` client, asynchronous: chat and completions, plain and streamed."""

import asyncio

from openai import AsyncOpenAI

from settings import API_KEY, BASE_URL, MODEL, count

PARALLEL = count("PARALLEL", 16)
MESSAGES = [{"role": "user", "content": "Name three colours."}]


async def chat(client: AsyncOpenAI) -> str:
    """A plain chat answer."""
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and choice.index == 0
    assert choice.message.role == "assistant" and choice.finish_reason in ("stop", "length")
    assert answer.usage.completion_tokens <= 24
    return choice.message.content


async def chat_streamed(client: AsyncOpenAI) -> str:
    """The same answer in pieces, with the usage at the end."""
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=24, temperature=0, stream=True,
        stream_options={"include_usage": True})
    text, reasons, usage, roles, ids = "", [], None, [], set()
    async for chunk in stream:
        ids.add(chunk.id)
        assert chunk.object == "chat.completion.chunk" and chunk.model
        assert usage is None, "a chunk follows the usage"
        usage = chunk.usage
        if usage is not None:
            assert chunk.choices == [], chunk
        for choice in chunk.choices:
            assert not reasons, "a choice follows its finish reason"
            text += choice.delta.content or ""
            roles += [choice.delta.role] if choice.delta.role else []
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert len(ids) == 1 and roles == ["assistant"] and len(reasons) == 1, (ids, roles, reasons)
    assert usage is not None and usage.completion_tokens <= 24, usage
    return text


async def several_choices(client: AsyncOpenAI) -> None:
    """n = 3, streamed: each index begins and ends once."""
    stream = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=8, n=3, temperature=0.9, seed=7, stream=True)
    ended = []
    async for chunk in stream:
        ended += [c.index for c in chunk.choices if c.finish_reason]
    assert sorted(ended) == [0, 1, 2], ended


async def logprobs(client: AsyncOpenAI) -> None:
    """One entry a token, each with the asked number of alternatives."""
    answer = await client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_tokens=5, temperature=0, logprobs=True, top_logprobs=3)
    entries = answer.choices[0].logprobs.content
    assert len(entries) == answer.usage.completion_tokens
    for entry in entries:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 3
        assert abs(entry.top_logprobs[0].logprob - entry.logprob) < 1e-5, entry


async def completions(client: AsyncOpenAI) -> None:
    """Texts, token ids, lists of both; the ids that come back and those that went in agree."""
    create = client.completions.create
    asked = {"model": MODEL, "max_tokens": 12, "temperature": 0}
    extra = {"return_token_ids": True}
    text = await create(prompt="The capital of France is", extra_body=extra, **asked)
    prompt_ids = text.choices[0].model_extra["prompt_token_ids"]
    token_ids = text.choices[0].model_extra["token_ids"]
    assert len(prompt_ids) == text.usage.prompt_tokens, text
    assert len(token_ids) == text.usage.completion_tokens, text

    by_ids = await create(prompt=prompt_ids, extra_body=extra, **asked)
    assert by_ids.choices[0].text == text.choices[0].text
    assert by_ids.choices[0].model_extra["token_ids"] == token_ids

    many = await create(prompt=[prompt_ids, prompt_ids[:2]], **asked)
    assert [choice.index for choice in many.choices] == [0, 1]
    assert many.choices[0].text == text.choices[0].text

    streamed = ""
    async for chunk in await create(prompt=prompt_ids, stream=True, **asked):
        streamed += chunk.choices[0].text
    assert streamed == text.choices[0].text, (streamed, text.choices[0].text)

    echoed = await create(prompt="Once upon", echo=True, logprobs=1, **asked)
    assert echoed.choices[0].text.startswith("Once upon")
    assert len(echoed.choices[0].logprobs.tokens) == echoed.usage.total_tokens


async def main() -> None:
    async with AsyncOpenAI(base_url=f"{BASE_URL}/v1", api_key=API_KEY, timeout=300,
                           max_retries=0) as client:
        models = [model.id async for model in client.models.list()]
        assert MODEL in models, models
        plain, streamed = await asyncio.gather(chat(client), chat_streamed(client))
        assert plain == streamed, (plain, streamed)
        await several_choices(client)
        await logprobs(client)
        await completions(client)
        await asyncio.gather(*(chat(client) if i % 2 else chat_streamed(client)
                               for i in range(PARALLEL)))
    print("openai_async: ok")


if __name__ == "__main__":
    asyncio.run(main())
