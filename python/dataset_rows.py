"""Rows of a user's data set as lines of JSON: of each the columns that the trainer reads, with values that JSON has a word for."""

import base64
import io
import json
import math
import numbers
import os
from collections.abc import Mapping, Sequence

from troupe_process import Told

# As deep as the trainer reads JSON.
MAX_DEPTH = 100
# Keys of a row that stand for its prompt in token ids, in verl's older data sets.
TOKEN_KEYS = ("raw_prompt_ids", "input_ids")
# What a part of a message may have an image under, the first that is there.
IMAGE_KEYS = ("bytes", "image", "path", "url", "image_url")


def shown(path):
    return path[0] + "".join("[%r]" % key for key in path[1:])


def plain(value, path):
    """`value` as JSON has it. Raises Told, with the key."""
    if len(path) > MAX_DEPTH:
        raise Told("%s is nested more than %d times" % (path[0], MAX_DEPTH))
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    # Scalars and arrays of numpy, tensors.
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return plain(value.tolist(), path)
    if isinstance(value, numbers.Real):
        number = float(value)
        if math.isfinite(number):
            return number
        raise Told("%s is %s, which JSON has no word for: expected a finite number, or None" % (shown(path), number))
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise Told("%s has the key %r: expected texts as keys" % (shown(path), key))
        return {str(key): plain(value[key], path + (key,)) for key in value}
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [plain(one, path + (i,)) for i, one in enumerate(value)]
    raise Told(
        "%s is of the type %s, which JSON has no word for: expected text, numbers, True, False, None, and lists and dicts of them"
        % (shown(path), type(value).__name__)
    )


def address(data):
    """Bytes of an image as the trainer reads them in JSON, which knows them by what they begin with."""
    return "data:image;base64," + base64.b64encode(data).decode("ascii")


def image(value, path):
    """An image of a row, as a `data:` address or the name of a file: bytes, a path, Hugging Face's {bytes, path}, a picture of Pillow."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return address(bytes(value))
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        is_file = not value.startswith(("data:", "http:", "https:", "file:"))
        return os.path.abspath(os.path.expanduser(value)) if is_file else value
    if hasattr(value, "convert") and hasattr(value, "save"):
        data = io.BytesIO()
        value.convert("RGB").save(data, "PNG")
        return address(data.getvalue())
    if isinstance(value, Mapping):
        key = next((one for one in IMAGE_KEYS if value.get(one) is not None), None)
        if key is not None:
            more = {name: plain(one, path + (name,)) for name, one in value.items() if name not in IMAGE_KEYS and name != "type"}
            found = value[key]["url"] if isinstance(value[key], Mapping) and "url" in value[key] else value[key]
            return {"image": image(found, path + (key,)), **more}
    raise Told("%s is no image: expected bytes, a path, {bytes, path} or a picture of Pillow, got %s" % (shown(path), type(value).__name__))


def conversation(messages, images, path):
    """Messages without the images in them, which are put into `images`."""
    return [
        {key: content(value, images, path + (i, key)) if key == "content" else plain(value, path + (i, key)) for key, value in one.items()}
        if isinstance(one, Mapping)
        else plain(one, path + (i,))
        for i, one in enumerate(messages)
    ]


def content(parts, images, path):
    if isinstance(parts, str) or not isinstance(parts, Sequence):
        return plain(parts, path)
    kept = []
    for i, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in ("video", "audio", "video_url", "input_audio"):
            raise Told("%s is of the type %s: models here read text and images" % (shown(path + (i,)), kind))
        if kind not in ("image", "image_url"):
            kept.append(plain(part, path + (i,)))
            continue
        kept.append({"type": "image"})
        if any(part.get(key) is not None for key in IMAGE_KEYS):
            images.append(image(part, path + (i,)))
    return kept


def present(value):
    return value is not None and not (hasattr(value, "__len__") and len(value) == 0)


class Columns:
    """What the trainer calls the columns that it reads."""

    def __init__(self, prompt, source, images):
        self.prompt = prompt
        self.source = source
        self.images = images

    def line(self, row):
        """A row as the trainer reads it. Raises Told."""
        if not isinstance(row, Mapping):
            raise Told("expected a dict, got %s" % type(row).__name__)
        out = {}
        images = []
        out[self.prompt] = self._prompt(row, images)
        for key, says in ((self.source, ": data.reward_fn_key says which one it is"), ("reward_model", "")):
            if key not in row:
                raise Told("there is no '%s'; its keys are %s%s" % (key, ", ".join(map(str, row)), says))
            out[key] = plain(row[key], (key,))
        extra = row.get("extra_info")
        out["extra_info"] = {} if extra is None else plain(extra, ("extra_info",))
        # What verl gives to the tools of an agent stands beside extra_info there, and in it here.
        tools = row.get("tools_kwargs")
        if present(tools) and isinstance(out["extra_info"], dict):
            out["extra_info"]["tools_kwargs"] = plain(tools, ("tools_kwargs",))
        if present(row.get("multi_modal_data")):
            raise Told("multi_modal_data is of older versions of verl: expected images in the messages of raw_prompt, or in '%s'" % self.images)
        if not images and present(row.get(self.images)):
            given = row[self.images]
            several = isinstance(given, Sequence) and not isinstance(given, (str, bytes, bytearray))
            images = [image(one, (self.images, i)) for i, one in enumerate(given if several else [given])]
        if images:
            out[self.images] = images
        for key in ("images", "videos", "audios"):
            if key != self.images and present(row.get(key)):
                raise Told("'%s' is not empty, and models here read text, and images in '%s'" % (key, self.images))
        return json.dumps(out, separators=(",", ":"), allow_nan=False).encode("ascii") + b"\n"

    def _prompt(self, row, images):
        key = "raw_prompt" if row.get("raw_prompt") is not None else self.prompt
        tokens = next((one for one in TOKEN_KEYS if one in row), None)
        if key != "raw_prompt" and tokens is not None:
            raise Told(
                "it has its prompt as token ids (%s), and no raw_prompt: prompts are tokenized by the trainer: expected the messages in 'raw_prompt'"
                % tokens
            )
        if key not in row:
            none = "'raw_prompt' is None, and there is no" if "raw_prompt" in row else "there is neither 'raw_prompt' nor"
            raise Told("%s '%s'; its keys are %s: data.prompt_key says which one it is" % (none, self.prompt, ", ".join(map(str, row))))
        value = row[key]
        # An array of messages, as numpy has one.
        value = value.tolist() if hasattr(value, "tolist") else value
        if isinstance(value, str) or not isinstance(value, Sequence):
            return plain(value, (key,))
        return conversation(value, images, (key,))
