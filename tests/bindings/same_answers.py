"""Every binding gives what the HTTP server gives: the same greedy tokens for the same prompts, and
the same bytes for the same OpenAI bodies, but for their ids and times."""

import json
import os
import re
import socket
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from programs import ROOT, Programs, arguments, installed

SOURCES = {
    "c": "answers.c",
    "cpp": "answers.cc",
    "go": "go/answers.go",
    "node": "answers.js",
    "python": "answers.py",
}
NAME = "SmolLM2"
OPTIONS = {
    "dtype": "float32",
    "threads": 1,
    "served-model-name": NAME,
    "kv-cache-memory-bytes": "256M",
}
PARAMS = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):",
    "Ein Satz mit Ümläuten und \U0001f680:",
)
MESSAGES = [{"role": "user", "content": "What is gravity?"}]
BODIES = (
    ("completions", {"prompt": "Roses are red,", "logprobs": 2, **PARAMS}),
    ("completions", {"prompt": "Water boils at", "stream": True, **PARAMS}),
    ("chat", {"messages": MESSAGES, "max_tokens": 8, "temperature": 0}),
    (
        "chat",
        {
            "messages": MESSAGES,
            "max_tokens": 8,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    ),
)
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
START_LIMIT = 60


class Server:
    """`pagedllm serve` on a free port, until the block ends."""

    def __init__(self, binary, model):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        flags = [word for name, value in OPTIONS.items() for word in (f"--{name}", str(value))]
        command = [binary, "serve", model, "--host", "127.0.0.1", "--log-level", "warning"]
        self._process = subprocess.Popen([*command, "--port", self.url.split(":")[-1], *flags])
        end = time.monotonic() + START_LIMIT
        while time.monotonic() < end and self._process.poll() is None:
            try:
                with urllib.request.urlopen(self.url + "/ready"):
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.05)
        self.__exit__()
        raise RuntimeError("the server did not become ready")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.terminate()
        self._process.wait()

    def post(self, path, body):
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request) as response:
            return response.read().decode()


def from_server(binary, model):
    """The expected answers, each a list of lines."""
    answers = []
    with Server(binary, model) as server:
        for prompt in PROMPTS:
            body = {"prompt": prompt, "return_token_ids": True, **PARAMS}
            choice = json.loads(server.post(PATHS["completions"], body))["choices"][0]
            answers.append([" ".join(map(str, choice["token_ids"]))])
        for kind, body in BODIES:
            text = server.post(PATHS[kind], body)
            pieces = re.findall(r"^data: (.*)$", text, re.M) if body.get("stream") else [text]
            answers.append([without_marks(piece) for piece in pieces])
    return answers


def without_marks(text):
    """A text without what names one answer."""
    return re.sub(r'"id":"[^"]*"|"created":\d+', "*", text.strip())


def from_program(programs, words, model):
    questions = [f"generate\t{prompt}" for prompt in PROMPTS]
    questions += [f"{kind}\t{json.dumps(body)}" for kind, body in BODIES]
    done = programs.run(
        [*words, model, json.dumps(OPTIONS), json.dumps(PARAMS)],
        input="".join(f"{question}\n" for question in questions).encode(),
        stdout=subprocess.PIPE,
    )
    answers = done.stdout.decode().removesuffix("\n\n").split("\n\n")
    return [[without_marks(line) for line in answer.split("\n")] for answer in answers]


def compare(programs, language, model, expected):
    began = time.monotonic()
    source = ROOT / "tests/bindings/answers" / SOURCES[language]
    found = from_program(programs, programs.build(language, source), model)
    for question, one, other in zip((*PROMPTS, *BODIES), expected, found, strict=True):
        assert one == other, f"{language}: {question}\nserver:  {one}\nbinding: {other}"
    return f"{language:6} {len(found)} answers agree, {time.monotonic() - began:.1f} s"


def main():
    given = arguments()
    expected = from_server(given.binary, given.model)
    for answer in expected[: len(PROMPTS)]:
        assert len(answer[0].split()) == PARAMS["max_tokens"], answer
    with Programs(given.library) as programs, ThreadPoolExecutor(os.cpu_count()) as pool:
        run = partial(compare, programs, model=given.model, expected=expected)
        for line in pool.map(run, installed()):
            print(line)


if __name__ == "__main__":
    main()
