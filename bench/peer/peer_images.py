"""Models that read images: makes one with its case, and times transformers on it.

    python peer_images.py make DIRECTORY --family qwen2_5_vl    model, prompts with an image each, responses
    python peer_images.py run DIRECTORY                         log-probs and an update, one JSON line each
"""
import needs  # noqa: F401  before what may not be there

import argparse
import json
import pathlib

import numpy as np
import torch
import transformers
from PIL import Image
from transformers.models.glm4v.image_processing_pil_glm4v import Glm4vImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from losses import policy_loss
from meter import checksum, keep_freed_memory, measure

IMAGE, START, END = 31997, 31998, 31999
TOKENS = dict(image_token_id=IMAGE, vision_start_token_id=START, vision_end_token_id=END, video_token_id=31996)
# The decoder of cpu-40m (bench/presets.mjs), and a quarter of the layers of published towers, half as wide.
DECODER = dict(
    vocab_size=32000,
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=2,
    max_position_embeddings=4096,
    bos_token_id=None,
    eos_token_id=None,
)
TOWER = dict(depth=8, hidden_size=640, num_heads=8, out_hidden_size=512)


def qwen2_vl():
    ropes = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    tower = dict(depth=8, embed_dim=640, num_heads=8, hidden_size=512, mlp_ratio=4, patch_size=14)
    config = transformers.Qwen2VLConfig(text_config=DECODER | {"rope_parameters": ropes}, vision_config=tower, **TOKENS)
    return transformers.Qwen2VLForConditionalGeneration, config


def qwen2_5_vl():
    ropes = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]}
    tower = TOWER | dict(intermediate_size=1712, patch_size=14, window_size=112, fullatt_block_indexes=[3, 7])
    config = transformers.Qwen2_5_VLConfig(text_config=DECODER | {"rope_parameters": ropes}, vision_config=tower, **TOKENS)
    return transformers.Qwen2_5_VLForConditionalGeneration, config


def qwen3_vl():
    ropes = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [12, 10, 10], "mrope_interleaved": True}
    tower = TOWER | dict(intermediate_size=2560, patch_size=16, num_position_embeddings=2304, deepstack_visual_indexes=[2, 5])
    text = DECODER | {"head_dim": 64, "rope_parameters": ropes}
    return transformers.Qwen3VLForConditionalGeneration, transformers.Qwen3VLConfig(text_config=text, vision_config=tower, **TOKENS)


def glm4v():
    ropes = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 6, 6], "partial_rotary_factor": 0.5}
    tower = TOWER | dict(intermediate_size=1712, patch_size=14, image_size=336)
    text = {key: value for key, value in DECODER.items() if key not in ("bos_token_id", "eos_token_id")}
    tokens = dict(image_token_id=IMAGE, image_start_token_id=START, image_end_token_id=END)
    config = transformers.Glm4vConfig(text_config=text | {"rope_parameters": ropes}, vision_config=tower, **tokens)
    return transformers.Glm4vForConditionalGeneration, config


FAMILIES = {"qwen2_vl": qwen2_vl, "qwen2_5_vl": qwen2_5_vl, "qwen3_vl": qwen3_vl, "glm4v": glm4v}


def processor(family, patch, size):
    # That of GLM-4.1V counts the pixels of both frames of a patch.
    kind, frames = (Glm4vImageProcessorPil, 2) if family == "glm4v" else (Qwen2VLImageProcessorPil, 1)
    pixels = {"shortest_edge": frames * size * size, "longest_edge": frames * size * size}
    return kind(patch_size=patch, temporal_patch_size=2, merge_size=2, size=pixels)


def make(args):
    torch.manual_seed(0)
    kind, config = FAMILIES[args.family]()
    model = kind(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Norms stay what they are, so that activations keep their size.
            if parameter.dim() > 1:
                parameter.normal_(0, 0.04)
    model.save_pretrained(args.directory / "model")
    patch = config.vision_config.patch_size
    processor(args.family, patch, args.size).save_pretrained(args.directory / "model")
    random = np.random.default_rng(0)
    words = lambda count: random.integers(0, 31000, count).tolist()
    tokens = (args.size // (2 * patch)) ** 2
    prompts = [words(20) + [START] + [IMAGE] * tokens + [END] + words(20) for _ in range(args.count)]
    responses = [words(args.response) for _ in prompts]
    random.integers(0, 256, (args.count, args.size, args.size, 3), np.uint8).tofile(args.directory / "images.bin")
    advantages = random.normal(0, 1, args.count * args.response).tolist()
    case = dict(family=args.family, size=args.size, patch=patch, prompts=prompts, responses=responses, advantages=advantages)
    (args.directory / "case.json").write_text(json.dumps(case))


def run(args):
    case = json.loads((args.directory / "case.json").read_text())
    kind, _ = FAMILIES[case["family"]]()
    model = kind.from_pretrained(args.directory / "model", dtype=torch.float32, attn_implementation="sdpa")
    size, count = case["size"], len(case["prompts"])
    images = np.fromfile(args.directory / "images.bin", np.uint8).reshape(count, size, size, 3)
    pixels = processor(case["family"], case["patch"], size)([Image.fromarray(image) for image in images], return_tensors="pt")
    ids = torch.tensor([p + r for p, r in zip(case["prompts"], case["responses"])])
    given = dict(input_ids=ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=(ids == IMAGE).int(), **pixels)
    labels, first = torch.tensor(case["responses"]), len(case["prompts"][0])

    def log_probs():
        model.model.rope_deltas = None
        hidden = model.model(**given, use_cache=False).last_hidden_state[:, first - 1 : -1]
        logits = model.lm_head(hidden)
        return logits.gather(-1, labels[..., None]).squeeze(-1) - logits.logsumexp(-1)

    def compute_log_prob():
        with torch.no_grad():
            return {"checksum": checksum(log_probs().flatten())}

    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.01, fused=True)
    with torch.no_grad():
        old = {"old_log_probs": log_probs(), "advantages": torch.tensor(case["advantages"]).view(labels.shape)}

    def update_policy():
        optimizer.zero_grad()
        policy_loss(log_probs(), old).mean().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"grad_norm": norm.item()}

    for op in (compute_log_prob, update_policy):
        print(json.dumps({"op": op.__name__, **measure(op, "cpu", args.warmup, args.repeat)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["make", "run"])
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--family", choices=list(FAMILIES), default="qwen2_5_vl")
    for name, value in {"size": 448, "count": 8, "response": 128, "threads": 2, "repeat": 3, "warmup": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    make(args) if args.command == "make" else run(args)


main()
