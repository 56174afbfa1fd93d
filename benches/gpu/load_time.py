"""Loading a checkpoint of full size: time from exec to ready, and whether every weight arrived.

    python3 benches/gpu/load_time.py --program target/release/pagedllm --shape benches/shapes/llama-3.1-8b

transformers makes random bfloat16 weights, writes them as safetensors and tells the log-probabilities
of a prompt; the server loads the files and must give the same ones. Needs torch and transformers, and
room for the files in the folder for temporary ones.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from serving import POLL_S, READY_LIMIT_S, ready

PROMPT_LEN = 200
# Of unrelated logits the log-probabilities are apart by more than one; bfloat16 on both sides, through 32
# layers, makes less than a tenth.
MEAN_LIMIT = 0.2


@torch.no_grad()
def make(shape: Path, folder: Path, prompt: list[int]) -> list[float]:
    """Writes a checkpoint; the log-probability of each token of the prompt but the first."""
    config = json.loads((shape / "config.json").read_text())
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder)
    logits = model(torch.tensor([prompt], device="cuda")).logits[0, :-1].float()
    picked = torch.tensor(prompt[1:], device="cuda")
    return torch.log_softmax(logits, -1)[torch.arange(len(picked)), picked].tolist()


def post(url: str, body: dict) -> dict:
    """One request."""
    data = json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def ours(args: argparse.Namespace, folder: Path, prompt: list[int]) -> tuple[float, list[float]]:
    """Seconds from exec to ready, and the server's log-probabilities."""
    url = f"http://127.0.0.1:{args.port}"
    command = [args.program, "serve", str(folder), "--skip-tokenizer-init", "--device", "cuda",
               "--port", str(args.port), "--host", "127.0.0.1", "--max-model-len", "4096"]
    print("$", " ".join(command), flush=True)
    begun = time.perf_counter()
    with subprocess.Popen(command) as server:
        try:
            while not ready(url):
                if server.poll() is not None or time.perf_counter() - begun > READY_LIMIT_S:
                    sys.exit("the server did not get ready")
                time.sleep(POLL_S)
            seconds = time.perf_counter() - begun
            answer = post(f"{url}/v1/completions", {
                "model": str(folder), "prompt": prompt, "max_tokens": 1, "temperature": 0,
                "prompt_logprobs": 0})
        finally:
            server.terminate()
    told = answer["choices"][0]["prompt_logprobs"][1:]
    return seconds, [place[str(token)]["logprob"] for place, token in zip(told, prompt[1:])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/pagedllm")
    parser.add_argument("--shape", type=Path, required=True)
    parser.add_argument("--port", type=int, default=8138)
    args = parser.parse_args()
    prompt = [(i * 7919 + 13) % 128_000 for i in range(PROMPT_LEN)]
    with tempfile.TemporaryDirectory(prefix="pagedllm-load-") as name:
        folder = Path(name)
        want = make(args.shape, folder, prompt)
        torch.cuda.empty_cache()
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        seconds, got = ours(args, folder, prompt)
    errors = [abs(a - b) for a, b in zip(got, want, strict=True)]
    mean = sum(errors) / len(errors)
    print(f"{size / 1e9:.2f} GB, exec to ready {seconds:.2f} s, {size / seconds / 1e9:.1f} GB/s")
    print(f"log-probabilities of {len(errors)} tokens: apart by {mean:.4f} in the mean, "
          f"{max(errors):.4f} at most")
    if not mean < MEAN_LIMIT:
        sys.exit("the weights did not arrive")


if __name__ == "__main__":
    main()
