"""Perplexity of one text under pagedllm and under llama.cpp, for the same file.

    python3 benches/peers/perplexity.py --pagedllm target/release/pagedllm [--formats Q4_1 Q8_0 ...]

Both cut the text into chunks of 512 tokens and score the second half of each, as llama-perplexity
does. Needs llama-perplexity beside llama-bench (see build_llamacpp.sh) and nothing but the standard
library. Fails where a ratio leaves 1 by more than 0.5%.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
CACHE = os.environ.get("PAGEDLLM_CACHE", os.path.expanduser("~/.cache/pagedllm"))
TEXTS = ["docs/architecture.md", "docs/backend.md", "docs/decisions/0002-gguf-parsing.md"]
CHUNK = 512
PORT = 18555
LIMIT = 0.005


def post(path: str, body: dict) -> dict:
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}", json.dumps(body).encode(),
        {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def scored(chunk: list[int]) -> list[float]:
    """Log-probabilities of the second half of a chunk."""
    answer = post("/v1/completions", {
        "model": "m", "prompt": chunk, "max_tokens": 0, "echo": True, "prompt_logprobs": 0})
    entries = answer["choices"][0]["prompt_logprobs"]
    return [entries[i][str(chunk[i])]["logprob"] for i in range(CHUNK // 2 + 1, CHUNK)]


def pagedllm(program: str, model: str, text: str, dtype: str) -> float:
    server = subprocess.Popen(
        [program, "serve", model, "--host", "127.0.0.1", "--port", str(PORT), "--dtype", dtype,
         "--served-model-name", "m", "--max-model-len", "1024", "--log-level", "error"])
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{PORT}/ready", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        tokens = post("/tokenize", {"model": "m", "prompt": text})["tokens"]
        chunks = [tokens[i:i + CHUNK] for i in range(0, len(tokens) - CHUNK + 1, CHUNK)]
        logprobs = [logprob for chunk in chunks for logprob in scored(chunk)]
        return math.exp(-sum(logprobs) / len(logprobs))
    finally:
        server.terminate()
        server.wait()


def llama(model: str, path: str) -> float:
    program = os.path.join(CACHE, "peers/llamacpp/bin/llama-perplexity")
    run = subprocess.run([program, "-m", model, "-f", path, "-c", str(CHUNK), "-b", str(CHUNK),
                          "-t", "2", "-fa", "off"], capture_output=True, text=True, check=True)
    return float(re.search(r"Final estimate: PPL = ([0-9.]+)", run.stdout + run.stderr)[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pagedllm", required=True)
    parser.add_argument("--formats", nargs="+", default=["F16", "Q8_0", "Q4_0", "Q4_1"])
    arguments = parser.parse_args()
    text = "".join(open(os.path.join(ROOT, name), encoding="utf-8").read() for name in TEXTS)
    path = os.path.join(CACHE, "perplexity.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    failed = False
    print("| format | llama.cpp | pagedllm | ratio | pagedllm, float32 |")
    print("|---|---|---|---|---|")
    for name in arguments.formats:
        model = os.path.join(CACHE, f"models/SmolLM2-135M-Instruct.{name}.gguf")
        theirs = llama(model, path)
        ours = pagedllm(arguments.pagedllm, model, text, "auto")
        exact = pagedllm(arguments.pagedllm, model, text, "float32")
        failed |= abs(ours / theirs - 1) > LIMIT
        print(f"| {name} | {theirs:.4f} | {ours:.4f} | {ours / theirs:.4f} | {exact:.4f} |",
              flush=True)
    if failed:
        sys.exit("a ratio leaves 1 by more than 0.5%")


if __name__ == "__main__":
    main()
