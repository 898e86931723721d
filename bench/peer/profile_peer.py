"""Where the packed peer's time goes: torch's profiler (CUPTI on a GPU) over one compute_log_prob and one update_policy of a case."""
import needs  # noqa: F401  before what may not be there

import argparse

import torch
from torch.profiler import ProfilerActivity, profile

from bench_case import BenchCase
from peer_hf import DTYPES, Side

ROWS = 12


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="fp32", choices=list(DTYPES))
    parser.add_argument("--micro-tokens", type=int, default=16384)
    args = parser.parse_args()
    args.variant, args.threads, args.new_tokens = "packed", 0, 1
    cuda = args.device == "cuda"
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    side = Side(BenchCase(args.case, args.device), args, critic=False)
    for name in ("compute_log_prob", "update_policy"):
        run = side.operation(name)
        run()
        with profile(activities=kinds) as found:
            run()
            if cuda:
                torch.cuda.synchronize()
        key = "self_device_time_total" if cuda else "self_cpu_time_total"
        events = sorted(found.key_averages(), key=lambda event: -getattr(event, key))
        total = sum(getattr(event, key) for event in events)
        print(f"= {name}: {total / 1e3:.1f} ms in all")
        for event in events[:ROWS]:
            took = getattr(event, key)
            print(f"= {took / 1e3:9.2f} ms {100 * took / total:5.1f} % {event.count:6d} x {event.key[:90]}", flush=True)


if __name__ == "__main__":
    main()
