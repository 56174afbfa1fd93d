"""Where the time of one step goes, kernel by kernel, by Nsight Compute.

    python3 benches/gpu/step_trace.py --program step_time --shape 8b --step 1,191,1 [--copy 4.27]

The step is `SEQUENCES,CONTEXT,TOKENS` of the benchmark `step_time`, issued kernel by kernel (no graph,
no overlap), so the sum is more than a step takes. Bytes are those that the device's memory moved;
`--copy` is the measured ceiling in TB/s that the last column divides by.
"""

import argparse
import csv
import re
import subprocess
import sys
from collections import defaultdict

METRICS = "gpu__time_duration.sum,dram__bytes.sum"
UNITS = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "byte": 1e-6, "Kbyte": 1e-3, "Mbyte": 1.0, "Gbyte": 1e3}


def launches(args) -> list[tuple[str, float, float]]:
    """Name, microseconds and megabytes of every launch of the second of two equal steps."""
    done = subprocess.run(
        ["ncu", "--clock-control", "none", "--csv", "--metrics", METRICS, args.program, args.shape,
         args.step], stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, list] = {}
    for row in csv.DictReader(line for line in done.stdout.splitlines() if line.startswith('"')):
        value = float(row["Metric Value"].replace(",", "")) * UNITS[row["Metric Unit"]]
        entry = found.setdefault(row["ID"], [row["Kernel Name"], 0.0, 0.0])
        entry[1 if row["Metric Name"].startswith("gpu__time") else 2] = value
    rows = [tuple(entry) for entry in found.values()]
    starts = [i for i, (name, _, _) in enumerate(rows) if name.startswith("unpack_step")]
    if len(starts) != 2:
        sys.exit(f"{len(starts)} steps were traced, not 2")
    return rows[starts[1]:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, help="the benchmark step_time")
    parser.add_argument("--shape", default="8b")
    parser.add_argument("--step", default="1,191,1")
    parser.add_argument("--copy", type=float, default=4.27)
    args = parser.parse_args()
    kernels = defaultdict(lambda: [0, 0.0, 0.0])
    for name, us, megabytes in launches(args):
        kernel = kernels[re.sub(r"^void |[<(].*$", "", name)]
        for i, value in enumerate((1, us, megabytes)):
            kernel[i] += value
    total = sum(us for _, us, _ in kernels.values())
    print(f"{args.shape}, step {args.step}: {total:.0f} us in kernels\n")
    print("| kernel | launches | us | share | MB | TB/s | of a copy |\n|" + "---|" * 7)
    for name, (count, us, megabytes) in sorted(kernels.items(), key=lambda item: -item[1][1]):
        rate = megabytes / us
        print(f"| {name} | {count} | {us:.0f} | {us / total:.1%} | {megabytes:.0f} | {rate:.2f} | "
              f"{rate / args.copy:.0%} |")


if __name__ == "__main__":
    main()
