"""Streams an answer: python stream.py MODEL "Tell me a story" """

import asyncio
import sys

from pagedllm import LLM, SamplingParams


async def main(model, question):
    with LLM(model) as llm:
        messages = [{"role": "user", "content": question}]
        async for event in llm.stream_chat(messages, SamplingParams(max_tokens=200)):
            print(event.text, end="", flush=True)
        print()


asyncio.run(main(*sys.argv[1:3]))
