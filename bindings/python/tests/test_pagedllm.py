"""Run with `python -m unittest discover bindings/python/tests`, PAGEDLLM_LIBRARY set."""

import asyncio
import os
import re
import sys
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from pagedllm import LLM, PagedLLMError, SamplingParams, Status  # noqa: E402

ROOT = Path(__file__).parents[3]
GOLDEN = [271, 312, 153, 231, 149, 307, 134, 172]


def greedy(max_tokens):
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)


class Tests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = LLM(
            ROOT / "tests/golden/tiny/llama",
            device="cpu",
            dtype="float32",
            threads=1,
            kv_cache_memory_bytes="8M",
        )

    @classmethod
    def tearDownClass(cls):
        cls.llm.close()

    def test_generate_gives_the_golden_tokens(self):
        outputs = self.llm.generate([[264]] * 20, greedy(8))
        self.assertEqual([output.outputs[0].token_ids for output in outputs], [GOLDEN] * 20)
        self.assertEqual(outputs[0].outputs[0].finish_reason, "length")
        one = self.llm.generate([264], greedy(8))
        self.assertEqual(one[0].outputs[0].token_ids, GOLDEN)

    def test_chat_and_text(self):
        message = {"role": "user", "content": "hi"}
        self.assertEqual(len(self.llm.chat([message], greedy(4))), 1)
        self.assertEqual(len(self.llm.chat([[message]] * 2, greedy(4))), 2)
        several = self.llm.generate("hello", SamplingParams(max_tokens=3, n=2))
        self.assertEqual(len(several[0].outputs), 2)

    def test_streams_end_when_cancelled(self):
        stream = self.llm.stream([264], greedy(400))
        next(stream)
        stream.cancel()
        self.assertEqual(list(stream)[-1].finish_reason, "abort")

    def test_async_streams(self):
        async def read():
            tokens = []
            async for event in self.llm.stream([264], greedy(8)):
                tokens += event.token_ids
            return tokens

        async def many():
            return await asyncio.gather(*(read() for _ in range(50)))

        self.assertEqual(asyncio.run(many()), [GOLDEN] * 50)

    def test_a_cancelled_task_cancels_its_request(self):
        async def main():
            stream = self.llm.stream([264], greedy(400))

            async def read():
                async for _ in stream:
                    pass

            task = asyncio.create_task(read())
            await asyncio.sleep(0)
            task.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await task
            return [event async for event in stream]

        self.assertEqual(asyncio.run(main())[-1].finish_reason, "abort")

    def test_errors_name_the_field(self):
        with self.assertRaises(PagedLLMError) as caught:
            self.llm.generate("x", SamplingParams(temperature=9))
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(caught.exception.status, Status.INVALID_REQUEST)
        with self.assertRaises(PagedLLMError):
            LLM("nowhere")

    def test_tokens_and_reports(self):
        self.assertEqual(self.llm.detokenize(self.llm.tokenize("hey")), "hey")
        self.assertEqual(self.llm.info()["vocab_size"], 320)
        self.assertIn("vllm:num_requests_running", self.llm.metrics())

    def test_a_forked_child_is_told(self):
        child = os.fork()
        if child == 0:
            try:
                self.llm.tokenize("x")
            except PagedLLMError as error:
                os._exit(0 if error.status == Status.USED_AFTER_FORK else 2)
            os._exit(1)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_many_threads(self):
        results = []
        run = lambda: results.append(self.llm.generate([264], greedy(8))[0].outputs[0].token_ids)
        threads = [threading.Thread(target=run) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(results, [GOLDEN] * 16)

    def test_numbers_are_the_headers(self):
        header = (ROOT / "include/pagedllm.h").read_text()
        numbers = dict(re.findall(r"#define PAGEDLLM_(\w+) (\d+)", header))
        for status in Status:
            self.assertEqual(int(numbers[status.name]), status.value, status.name)


if __name__ == "__main__":
    unittest.main()
