"""llama.cpp and pagedllm on the same CPU, in turn, in one run: medians of several rounds.

    python compare.py --pagedllm target/release/pagedllm      # both
    python compare.py                                         # llama.cpp alone
    python compare.py --formats Q8_0 --rounds 5 --markdown out.md --json out.json

Cases: a prompt of 512 tokens; then 128 tokens after a prompt of 128, for 1, 8 and 32 sequences at
once. llama.cpp's flash attention is on for one sequence and for the prompt and off for batches,
which is the better setting of each. Every case of every round runs one program right after the
other, so that a slow minute of the machine meets both. llama.cpp is built by build_llamacpp.sh.

A run counts only where it had the processors to itself: its processor time must be `--min-share` of
the wall time of its threads (loading the model, which one thread does, is a part of that).
Otherwise it is done again, up to `--tries` times, and then the best one counts. The share is
printed with every figure.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

CACHE = Path.home() / ".cache/pagedllm"
MODEL_NAME = "SmolLM2-135M-Instruct"
PROMPT_LEN = 512
DECODE_INPUT_LEN = 128
DECODE_OUTPUT_LEN = 128


@dataclass(frozen=True)
class Case:
    """One figure: tokens a second while reading a prompt, or while generating for a batch."""

    weights: str
    batch_size: int | None

    @property
    def title(self) -> str:
        """As it stands in the table."""
        return f"prefill of {PROMPT_LEN}" if self.batch_size is None else \
            f"decode, {self.batch_size} sequence{'s' * (self.batch_size > 1)}"


@dataclass
class Meter:
    """Runs programs and keeps the smallest share of the processors that one of them got."""

    threads: int
    share: float = 1.0

    def output_of(self, command: list) -> str:
        """stdout of a program that must succeed."""
        before, start = os.times(), time.monotonic()
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
        wall, after = time.monotonic() - start, os.times()
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\nfailed:\n{done.stderr[-2000:]}")
        used = (after.children_user - before.children_user
                + after.children_system - before.children_system)
        self.share = min(self.share, used / (wall * self.threads))
        return done.stdout


def llamacpp(args, meter: Meter, case: Case) -> float:
    """Tokens a second of llama.cpp."""
    model = args.models / f"{MODEL_NAME}.{case.weights}.gguf"
    if case.batch_size is None:
        text = meter.output_of([args.llamacpp / "llama-bench", "-m", model, "-p", PROMPT_LEN,
                          "-n", 0, "-t", args.threads, "-r", 2, "-fa", "on", "-o", "json"])
        return json.loads(text)[0]["avg_ts"]
    per_sequence = DECODE_INPUT_LEN + DECODE_OUTPUT_LEN
    text = meter.output_of([
        args.llamacpp / "llama-batched-bench", "-m", model, "-c", case.batch_size * per_sequence,
        "-npp", DECODE_INPUT_LEN, "-ntg", DECODE_OUTPUT_LEN, "-npl", case.batch_size,
        "-t", args.threads, "-fa", "on" if case.batch_size == 1 else "off",
        "--output-format", "jsonl"])
    rows = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return rows[-1]["speed_tg"]


def pagedllm(args, meter: Meter, case: Case) -> float:
    """Tokens a second of pagedllm: up to the first tokens, or from them to the last."""
    prompt_only = case.batch_size is None
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "latency.json"
        meter.output_of([args.pagedllm, "bench", "latency", "--model",
                         args.models / f"{MODEL_NAME}.{case.weights}.gguf", "--device", "cpu",
                         "--input-len", PROMPT_LEN if prompt_only else DECODE_INPUT_LEN,
                         "--output-len", 1 if prompt_only else DECODE_OUTPUT_LEN,
                         "--batch-size", case.batch_size or 1, "--num-iters", 2,
                         "--output-json", result])
        found = json.loads(result.read_text())
    return found["prefill_tokens_per_s" if prompt_only else "decode_tokens_per_s"]


def undisturbed(args, program, case: Case) -> tuple[float, float]:
    """Tokens a second and the share of the processors, of the first run that has enough of them."""
    runs = []
    for _ in range(args.tries):
        meter = Meter(args.threads)
        runs.append((program(args, meter, case), meter.share))
        if meter.share >= args.min_share:
            return runs[-1]
    return max(runs, key=lambda run: run[1])


def measure(args, cases: list[Case]) -> dict[tuple[Case, str], list[float]]:
    """All rounds; within a round every case runs each program in turn."""
    programs = {"llama.cpp": llamacpp}
    if args.pagedllm:
        programs["pagedllm"] = pagedllm
    found: dict[tuple[Case, str], list[float]] = {}
    for number in range(args.rounds):
        for case in cases:
            for name, program in programs.items():
                value, share = undisturbed(args, program, case)
                found.setdefault((case, name), []).append(value)
                print(f"round {number + 1} {case.weights} {case.title}: {name} {value:.1f} "
                      f"(share of the processors {share:.2f})", file=sys.stderr, flush=True)
    return found


def cell(found: dict, case: Case) -> str:
    """The median of each program and, in brackets, llama.cpp's lowest and highest."""
    peer = found[case, "llama.cpp"]
    text = f"{statistics.median(peer):.0f} ({min(peer):.0f} to {max(peer):.0f})"
    if own := found.get((case, "pagedllm")):
        quotient = statistics.median(own) / statistics.median(peer)
        text = f"{statistics.median(own):.0f} vs {text} = {quotient:.2f}x"
    return text


def table(found: dict, formats: list[str], batch_sizes: list[int | None]) -> str:
    """A Markdown table: one column a format, one row a case."""
    lines = ["| tokens/s | " + " | ".join(formats) + " |", "|---" * (len(formats) + 1) + "|"]
    for batch_size in batch_sizes:
        cells = [cell(found, Case(weights, batch_size)) for weights in formats]
        lines.append(f"| {Case('', batch_size).title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pagedllm", type=Path, help="the program; without it the peer alone runs")
    parser.add_argument("--llamacpp", type=Path, default=CACHE / "peers/llamacpp/bin")
    parser.add_argument("--models", type=Path, default=CACHE / "models")
    parser.add_argument("--formats", nargs="+", default=["F16", "Q8_0", "Q4_0"])
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--min-share", type=float, default=0.8)
    parser.add_argument("--tries", type=int, default=5)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    batch_sizes = [None, *args.batch_sizes]
    cases = [Case(weights, size) for weights in args.formats for size in batch_sizes]
    found = measure(args, cases)
    text = table(found, args.formats, batch_sizes)
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n")
    if args.json:
        rows = [{"weights": case.weights, "case": case.title, "program": name, "tokens_per_s": v}
                for (case, name), v in found.items()]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
