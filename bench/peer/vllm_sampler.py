"""Sampling by vLLM's CPU build, in this process: the case's prompts, new-tokens for each, nothing kept from one run to the next."""
import os

KV_GIB = "6"


class VllmSampler:
    """Offers what peer_hf.Side does of generate."""

    def __init__(self, case, args):
        # Read when vLLM is imported.
        os.environ |= {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_CPU_KVCACHE_SPACE": KV_GIB,
            "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1",
        }
        from vllm import LLM, SamplingParams

        width = case.width - case.response_width
        ids, mask = (case.batch[name][:, :width] for name in ("input_ids", "attention_mask"))
        self.prompts = [{"prompt_token_ids": row[kept.bool()].tolist()} for row, kept in zip(ids, mask)]
        self.sampling = SamplingParams(
            temperature=1.0, top_k=0, top_p=1.0, ignore_eos=True, detokenize=False,
            min_tokens=args.new_tokens, max_tokens=args.new_tokens,
        )
        self.engine = LLM(
            model=os.path.join(case.directory, "model"), skip_tokenizer_init=True, enable_prefix_caching=False,
            dtype={"fp32": "float32", "bf16": "bfloat16"}[args.dtype], max_model_len=width + args.new_tokens,
            max_num_seqs=len(self.prompts), disable_log_stats=True,
        )

    def generate(self):
        outputs = self.engine.generate(self.prompts, self.sampling, use_tqdm=False)
        return {"new_tokens": sum(len(output.outputs[0].token_ids) for output in outputs)}

    def operation(self, _name):
        return self.generate

    def close(self):
        del self.engine
