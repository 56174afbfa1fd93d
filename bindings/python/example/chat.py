"""Answers as the model generates, until Ctrl-C: python chat.py MODEL "What is gravity?" """

import asyncio
import signal
import sys

from pagedllm import LLM, SamplingParams


async def main(model, question):
    with LLM(model) as llm:
        messages = [{"role": "user", "content": question}]
        stream = llm.stream_chat(messages, SamplingParams(max_tokens=200))
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, stream.cancel)
        async for event in stream:
            print(event.text, end="", flush=True)
            if event.finish_reason == "abort":
                print(" [cancelled]", end="")
        print()


asyncio.run(main(*sys.argv[1:3]))
