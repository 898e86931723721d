"""Loads adapters with PEFT and compares log-probs (or values), and merged weights, with Troupe's.

python3 peft_check.py CASES.json: a list of {model, adapter, merged, value, tokens: [[id]], expected: [[number]]}, where
expected holds the log-prob of tokens[i][t + 1] (or the value) at each place t. Prints the largest differences as JSON.
"""

import json
import sys
import warnings

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification


def outputs(model, case):
    rows = []
    for ids in case["tokens"]:
        logits = model(input_ids=torch.tensor([ids])).logits[0]
        if case["value"]:
            rows.append(logits[:-1, 0])
        else:
            log_probs = torch.log_softmax(logits[:-1], -1)
            rows.append(log_probs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0])
    return rows


def check(case):
    kind = AutoModelForTokenClassification if case["value"] else AutoModelForCausalLM
    options = {"dtype": torch.float32, "attn_implementation": "eager", "experts_implementation": "eager"}
    base = kind.from_pretrained(case["model"], **options)
    with warnings.catch_warnings():
        # PEFT only warns about keys that it misses or does not know.
        warnings.filterwarnings("error", message=".*(missing|unexpected).*keys.*")
        model = PeftModel.from_pretrained(base, case["adapter"]).eval()
    expected = [torch.tensor(row) for row in case["expected"]]
    difference = max((a - b).abs().max().item() for a, b in zip(outputs(model, case), expected))
    with model.disable_adapter():
        effect = max((a - b).abs().max().item() for a, b in zip(outputs(model, case), expected))
    merged = model.merge_and_unload().state_dict()
    ours = kind.from_pretrained(case["merged"], **options).state_dict()
    assert merged.keys() == ours.keys()
    weights = max((merged[name] - ours[name]).abs().max().item() for name in ours)
    return {"outputs": difference, "effect": effect, "weights": weights}


with torch.no_grad():
    print(json.dumps([check(case) for case in json.load(open(sys.argv[1]))]))
