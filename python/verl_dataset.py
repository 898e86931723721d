"""What data sets import of verl (verl.utils.dataset), where verl is not installed.

Attributes, methods and the keys of a row are those of verl's RLHFDataset. Files are read by `datasets`, as there. Prompts that are too long
are left to the trainer, which counts them with its own tokenizer. All other modules of verl can be imported, and what is taken from them says when it
is used that verl is not there.
"""

import abc
import importlib.abc
import importlib.machinery
import os
import re
import sys
import types

import verl_interface

# What stands in the text of a message for what a row has beside it, by the kind of the part that it becomes.
PLACES = {"image": "<image>", "video": "<video>", "audio": "<audio>"}


class RLHFDataset:
    def __init__(self, data_files, tokenizer, config, processor=None, max_samples=-1):
        files = [data_files] if isinstance(data_files, (str, os.PathLike)) else list(data_files)
        self.data_files = list(files)
        self.original_data_files = list(files)
        self.tokenizer = tokenizer
        self.processor = processor
        self.config = config
        self.max_samples = max_samples
        self.cache_dir = os.path.expanduser(config.get("cache_dir", "~/.cache/verl/rlhf"))
        self.prompt_key = config.get("prompt_key", "prompt")
        self.image_key = config.get("image_key", "images")
        self.video_key = config.get("video_key", "videos")
        self.audio_key = config.get("audio_key", "audios")
        self.max_prompt_length = config.get("max_prompt_length", 1024)
        self.return_raw_chat = config.get("return_raw_chat", False)
        self.return_full_prompt = config.get("return_full_prompt", False)
        self.truncation = config.get("truncation", "error")
        self.filter_overlong_prompts = config.get("filter_overlong_prompts", True)
        self.apply_chat_template_kwargs = config.get("apply_chat_template_kwargs", {})
        self.mm_processor_kwargs = config.get("mm_processor_kwargs", {})
        self.tool_config_path = config.get("tool_config_path", None)
        self.function_tool_path = config.get("function_tool_path", None)
        self.tool_schemas = None
        self.num_workers = min(config.get("filter_overlong_prompts_workers") or 1, os.cpu_count() or 1)
        self.use_shm = config.get("use_shm", False)
        self.chat_template_func = config.get("chat_template_func", None)
        self.need_tools_kwargs = config.get("need_tools_kwargs", False)
        self.filter_prompts = config.get("filter_prompts", True)
        self.serialize_dataset = False
        self.return_multi_modal_inputs = config.get("return_multi_modal_inputs", True)
        self.shuffle = config.get("shuffle", False)
        self.seed = config.get("seed")
        self._download()
        self._read_files_and_tokenize()

    def _download(self, use_origin_parquet=False):
        """Files are read where they are."""
        files = self.original_data_files if use_origin_parquet else self.data_files
        self.data_files = [os.path.expanduser(os.fspath(one)) for one in files]
        for one in self.data_files:
            if one.startswith("hdfs:"):
                raise ImportError("%s is fetched by verl, and verl is not installed: fetch it, or install verl in %s" % (one, sys.executable))

    def _read_files_and_tokenize(self):
        import datasets

        frames = []
        for one in self.data_files:
            if one.endswith(".parquet"):
                kind = "parquet"
            elif one.endswith((".json", ".jsonl")):
                kind = "json"
            else:
                raise ValueError("%s: expected a .parquet, .json or .jsonl file" % one)
            frames.append(datasets.load_dataset(kind, data_files=one)["train"])
        self.dataframe = datasets.concatenate_datasets(frames)
        total = len(self.dataframe)
        print("dataset len: %d" % total)
        if 0 < self.max_samples < total:
            self.dataframe = self.dataframe.select(self._drawn(total))
        self.dataframe = self.maybe_filter_out_long_prompts(self.dataframe)

    def _drawn(self, total):
        """Rows that max_samples leaves: with the same seed those that verl draws."""
        if not self.shuffle:
            return list(range(self.max_samples))
        import numpy

        return numpy.random.default_rng(self.seed).choice(total, size=self.max_samples, replace=False).tolist()

    def maybe_filter_out_long_prompts(self, dataframe=None):
        return dataframe

    def resume_dataset_state(self):
        self._download(use_origin_parquet=True)
        self._read_files_and_tokenize()

    def __len__(self):
        return len(self.dataframe)

    def _build_messages(self, example, key=None):
        """The messages of a row, with each place for an image, a video or a sound as a part of its own."""
        messages = example[key or self.prompt_key]
        keys = {"image": self.image_key, "video": self.video_key, "audio": self.audio_key}
        left = {kind: list(example.get(key) or []) for kind, key in keys.items()}
        if not any(left.values()):
            return messages
        built = [{**one, "content": parts_of(one["content"], left)} for one in messages]
        for kind, rest in left.items():
            if rest:
                raise ValueError("the row has %d in '%s' for which its prompt has no place (%s)" % (len(rest), keys[kind], PLACES[kind]))
        return built

    def __getitem__(self, item):
        row = dict(self.dataframe[item])
        row["raw_prompt"] = self._build_messages(row, key=self.prompt_key)
        for key in (self.image_key, self.video_key, self.audio_key):
            row.pop(key, None)
        extra = row["extra_info"] = row.get("extra_info") or {}
        row["index"] = extra.get("index", 0)
        row["tools_kwargs"] = extra.get("tools_kwargs", {})
        row["interaction_kwargs"] = extra.get("interaction_kwargs", {})
        return row


def parts_of(content, left):
    """The content of a message with parts for what is `left` of a row, which is taken from there."""
    if not isinstance(content, str):
        return content
    parts = []
    for text in re.split("(%s)" % "|".join(PLACES.values()), content):
        kind = next((one for one, place in PLACES.items() if place == text), None)
        if kind is None:
            parts += [{"type": "text", "text": text}] if text else []
        elif not left[kind]:
            raise ValueError("the prompt has more places (%s) than the row has for them" % text)
        else:
            given = left[kind].pop(0)
            parts.append({"type": kind, **(given if isinstance(given, dict) else {kind: given})})
    return parts


class Absent(abc.ABCMeta):
    """Of a class that stands for what verl has: it can be a base, and nothing can be done with it."""

    def __call__(cls, *_, **__):
        raise cls._absence()

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise cls._absence()

    def _absence(cls):
        name = next(one._verl_name for one in cls.__mro__ if "_verl_name" in vars(one))
        return ImportError("%s is verl's, and verl is not installed: install it in %s" % (name, sys.executable))


class AbsentModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(name, (), {"_verl_name": "%s.%s" % (self.__name__, name)})


class AbsentModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.startswith("verl.") else None

    def create_module(self, spec):
        return AbsentModule(spec.name)

    def exec_module(self, module):
        pass


MODULES = {
    **verl_interface.MODULES,
    "verl.utils.dataset": (RLHFDataset,),
    "verl.utils.dataset.rl_dataset": (RLHFDataset,),
}


def install():
    """Makes them importable under verl's names."""
    verl_interface.install(MODULES, AbsentModule)
    sys.meta_path.append(AbsentModules())
