"""Logits of pagedllm against those of transformers, on a shape with made-up weights.

    python3 compare_logits.py --program ./logits --shape shapes/llama-3.1-8b --layers 4 --device cuda

`--program` is the example `logits` of the crate executor. Both sides make the same weights from the
names of the tensors. Each row is compared by norm of the difference over norm of transformers' row:
float32 against float32, and bfloat16 against transformers in float32 on the same rounded weights,
beside the error that transformers' own bfloat16 has. Needs torch and transformers.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

MASK = 0xFFFFFFFF
# Elements that are made at once.
PIECE = 1 << 26


def seed_of(name: str) -> int:
    """FNV-1a, 32 bits."""
    value = 0x811C9DC5
    for byte in name.encode():
        value = ((value ^ byte) * 0x01000193) & MASK
    return value


@torch.no_grad()
def fill(name: str, weight: torch.Tensor, stored: torch.dtype) -> None:
    """The values of crates/backend/src/dummy.rs, rounded to the type in which they are stored."""
    scale = float(np.sqrt(np.float32(3.0) / np.float32(weight.shape[1])))
    flat, seed = weight.view(-1), (seed_of(name) * 2246822519) & MASK
    for start in range(0, flat.numel(), PIECE):
        index = torch.arange(start, min(start + PIECE, flat.numel()), device=weight.device)
        value = ((index & MASK) * 2654435761) & MASK
        value ^= ((index >> 32) * 40503) & MASK
        value ^= seed
        value = ((value ^ (value >> 15)) * 2246822519) & MASK
        value = ((value ^ (value >> 13)) * 3266489917) & MASK
        value ^= value >> 16
        number = (value >> 8).to(torch.float32) * (2.0 / 16777216.0) - 1.0
        flat[start:start + len(index)] = (number * scale).to(stored).to(weight.dtype)


def reference(config: dict, prompt: list[int], device: str, stored: torch.dtype,
              computed: torch.dtype) -> torch.Tensor:
    """Logits of transformers for every position, `[positions, vocabulary]`, in float32."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.set_default_dtype(computed)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**config)).eval()
    torch.set_default_dtype(torch.float32)
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            fill(name, weight.data, stored)
    with torch.no_grad():
        return model(torch.tensor([prompt], device=device)).logits[0].float().cpu()


def ours(program: str, folder: Path, device: str, dtype: str) -> tuple[dict, np.ndarray]:
    """What the program wrote: prompt and rows, and the logits, a row each."""
    out = folder / f"logits-{dtype}"
    subprocess.run([program, str(folder), str(out), device, dtype], check=True)
    told = json.loads(out.with_suffix(".json").read_text())
    logits = np.fromfile(out.with_suffix(".f32"), dtype=np.float32)
    return told, logits.reshape(len(told["rows"]), -1)


def errors(rows: list[dict], got: np.ndarray, want: torch.Tensor) -> dict[str, list[float]]:
    """Relative error of each row, by the way in which it was computed."""
    found: dict[str, list[float]] = {}
    for row, values in zip(rows, got, strict=True):
        right = want[row["position"]].numpy()
        error = float(np.linalg.norm(values - right) / np.linalg.norm(right))
        found.setdefault(row["way"], []).append(error)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--shape", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--limit-f32", type=float, default=1e-4)
    parser.add_argument("--limit-bf16", type=float, default=2e-2)
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="pagedllm-logits-"))
    config = json.loads((args.shape / "config.json").read_text())
    config["num_hidden_layers"] = min(args.layers, config["num_hidden_layers"])
    (folder / "config.json").write_text(json.dumps(config))
    failed = False
    print("| dtype | way | rows | worst error | mean error | transformers' own |\n" + "|---" * 6 + "|")
    for dtype in ("float32", "bfloat16"):
        told, got = ours(args.program, folder, args.device, dtype)
        stored = getattr(torch, dtype)
        if args.device == "cpu":  # which keeps what a checkpoint would hold
            stored = torch.bfloat16
        want = reference(config, told["prompt"], args.device, stored, torch.float32)
        own: dict[str, list[float]] = {}
        if dtype == "bfloat16":
            theirs = reference(config, told["prompt"], args.device, stored, torch.bfloat16)
            picked = np.stack([theirs[row["position"]].numpy() for row in told["rows"]])
            own = errors(told["rows"], picked, want)
        for way, found in errors(told["rows"], got, want).items():
            worst, mean = max(found), sum(found) / len(found)
            theirs_mean = sum(own[way]) / len(own[way]) if own else 0.0
            limit = args.limit_f32 if dtype == "float32" else args.limit_bf16
            is_off = worst > limit or (dtype == "bfloat16" and mean > 1.5 * theirs_mean)
            failed |= is_off
            print(f"| {dtype} | {way} | {len(found)} | {worst:.2e} | {mean:.2e} | "
                  f"{theirs_mean:.2e} |{' TOO FAR' if is_off else ''}", flush=True)
    if failed:
        sys.exit("some rows are too far off")


if __name__ == "__main__":
    main()
