"""Compares python/verl_dataset.py with the verl that is installed: attributes and rows of data sets, on the same files, and rows that are refused."""

import contextlib
import copy
import io
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../python"))
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    import datasets
    from omegaconf import OmegaConf
    from verl.utils.dataset.rl_dataset import RLHFDataset as Theirs

    from verl_dataset import RLHFDataset as Ours

datasets.disable_progress_bars()
# A tensor that verl needs, and the column in which it makes the messages of raw_prompt.
WITHOUT = ("dummy_tensor", "prompt")


class Processor:
    "verl asks for one where rows have images, and uses none of it."


def rows(count, pictures):
    for i in range(count):
        yield {
            "data_source": "sums",
            "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "%d<image>and<image>" % i if pictures else "what is %d" % i}],
            "ability": "math",
            "reward_model": {"ground_truth": str(i), "style": "rule"},
            "extra_info": {"index": i, "tools_kwargs": {"t": {"create_kwargs": {"a": i}}}} if i % 3 else None,
            **({"images": ["a%d.png" % i, "b.png"], "videos": None} if pictures else {}),
        }


def made(kind, files, config, max_samples, processor):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return kind(data_files=list(files), tokenizer=None, config=OmegaConf.create(config), processor=processor, max_samples=max_samples)


def outcome(dataset, i):
    try:
        row = dataset[i]
    except (AssertionError, ValueError):
        return "refused"
    return {key: value for key, value in row.items() if key not in WITHOUT}


def attributes(dataset):
    found = {key: value for key, value in vars(dataset).items() if key not in ("dataframe", "config", "num_workers", "image_patch_size")}
    return {key: value for key, value in found.items() if not key.startswith("_")}


count = 0
with tempfile.TemporaryDirectory() as directory:
    files = {}
    for pictures in (False, True):
        for end in ("parquet", "jsonl"):
            path = os.path.join(directory, "%s.%s" % (pictures, end))
            data = datasets.Dataset.from_list(list(rows(40, pictures)))
            data.to_parquet(path) if end == "parquet" else data.to_json(path)
            files[pictures, end] = path
    bad = os.path.join(directory, "bad.jsonl")
    with open(bad, "w") as out:
        for images in ([], ["a.png"], ["a.png", "b.png", "c.png"]):
            out.write(json.dumps({**next(rows(1, True)), "images": images, "extra_info": {"index": 0}}) + "\n")
    cases = [
        (list(files[pictures, end] for end in ends), config, max_samples, Processor() if pictures else None)
        for pictures in (False, True)
        for ends in (("parquet",), ("jsonl",), ("parquet", "jsonl"))
        for config in ({}, {"shuffle": True, "seed": 5}, {"prompt_key": "prompt", "max_prompt_length": 7, "truncation": "left"})
        for max_samples in (-1, 7, 1000)
    ] + [([bad], {}, -1, Processor())]
    for paths, config, max_samples, processor in cases:
        # Prompts are counted by the trainer, and not by ours.
        config = {**config, "filter_overlong_prompts": False, "return_raw_chat": True}
        theirs, ours = (made(kind, paths, config, max_samples, processor) for kind in (Theirs, Ours))
        assert len(theirs) == len(ours) > 0, (paths, config, len(theirs), len(ours))
        for i in range(len(theirs)):
            expected, found = outcome(theirs, i), outcome(ours, i)
            assert expected == found, (paths, config, max_samples, i, expected, found)
            count += 1
        expected, found = attributes(theirs), attributes(ours)
        assert expected == found, (expected, found)
print(count, "rows")
