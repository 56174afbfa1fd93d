"""Time of a token event through the Rust API, the C library and the bindings, without a model.

    python3 benches/ffi/overhead.py [--rounds 7] [--only rust,c]

Builds the library with the feature `test-executor`, whose steps take no time, and runs each program
in turn, `rounds` times over. A program takes MODEL OPTIONS STREAMS TOKENS and prints, as JSON, the
tokens that it has seen and the time from the first request to the last event.
"""

import argparse
import json
import os
import pathlib
import shutil
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
PROFILE = os.environ.get("PROFILE", "release")
# A folder of its own: nobody shall take this library for the one that is shipped.
LIBRARY = TARGET / "test-executor"
MODEL = f"test-executor:{ROOT / 'tests/golden/tiny/llama'}"
# Streams, tokens of each, options.
CASES = [
    (1, 100_000, {"max-model-len": 100_016, "max-num-seqs": 1}),
    (10_000, 16, {"max-model-len": 32, "max-num-seqs": 10_000, "max-num-queued-reqs": 10_000}),
]


BUILD = ["cargo", "build", "--profile", PROFILE, "--package", "pagedllm-ffi"]


def build():
    subprocess.run([*BUILD, "--features", "test-executor"], cwd=ROOT, check=True)
    LIBRARY.mkdir(parents=True, exist_ok=True)
    for name in ("libpagedllm.so", "libpagedllm.so.1"):
        shutil.copy(TARGET / PROFILE / "libpagedllm.so", LIBRARY / name)


def rust():
    cargo = ["cargo", "bench", "--no-run", "--message-format=json", "--package", "pagedllm-ffi"]
    lines = subprocess.run(
        [*cargo, "--features", "test-executor", "--bench", "overhead", "--profile", PROFILE],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.splitlines()
    artifacts = (json.loads(line) for line in lines)
    return [next(a["executable"] for a in artifacts if a.get("executable"))]


def c():
    program = LIBRARY / "overhead-c"
    subprocess.run(
        ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}",
         ROOT / "benches/ffi/overhead.c", "-o", program, f"-L{LIBRARY}", "-lpagedllm"],
        check=True,
    )
    return [program]


def go():
    program = LIBRARY / "overhead-go"
    subprocess.run(
        ["go", "build", "-o", program, "./bench"], check=True, cwd=ROOT / "bindings/go",
        env=dict(os.environ, CGO_LDFLAGS=f"-L{LIBRARY}"),
    )
    return [program]


def node():
    install = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
    subprocess.run(install, check=True, cwd=ROOT / "bindings/node")
    return ["node", ROOT / "bindings/node/bench/overhead.js"]


def python():
    program = ROOT / "bindings/python/bench/overhead.py"
    return ["env", f"PYTHONPATH={ROOT / 'bindings/python'}", "python3", program]


# Each makes its program and gives the command line that runs it.
PROGRAMS = {"rust": rust, "c": c, "go": go, "node": node, "python": python}


def run(command, case):
    streams, tokens, options = case
    environment = dict(
        os.environ, LD_LIBRARY_PATH=str(LIBRARY), PAGEDLLM_LIBRARY=str(LIBRARY / "libpagedllm.so")
    )
    arguments = [MODEL, json.dumps(options), str(streams), str(tokens)]
    output = subprocess.run(
        [*command, *arguments], env=environment, check=True, capture_output=True, text=True
    ).stdout
    result = json.loads(output)
    assert result["tokens"] == streams * tokens, result
    return [result[time] / result["tokens"] * 1e9 for time in ("wall_s", "cpu_s")]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default=",".join(PROGRAMS))
    args = parser.parse_args()
    build()
    commands = {name: PROGRAMS[name]() for name in args.only.split(",")}
    # What is linked from the usual folder is the usual library again.
    subprocess.run(BUILD, cwd=ROOT, check=True)
    times = {(name, case[0]): [] for name in commands for case in CASES}
    for _ in range(args.rounds):
        for case in CASES:
            for name, command in commands.items():
                times[name, case[0]].append(run(command, case))
    print("ns per token event: median (least, most) of the wall clock, median of processor time")
    print("| | " + " | ".join(f"{case[0]:,} x {case[1]:,} tokens | cpu" for case in CASES) + " |")
    print("|---|" + "---|---|" * len(CASES))
    for name in commands:
        cells = []
        for case in CASES:
            wall, cpu = zip(*times[name, case[0]])
            middle = statistics.median
            cells.append(f"{middle(wall):,.0f} ({min(wall):,.0f}, {max(wall):,.0f})")
            cells.append(f"{middle(cpu):,.0f}")
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
