"""Serving load on made-up weights: time to ready, then requests a second and time to first token.

    python3 benches/gpu/serving.py --program target/release/pagedllm
    python3 benches/gpu/serving.py --program pagedllm --shape benches/shapes/llama-3.2-1b
    python3 benches/gpu/serving.py ... --only together,shared -- --max-num-batched-tokens 8192

What follows `--` goes to `pagedllm serve`. The load comes from `pagedllm bench serve`, which is the
same program, so nothing but the standard library is needed here. Prompts are token ids, 16 to 300 of
them where nothing else is said; answers are greedy and 128 tokens long, past any end token.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
READY_LIMIT_S = 300
POLL_S = 0.005


@dataclass(frozen=True)
class Run:
    """One load: how many in flight, and what the prompts look like."""

    name: str
    in_flight: int
    input_len: str = "16..300"
    prefix_len: int = 0
    stream: bool = True


RUNS = (
    Run("together", 50),
    Run("together-plain", 50, stream=False),
    Run("few", 5),
    Run("few-plain", 5, stream=False),
    Run("shared", 50, prefix_len=2048),
    Run("distinct", 50, input_len="2064..2348"),
)


def ready(url: str) -> bool:
    """Whether the server answers its probe."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=1) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def start(args, url: str, log) -> tuple[subprocess.Popen, float]:
    """Starts the server; the process, and seconds from its start until it was ready."""
    command = [args.program, "serve", args.shape, "--load-format", "dummy",
               "--skip-tokenizer-init", "--device", args.device, "--host", "127.0.0.1",
               "--port", str(args.port), "--disable-log-stats", *args.serve]
    print("$", " ".join(command), flush=True)
    begun = time.perf_counter()
    server = subprocess.Popen(command, stderr=log)
    while not ready(url):
        if server.poll() is not None:
            sys.exit(f"the server ended with {server.returncode}; see {log.name}")
        if time.perf_counter() - begun > READY_LIMIT_S:
            server.kill()
            sys.exit(f"the server was not ready after {READY_LIMIT_S} s")
        time.sleep(POLL_S)
    return server, time.perf_counter() - begun


def measure(args, url: str, run: Run, seed: int, vocab_size: int, folder: Path) -> dict:
    """One run of the load program: its figures."""
    result = folder / f"{run.name}.json"
    count = args.requests_few if run.in_flight < 10 else args.requests
    command = [args.program, "bench", "serve", "--base-url", url, "--num-prompts", str(count),
               "--max-concurrency", str(run.in_flight), "--num-warmups", str(run.in_flight),
               "--random-input-len", run.input_len, "--random-output-len", str(args.output_len),
               "--random-prefix-len", str(run.prefix_len), "--token-ids",
               "--vocab-size", str(vocab_size), f"--stream={str(run.stream).lower()}",
               "--random-seed", str(seed), "--output-json", str(result)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the load failed: {' '.join(command)}")
    return json.loads(result.read_text())


def gpu_metrics(url: str) -> list[str]:
    """What the server says about the GPU."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [line for line in lines if line.startswith("pagedllm:gpu_")]


def arguments() -> argparse.Namespace:
    """The command line; what follows `--` is the server's."""
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, serve = sys.argv[1:split], sys.argv[split + 1:]
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="target/release/pagedllm")
    parser.add_argument("--shape", default=str(HERE.parent / "shapes/llama-3.1-8b"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--port", type=int, default=8137)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--requests-few", type=int, default=100, help="for runs of 5 in flight")
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--only", default="", help="names of runs, with commas; default: all")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    args = parser.parse_args(own)
    args.serve = serve
    return args


def main() -> None:
    args = arguments()
    wanted = [name for name in args.only.split(",") if name]
    unknown = set(wanted) - {run.name for run in RUNS}
    if unknown:
        sys.exit(f"--only: there is no {', '.join(sorted(unknown))}")
    vocab_size = json.loads((Path(args.shape) / "config.json").read_text())["vocab_size"]
    url = f"http://127.0.0.1:{args.port}"
    folder = Path(tempfile.mkdtemp(prefix="pagedllm-serving-"))
    results = []
    with open(folder / "server.log", "w+", encoding="utf-8") as log:
        server, seconds = start(args, url, log)
        try:
            print(f"exec to ready: {seconds:.2f} s")
            log.seek(0)
            print(log.read().strip())
            print("\n".join(gpu_metrics(url)), flush=True)
            print("| run | in flight | requests | requests/s | tokens/s | TTFT p50, ms | "
                  "TTFT p99 | TPOT p50 | failed |\n|" + "---|" * 9)
            for seed, run in enumerate(RUNS, start=1):
                if wanted and run.name not in wanted:
                    continue
                found = measure(args, url, run, seed, vocab_size, folder)
                results.append({"run": run.name, "in_flight": run.in_flight, **found})
                ttft = [f"{found[key]:.1f}" if key in found else "-" for key in
                        ("median_ttft_ms", "p99_ttft_ms", "median_tpot_ms")]
                print(f"| {run.name} | {run.in_flight} | {found['completed']} | "
                      f"{found['request_throughput']:.2f} | {found['output_throughput']:.0f} | "
                      f"{' | '.join(ttft)} | {found['failed']} |", flush=True)
            print("\n".join(gpu_metrics(url)))
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
    if args.output:
        figures = {"shape": args.shape, "ready_s": seconds, "serve": args.serve, "runs": results}
        args.output.write_text(json.dumps(figures, indent=1) + "\n")
    if any(result["failed"] for result in results):
        sys.exit("some requests failed")


if __name__ == "__main__":
    main()
