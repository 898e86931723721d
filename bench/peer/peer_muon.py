"""Steps of torch.optim.Muon, which are in bfloat16, on matrices of the given shapes: peer_muon.py THREADS ROUNDS 1024x2816 ...

Prints one JSON line: seconds of each step, and those of the products of one step alone in bfloat16 and in float32.
"""
import json
import sys
import time

import torch


def products(shapes, dtype):
    """Seconds of the matrix products of five iterations."""
    made = []
    for rows, columns in shapes:
        m, n = sorted((rows, columns))
        made.append((torch.randn(m, n, dtype=dtype), torch.randn(n, m, dtype=dtype), torch.randn(m, m, dtype=dtype)))
    for attempt in range(2):
        start = time.perf_counter()
        for x, xt, gram in made:
            for _ in range(5):
                x @ xt
                gram @ gram
                gram @ x
        seconds = time.perf_counter() - start
    return seconds


def main():
    threads, rounds, *names = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    shapes = [tuple(map(int, name.split("x"))) for name in names]
    parameters = [torch.nn.Parameter(torch.randn(shape) * 0.02) for shape in shapes]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.Muon(parameters, lr=1e-3)
    seconds = []
    for _ in range(int(rounds) + 1):
        start = time.perf_counter()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    print(json.dumps({
        "seconds": seconds[1:],
        "bfloat16": products(shapes, torch.bfloat16),
        "float32": products(shapes, torch.float32),
    }))


main()
