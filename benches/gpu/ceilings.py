"""The two ceilings of a GPU that other figures are held against: a copy in its memory, and a product.

    python3 benches/gpu/ceilings.py

Prints bytes read plus written a second of a device-to-device copy of 4 GiB, and floating-point
operations a second of a bf16 product of 8192 x 8192 x 8192 of random numbers, medians of 20. Needs
torch with CUDA.
"""

import statistics

import torch

RUNS = 20


def seconds(work) -> float:
    """Median device time of `work`."""
    times = []
    for run in range(RUNS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        if run >= 3:
            times.append(start.elapsed_time(end) / 1e3)
    return statistics.median(times)


def main() -> None:
    source = torch.empty(4 << 30, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    copy = 2 * source.numel() / seconds(lambda: target.copy_(source))
    del source, target
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = 2 * 8192**3 / seconds(lambda: a @ b)
    print(f"{torch.cuda.get_device_name()}: copy {copy / 1e12:.2f} TB/s, "
          f"bf16 product {product / 1e12:.0f} TFLOP/s")


if __name__ == "__main__":
    main()
