"""The LM head in plain PyTorch: log-probs of the targets and entropies from hidden states, a chunk of rows at a time.

No logits are kept: with gradients, a chunk's are formed in place while its logits are there, as the core does it.
"""
import needs  # noqa: F401  before what may not be there

import argparse
import json
import statistics
import time

import torch

from meter import keep_freed_memory
from peer_hf import CHUNK_BYTES, DTYPES


def outputs(logits, targets):
    normaliser = logits.logsumexp(-1)
    log_probs = logits.gather(-1, targets[:, None]).squeeze(-1) - normaliser
    return log_probs, normaliser - (logits.softmax(-1) * logits).sum(-1)


def forward(hidden, weight, targets, chunk):
    parts = [outputs((h @ weight.t()).float(), t) for h, t in zip(hidden.split(chunk), targets.split(chunk))]
    return [torch.cat(part) for part in zip(*parts)]


def backward(hidden, weight, targets, chunk, by_log_prob, by_entropy):
    parts = []
    by_hidden, by_weight = torch.empty_like(hidden), torch.zeros(weight.shape, device=weight.device)
    for i in range(0, len(targets), chunk):
        rows = slice(i, i + chunk)
        logits = (hidden[rows] @ weight.t()).float()
        log_p = logits.sub_(logits.logsumexp(-1, keepdim=True))
        p = log_p.exp()
        entropy = -(p * log_p).sum(-1, keepdim=True)
        parts.append((log_p.gather(-1, targets[rows, None]).squeeze(-1), entropy.squeeze(-1)))
        # d entropy / dz = -p (log p + entropy); d log_prob / dz = onehot - p
        by_logits = log_p.add_(entropy).mul_(-by_entropy[rows, None]).sub_(by_log_prob[rows, None]).mul_(p)
        by_logits.scatter_add_(1, targets[rows, None], by_log_prob[rows, None])
        by_logits = by_logits.to(hidden.dtype)
        by_hidden[rows] = by_logits @ weight
        by_weight += by_logits.t() @ hidden[rows]
    return [torch.cat(part) for part in zip(*parts)], by_hidden, by_weight


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("shape", help="TxHxV")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="fp32", choices=list(DTYPES))
    for name, value in {"threads": 0, "repeat": 3, "warmup": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    rows, width, vocabulary = map(int, args.shape.split("x"))
    dtype, device = DTYPES[args.dtype], args.device
    hidden = torch.randn(rows, width).to(device, dtype)
    weight = (0.04 * torch.randn(vocabulary, width)).to(device, dtype)
    targets = torch.randint(vocabulary, (rows,), device=device)
    gradients = torch.randn(rows, device=device), 0.01 * torch.randn(rows, device=device)
    chunk = max(64, int(CHUNK_BYTES[device.split(":")[0]] / 4 / vocabulary) // 64 * 64)
    runs = {
        "linear_log_prob": (1, lambda: forward(hidden, weight, targets, chunk)),
        "linear_log_prob_backward": (3, lambda: backward(hidden, weight, targets, chunk, *gradients)),
    }
    for op, (products, run) in runs.items():
        seconds = []
        for i in range(args.warmup + args.repeat):
            start = time.perf_counter()
            with torch.no_grad():
                run()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if i >= args.warmup:
                seconds.append(time.perf_counter() - start)
        line = {"peer": "hf", "variant": "chunked", "op": op, "shape": args.shape, "dtype": args.dtype, "device": device}
        line |= {"threads": args.threads, "seconds": statistics.median(seconds), "seconds_all": seconds}
        line |= {"valid_tokens": rows, "tflops": 2 * products * rows * width * vocabulary / line["seconds"] / 1e12}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
