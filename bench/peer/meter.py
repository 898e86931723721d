"""Time, memory and the allocator, measured as bench/subject.mjs measures the core."""
import ctypes
import resource
import statistics
import time

import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4


def keep_freed_memory():
    """glibc gives nothing back to the system, as in the core's workers."""
    libc = ctypes.CDLL(None)
    for option, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, -1), (M_TOP_PAD, 1 << 26)):
        libc.mallopt(option, value)


class Memory:
    """Peak since creation: of the CUDA allocator, or of the resident set."""

    def __init__(self, device):
        self.cuda = device.startswith("cuda")
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            return
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")

    def peak_gb(self):
        if self.cuda:
            return torch.cuda.max_memory_allocated() / 1e9
        with open("/proc/self/status") as file:
            lines = [line for line in file if line.startswith("VmHWM")]
        peak = int(lines[0].split()[1]) if lines else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak * 1024 / 1e9


def measure(run, device, warmup, repeat):
    """seconds, seconds_all and peak_gb of `run`, and what its first call returned."""
    memory, seconds, first = Memory(device), [], None
    for i in range(warmup + repeat):
        start = time.perf_counter()
        out = run()
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        if i >= warmup:
            seconds.append(time.perf_counter() - start)
        first = out if first is None else first
    return first | {"seconds": statistics.median(seconds), "seconds_all": seconds, "peak_gb": memory.peak_gb()}


def checksum(values):
    """Mean, and the mean weighted by cos(index), which moves when a value lands on the wrong token."""
    values = values.double()
    weights = torch.cos(torch.arange(values.numel(), device=values.device, dtype=torch.double))
    return {"mean": values.mean().item(), "weighted": (values * weights).mean().item()}
