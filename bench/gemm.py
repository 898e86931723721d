"""Measures the fp32/bf16 matrix-multiplication rate of this machine: one JSON line per shape MxKxN."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "peer"))

import needs

needs.only("torch")  # before what may not be there

import argparse
import json
import statistics
import time

import torch

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def seconds_of(m, k, n, dtype, device, repeat):
    a, b = torch.randn(m, k, dtype=dtype, device=device), torch.randn(n, k, dtype=dtype, device=device)
    out = torch.empty(m, n, dtype=dtype, device=device)
    times = []
    for i in range(repeat + 2):  # two warm-up runs
        start = time.perf_counter()
        torch.mm(a, b.t(), out=out)
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times[2:])


def shape_of(text):
    sizes = text.split("x")
    if len(sizes) != 3 or not all(size.isdecimal() and int(size) > 0 for size in sizes):
        raise argparse.ArgumentTypeError(f"expected MxKxN, such as 2048x512x1536, got {text}")
    return tuple(map(int, sizes))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shapes", nargs="+", type=shape_of, help="MxKxN: [M, K] times the transpose of [N, K]")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--dtype", default="fp32", choices=list(DTYPES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeat", type=int, default=7)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    for m, k, n in args.shapes:
        seconds = seconds_of(m, k, n, DTYPES[args.dtype], args.device, args.repeat)
        print(json.dumps({"shape": f"{m}x{k}x{n}", "seconds": seconds, "tflops": 2 * m * k * n / seconds / 1e12}), flush=True)


if __name__ == "__main__":
    main()
