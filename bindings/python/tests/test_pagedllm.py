"""Run with `python -m unittest discover bindings/python/tests`, PAGEDLLM_LIBRARY set."""

import asyncio
import json
import logging
import os
import re
import sys
import threading
import unittest
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from pagedllm import LLM, PagedLLMError, SamplingParams, Status  # noqa: E402

ROOT = Path(__file__).parents[3]
GOLDEN = [271, 312, 153, 231, 149, 307, 134, 172]


def greedy(max_tokens, **more):
    return SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True, **more)


def open_tiny(**more):
    return LLM(
        ROOT / "tests/golden/tiny/llama",
        device="cpu",
        dtype="float32",
        threads=1,
        kv_cache_memory_bytes="8M",
        **more,
    )


class Tests(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.llm = open_tiny()

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

    def test_prompts_in_the_shape_of_dicts(self):
        outputs = self.llm.generate([{"prompt_token_ids": [264]}, {"prompt": "hey"}], greedy(8))
        self.assertEqual(outputs[0].outputs[0].token_ids, GOLDEN)
        self.assertEqual([output.request_id for output in outputs], ["0", "1"])

    def test_logprobs_come_with_their_tokens(self):
        conversation = [{"role": "user", "content": "hi"}]
        for answer in (
            self.llm.generate([264], greedy(4, logprobs=2)),
            self.llm.chat(conversation, greedy(4, logprobs=2)),
        ):
            output = answer[0].outputs[0]
            self.assertEqual(len(output.logprobs), 4)
            total = 0.0
            for token, place in zip(output.token_ids, output.logprobs):
                best = max(place.values(), key=lambda entry: entry.logprob)
                self.assertIs(place[token], best, "greedy takes the best")
                self.assertEqual(len(place), 2)
                total += place[token].logprob
            self.assertAlmostEqual(output.cumulative_logprob, total, places=4)

    def test_stop_reasons(self):
        text = self.llm.generate([264], greedy(8))[0].outputs[0].text
        stopped = self.llm.generate([264], greedy(8, stop=["never", text[2]]))[0].outputs[0]
        self.assertEqual((stopped.finish_reason, stopped.stop_reason), ("stop", text[2]))
        stopped = self.llm.generate([264], greedy(8, stop_token_ids=[GOLDEN[2]]))[0].outputs[0]
        self.assertEqual((stopped.finish_reason, stopped.stop_reason), ("stop", GOLDEN[2]))

    def test_the_log_goes_to_logging(self):
        logger = logging.getLogger("a host")
        logger.propagate = False
        logger.setLevel(5)
        records = []
        logger.addHandler(_Keep(records))

        def targets():
            records.clear()
            with open_tiny(logger=logger) as llm:
                llm.generate([264], greedy(4))
            # Closing has waited for the last line.
            return {record.getMessage().split(":")[0] for record in records}

        self.assertIn("pagedllm_engine", targets())
        logger.setLevel(logging.ERROR)
        self.assertEqual(targets(), set())

    def test_a_load_is_reported_and_can_be_cancelled(self):
        seen = []
        open_tiny(progress=lambda *report: seen.append(report)).close()
        self.assertGreater(seen[-1][1], 0)
        self.assertEqual(seen[-1][0], seen[-1][1])
        with self.assertRaises(PagedLLMError) as caught:
            open_tiny(progress=lambda *_: False)
        self.assertEqual(caught.exception.status, Status.LOAD_CANCELLED)

        def interrupt(*_):
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            open_tiny(progress=interrupt)

    def test_the_server_inside_gives_the_answer_of_the_binding(self):
        body = {"prompt": [264], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        text = self.llm.generate([264], greedy(8))[0].outputs[0].text
        embedded = json.loads(self.llm.complete("completions", body).text())
        with self.llm.serve(host="127.0.0.1", port=0) as server:
            request = urllib.request.Request(
                f"http://{server.address}/v1/completions",
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request) as response:
                served = json.load(response)
        self.assertEqual(served["choices"][0]["text"], text)
        self.assertEqual(embedded["choices"], served["choices"])
        with self.assertRaises(OSError):
            urllib.request.urlopen(f"http://{server.address}/health")
        with self.assertRaises(PagedLLMError) as caught:
            self.llm.serve(port="x")
        self.assertEqual(caught.exception.param, "port")

    def test_stats_count_what_ran(self):
        before = self.llm.stats()["generation_tokens_total"]
        self.llm.generate([264], greedy(8))
        self.assertEqual(self.llm.stats()["generation_tokens_total"] - before, 8)

    def test_an_engine_that_was_shut_down_takes_no_requests(self):
        with open_tiny() as llm:
            llm.check_health()
            llm.shutdown()
            with self.assertRaises(PagedLLMError) as caught:
                llm.generate([264])
        self.assertEqual(caught.exception.status, Status.SHUTTING_DOWN)

    def test_a_child_closes_nothing_of_its_parent(self):
        with open_tiny() as llm:
            child = os.fork()
            if child == 0:
                llm.close()
                os._exit(0)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
            self.assertEqual(llm.generate([264], greedy(8))[0].outputs[0].token_ids, GOLDEN)

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


class _Keep(logging.Handler):
    def __init__(self, records):
        super().__init__()
        self.emit = records.append


if __name__ == "__main__":
    unittest.main()
