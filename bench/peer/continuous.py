"""Sampling by the continuous batching of transformers: the case's prompts, new-tokens for each."""
import torch
from transformers import GenerationConfig
from transformers.generation import ContinuousBatchingConfig

BLOCK = 32


class ContinuousSampler:
    """Keeps the batching thread over the measured runs, as a server would."""

    def __init__(self, model, case, count, device):
        width = case.width - case.response_width
        ids, mask = (case.batch[name][:, :width] for name in ("input_ids", "attention_mask"))
        self.prompts = [row[kept.bool()].tolist() for row, kept in zip(ids, mask)]
        self.count = count
        sampling = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=count, eos_token_id=-1, pad_token_id=0
        )
        # On a GPU it takes what is free; on a CPU it wants to be told: here what all prompts need at once.
        blocks = sum(-(-(len(prompt) + count) // BLOCK) + 1 for prompt in self.prompts)
        size = {} if device.startswith("cuda") else {"num_blocks": blocks, "max_batch_tokens": max(1024, len(self.prompts))}
        self.manager = model.eval().init_continuous_batching(
            generation_config=sampling, continuous_batching_config=ContinuousBatchingConfig(page_size=BLOCK, **size)
        )
        self.manager.start()

    @torch.no_grad()
    def generate(self):
        for prompt in self.prompts:
            self.manager.add_request(prompt, max_new_tokens=self.count)
        tokens = 0
        for _ in self.prompts:
            result = None
            while result is None:
                result = self.manager.get_result(timeout=1)
                if result is None and not self.manager.is_running():
                    raise RuntimeError("the thread of continuous batching has ended")
            if result.error:
                raise RuntimeError(result.error)
            tokens += len(result.generated_tokens)
        return {"new_tokens": tokens}

    def close(self):
        self.manager.stop(block=True)
