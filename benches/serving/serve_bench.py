"""Benchmark of a server that speaks /v1/completions: pagedllm, llama-server or vLLM alike.

    python serve_bench.py --base-url http://127.0.0.1:8000 --model NAME
    python serve_bench.py ... --mode ratio     # 500 requests, 50 in flight against one at a time
    python serve_bench.py ... --in-flight 1 8 32 50 --output result.json

Traffic: prompts of 16 to 300 tokens, 128 tokens out past any end token, streamed, greedy, the same
list for every server. One line for each number in flight; times are in milliseconds.
"""

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path

import client
import traffic


def percentile(values: list[float], part: float) -> float:
    """The value below which `part` of `values` lie; 0 of an empty list."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


def summary(in_flight: int, wall_s: float, answers: list[client.Answer]) -> dict:
    """The figures of one run."""
    good = [answer for answer in answers if not answer.error]
    firsts = [answer.first * 1e3 for answer in good]
    gaps = [gap * 1e3 for answer in good for gap in answer.gaps]
    # A server may send several tokens in one event: the time per token comes from the counts.
    per_token = [(a.total - a.first) * 1e3 / (a.output_tokens - 1) for a in good
                 if a.output_tokens > 1]
    output_tokens = sum(answer.output_tokens for answer in good)
    return {
        "in_flight": in_flight, "requests": len(answers), "failed": len(answers) - len(good),
        "wall_s": round(wall_s, 3),
        "prompt_tokens": sum(answer.prompt_tokens for answer in good),
        "output_tokens": output_tokens,
        "requests_per_s": round(len(good) / wall_s, 3),
        "output_tokens_per_s": round(output_tokens / wall_s, 1),
        "ttft_ms_p50": round(percentile(firsts, 0.5), 1),
        "ttft_ms_p99": round(percentile(firsts, 0.99), 1),
        "itl_ms_p50": round(percentile(gaps, 0.5), 2),
        "itl_ms_p99": round(percentile(gaps, 0.99), 2),
        "tpot_ms_mean": round(statistics.fmean(per_token), 2) if per_token else 0.0,
        "e2e_ms_p50": round(percentile([a.total * 1e3 for a in good], 0.5), 1),
    }


COLUMNS = (("in_flight", "in flight"), ("output_tokens_per_s", "tok/s"),
           ("requests_per_s", "req/s"), ("ttft_ms_p50", "TTFT p50"), ("ttft_ms_p99", "TTFT p99"),
           ("itl_ms_p50", "ITL p50"), ("itl_ms_p99", "ITL p99"), ("tpot_ms_mean", "TPOT"),
           ("failed", "failed"))


def table_row(cells) -> str:
    """One row of a Markdown table."""
    return "| " + " | ".join(f"{cell}" for cell in cells) + " |"


async def measure(target: client.Target, requests: list[traffic.Request], in_flight: int) -> dict:
    """One run; failures are named on stderr."""
    wall_s, answers = await client.run(target, requests, in_flight)
    for answer in [answer for answer in answers if answer.error][:3]:
        print(f"failed: {answer.error}", file=sys.stderr)
    return summary(in_flight, wall_s, answers)


async def sweep(args, target: client.Target) -> list[dict]:
    """One run for each number in flight; each gets requests of its own, so no prefix is known."""
    print(table_row(title for _, title in COLUMNS))
    print(table_row("---" for _ in COLUMNS))
    results = []
    for in_flight in args.in_flight:
        count = args.requests or max(4 * in_flight, 12)
        requests = traffic.requests_of(count, args.seed + in_flight, tuple(args.input_len),
                                       args.output_len, args.shared_prefix)
        results.append(await measure(target, requests, in_flight))
        print(table_row(results[-1][key] for key, _ in COLUMNS), flush=True)
    return results


async def ratio(args, target: client.Target) -> list[dict]:
    """The same requests together and one at a time. Prompts repeat, so the server's prefix cache
    must be off, or the second run is given what the first has left; the salt sees to that."""
    count = args.requests or 500
    together = max(args.in_flight)
    requests = traffic.requests_of(count, args.seed, tuple(args.input_len), args.output_len,
                                   args.shared_prefix)
    results = []
    for in_flight in (together, 1):
        target.extra["cache_salt"] = f"ratio {args.seed} {in_flight}"
        results.append(await measure(target, requests, in_flight))
        print(json.dumps(results[-1]), flush=True)
    quotient = results[0]["requests_per_s"] / max(results[1]["requests_per_s"], 1e-9)
    print(f"ratio: {quotient:.2f} ({together} in flight against one at a time, {count} requests)")
    return results


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", required=True, help="the name that the server serves")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--mode", choices=["sweep", "ratio"], default="sweep")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[1, 8, 32, 50])
    parser.add_argument("--requests", type=int, default=0, help="for each run; 0: by in-flight")
    parser.add_argument("--input-len", type=int, nargs=2, default=[16, 300])
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--shared-prefix", type=int, default=0, help="tokens that all share")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--extra-body", type=json.loads, default={}, help="JSON, into each body")
    parser.add_argument("--output", type=Path, help="write the figures as JSON")
    return parser.parse_args()


async def main() -> None:
    args = arguments()
    target = client.Target(args.base_url.rstrip("/"), args.model, args.api_key, args.extra_body)
    warm_up = traffic.requests_of(2, args.seed + 10_000, (16, 32), 8)
    await measure(target, warm_up, 2)
    results = await (sweep if args.mode == "sweep" else ratio)(args, target)
    if args.output:
        args.output.write_text(json.dumps({"mode": args.mode, "seed": args.seed,
                                           "runs": results}, indent=1) + "\n")
    if any(result["failed"] for result in results):
        sys.exit("some requests failed")


if __name__ == "__main__":
    asyncio.run(main())
