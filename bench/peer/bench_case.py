"""What bench/make_case.mjs wrote, as tensors and models."""
import json
import os

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForTokenClassification


class BenchCase:
    def __init__(self, directory, device):
        self.directory = directory
        with open(os.path.join(directory, "case.json")) as file:
            self.meta = json.load(file)
        batch = load_file(os.path.join(directory, "batch.safetensors"))
        self.batch = {name: tensor.to(device) for name, tensor in batch.items()}
        mask = self.batch["attention_mask"].bool()
        self.rows, self.width = mask.shape
        self.response_width = self.batch["responses"].shape[1]
        self.lengths = mask.sum(-1).tolist()
        self.response_mask = self.batch["response_mask"].bool()
        self.tokens = {
            "valid_tokens": sum(self.lengths),
            "response_tokens": int(self.response_mask.sum()),
            "padded_tokens": mask.numel(),
        }

    def load(self, critic, dtype, device, attention):
        """The model in `dtype`, dropout off; the rotary tables stay float32."""
        config = AutoConfig.from_pretrained(os.path.join(self.directory, "model"))
        options = {"attn_implementation": attention, "dtype": torch.float32}
        if hasattr(config, "num_experts") or config.model_type == "nemotron_h":
            # transformers keeps the experts of a layer in one tensor, and puts the files' tensors together itself; of
            # Nemotron-H it calls them otherwise.
            if critic:
                raise ValueError("this model is timed as a policy only: --ops compute_log_prob,update_policy")
            model = AutoModelForCausalLM.from_pretrained(os.path.join(self.directory, "model"), **options)
        else:
            model = self.from_weights(config, critic, options)
        for parameter in model.parameters():
            parameter.data = parameter.data.to(dtype)
        return model.to(device).train()

    def from_weights(self, config, critic, options):
        if critic:
            config.num_labels, config.classifier_dropout = 1, 0.0
            model = AutoModelForTokenClassification.from_config(config, **options)
        else:
            model = AutoModelForCausalLM.from_config(config, **options)
        weights = load_file(os.path.join(self.directory, "model", "model.safetensors"))
        if critic:
            weights |= load_file(os.path.join(self.directory, "critic_head.safetensors"))
        found = model.load_state_dict(weights, strict=False)
        left = [n for n in found.missing_keys + found.unexpected_keys if n != "lm_head.weight"]
        if left:
            raise ValueError(f"{self.directory}: the weights do not fit the model at {left[:4]}")
        return model

    def row_groups(self, budget):
        """Rows whose padded sizes fit the budget together, at least one."""
        size = max(1, budget // self.width)
        return [list(range(i, min(i + size, self.rows))) for i in range(0, self.rows, size)]

    def packs(self, budget):
        """Rows whose valid tokens fit the budget together: first fit, the longest first."""
        bins = []
        for row in sorted(range(self.rows), key=lambda i: -self.lengths[i]):
            home = next((b for b in bins if sum(self.lengths[i] for i in b) + self.lengths[row] <= budget), None)
            if home is None:
                bins.append([row])
            else:
                home.append(row)
        return [sorted(b) for b in bins]
