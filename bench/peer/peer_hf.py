"""The operations of the core in plain PyTorch and Hugging Face, on a case of bench/make_case.mjs: one JSON line each.

padded    rows with their padding, attention with a mask, logits of all response positions at once
packed    no padding, rows packed up to the token budget, the head on response positions only and in chunks; in an update the
          gradient of a chunk is formed while its logits are there
compile   packed, with torch.compile on every decoder layer and on the head
"""
import needs  # noqa: F401  before what may not be there

import argparse
import json
import time

import torch

import losses
from bench_case import BenchCase
from continuous import ContinuousSampler
from meter import checksum, keep_freed_memory, measure
from packed_attention import NAME as PACKED
from vllm_sampler import VllmSampler

ACTOR = ["compute_log_prob", "compute_log_prob_entropy", "generate", "update_policy"]
CRITIC = ["compute_values", "update_critic"]
# Generation wants a cache, which the packed kernel has not; continuous batching does nothing else.
GENERATING = ("padded", "continuous", "vllm")
SAMPLING_ONLY = ("continuous", "vllm")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Logits of a chunk: about 64 MB of float32 on a CPU, 2 GB on a GPU.
CHUNK_BYTES = {"cpu": 64e6, "cuda": 2e9}


class Optimizer:
    """AdamW over float32 masters; in bfloat16 the model holds copies."""

    def __init__(self, model, device):
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        own = self.parameters[0].dtype == torch.float32
        self.masters = self.parameters if own else [p.detach().float().requires_grad_() for p in self.parameters]
        self.adamw = torch.optim.AdamW(self.masters, lr=1e-6, weight_decay=0.01, fused=True)

    def step(self):
        if self.masters is not self.parameters:
            for master, parameter in zip(self.masters, self.parameters):
                master.grad, parameter.grad = parameter.grad.float(), None
        norm = torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        if self.masters is not self.parameters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)
        return norm.item()


class Side:
    def __init__(self, case, args, critic):
        self.case, self.args, self.critic = case, args, critic
        self.padded = args.variant in GENERATING
        self.model = case.load(critic, DTYPES[args.dtype], args.device, "sdpa" if self.padded else PACKED)
        self.trunk = self.model.model
        self.head = self.model.score if critic else self.model.lm_head
        self.optimizer = None
        self.sampler = (
            ContinuousSampler(self.model, case, args.new_tokens, args.device) if args.variant == "continuous" else None
        )
        self.rows_fn = losses.value_rows if critic else losses.log_prob_rows
        if args.variant == "compile":
            for layer in self.trunk.layers:
                layer.compile(dynamic=True)
            self.rows_fn = torch.compile(self.rows_fn, dynamic=True)

    # ---- forward ----
    def micro_batches(self):
        """(hidden states of the positions that predict a response token [N, H], their place in [rows, R]) one by one."""
        case, batch = self.case, self.case.batch
        budget, width = self.args.micro_tokens, case.response_width
        if self.padded:
            for rows in case.row_groups(budget):
                hidden = self.trunk(
                    input_ids=batch["input_ids"][rows],
                    attention_mask=batch["attention_mask"][rows],
                    position_ids=batch["position_ids"][rows],
                    use_cache=False,
                ).last_hidden_state
                where = torch.zeros_like(case.response_mask)
                where[rows] = True
                yield hidden[:, -width - 1 : -1].reshape(-1, hidden.shape[-1]), where.nonzero(as_tuple=True)
            return
        for rows in case.packs(budget):
            valid = batch["attention_mask"][rows].bool()
            offsets = [0]
            for row in rows:
                offsets.append(offsets[-1] + case.lengths[row])
            cu_seqlens = torch.tensor(offsets, dtype=torch.int32, device=valid.device)
            hidden = self.trunk(
                input_ids=batch["input_ids"][rows][valid][None],
                position_ids=batch["position_ids"][rows][valid][None],
                use_cache=False,
                packing=(cu_seqlens, offsets, max(b - a for a, b in zip(offsets, offsets[1:]))),
            ).last_hidden_state[0]
            # Row r's response token t is predicted one place before its own.
            place = torch.full(valid.shape, -1, dtype=torch.long, device=valid.device)
            place[valid] = torch.arange(offsets[-1], device=valid.device)
            mask = case.response_mask[rows]
            row, column = mask.nonzero(as_tuple=True)
            positions = place[:, -width - 1 : -1][mask]
            yield hidden[positions], (torch.tensor(rows, device=valid.device)[row], column)

    def chunks(self, count):
        vocabulary = 1 if self.critic else self.head.out_features
        size = CHUNK_BYTES[self.args.device.split(":")[0]] / 4 / vocabulary
        step = count if self.padded else max(64, int(size) // 64 * 64)
        return [slice(i, min(i + step, count)) for i in range(0, count, step)]

    def rows(self, hidden, where, entropy):
        labels = self.case.batch["responses"][where]
        return self.rows_fn(hidden, self.head, labels, entropy)

    # ---- operations ----
    @torch.no_grad()
    def infer(self, entropy=False):
        outputs = [torch.zeros(self.case.response_mask.shape, device=self.args.device) for _ in range(1 + entropy)]
        for hidden, where in self.micro_batches():
            for chunk in self.chunks(hidden.shape[0]):
                part = tuple(index[chunk] for index in where)
                for output, values in zip(outputs, self.rows(hidden[chunk], part, entropy)):
                    output[part] = values.float()
        sums = [checksum(output[self.case.response_mask]) for output in outputs]
        return dict(zip(("checksum", "entropy_checksum"), sums))

    def update(self):
        self.optimizer = self.optimizer or Optimizer(self.model, self.args.device)
        batch, total = self.case.batch, 0.0
        loss_of = losses.value_loss if self.critic else losses.policy_loss
        for hidden, where in self.micro_batches():
            inputs = hidden.detach().requires_grad_()
            for chunk in self.chunks(hidden.shape[0]):
                part = tuple(index[chunk] for index in where)
                rows = self.rows(inputs[chunk], part, False)[0].float()
                old = {name: batch[name][part] for name in ("old_log_probs", "advantages", "values", "returns")}
                terms = loss_of(rows, old) * self.case.response_mask[part]
                loss = terms.sum() / self.case.tokens["response_tokens"]
                loss.backward()
                total += loss.item()
            hidden.backward(inputs.grad)
        return {"loss": total, "grad_norm": self.optimizer.step()}

    @torch.no_grad()
    def generate(self):
        case, count = self.case, self.args.new_tokens
        width = case.width - case.response_width
        ids, mask = (case.batch[name][:, :width] for name in ("input_ids", "attention_mask"))
        self.model.eval()
        out = self.model.generate(
            input_ids=ids, attention_mask=mask, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=count, max_new_tokens=count, pad_token_id=case.meta["pad_token_id"],
        )
        self.model.train()
        return {"new_tokens": (out.shape[1] - width) * case.rows}

    def close(self):
        if self.sampler:
            self.sampler.close()

    def operation(self, name):
        return {
            "compute_log_prob": self.infer,
            "compute_log_prob_entropy": lambda: self.infer(True),
            "update_policy": self.update,
            "compute_values": self.infer,
            "update_critic": self.update,
            "generate": self.sampler.generate if self.sampler else self.generate,
        }[name]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case")
    parser.add_argument("--variant", default="packed", choices=["padded", "packed", "compile", "continuous", "vllm"])
    parser.add_argument("--ops", default=",".join(ACTOR + CRITIC))
    parser.add_argument("--dtype", default="fp32", choices=list(DTYPES))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--malloc", default="default", choices=["default", "keep"])
    for name, value in {"threads": 0, "repeat": 3, "warmup": 1, "micro-tokens": 4096, "new-tokens": 64}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    if args.malloc == "keep":
        keep_freed_memory()
    if args.threads:
        torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    start = time.perf_counter()
    case = BenchCase(args.case, args.device)
    wanted = args.ops.split(",")
    for critic, names in ((False, ACTOR), (True, CRITIC)):
        names = [
            n for n in names
            if n in wanted and (args.variant in GENERATING if n == "generate" else args.variant not in SAMPLING_ONLY)
        ]
        if not names:
            continue
        side = VllmSampler(case, args) if args.variant == "vllm" else Side(case, args, critic)
        startup = time.perf_counter() - start
        for name in names:
            line = {"peer": "hf", "variant": args.variant, "op": name, "device": args.device, "dtype": args.dtype}
            line |= {"threads": args.threads, "malloc": args.malloc, "torch": torch.__version__, "startup": startup}
            line |= case.tokens
            try:
                line |= measure(side.operation(name), args.device, args.warmup, args.repeat)
            except (RuntimeError, torch.OutOfMemoryError) as error:
                line["error"] = str(error).split("\n")[0]
            print(json.dumps(line), flush=True)
        side.close()
        del side


if __name__ == "__main__":
    main()
