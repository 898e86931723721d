"""Compares python/verl_interface.py with the verl that is installed: schemas of random mappings, and returns of function tools."""

import contextlib
import io
import os
import random
import sys

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../../python"))
with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
    from verl.tools import function_tool as theirs_functions
    from verl.tools import schemas as theirs
    import verl_interface as ours

rng = random.Random(1)


def maybe(mapping, **values):
    for key, make in values.items():
        if rng.random() < 0.7:
            mapping[key] = make()
    return mapping


def schema():
    def one():
        return maybe({"type": rng.choice(["string", "integer", ["integer", "number"]])}, description=lambda: "d", enum=lambda: ["a", "b"], title=lambda: "t")

    parameters = maybe({"type": "object", "properties": {n: one() for n in "abc"[: rng.randrange(4)]}}, required=lambda: ["a"], additionalProperties=lambda: False)
    function = maybe({"name": "f", "description": "does"}, parameters=lambda: parameters, strict=lambda: True, other=lambda: 1)
    return maybe({"type": "function", "function": function}, extra=lambda: 2)


count = 0
for _ in range(500):
    given = schema()
    if rng.random() < 0.1:
        del given["function"]["description"]
    found = []
    for module in (theirs, ours):
        try:
            tool = module.OpenAIFunctionToolSchema.model_validate(given)
            found.append([list(tool.model_dump(exclude_unset=True, exclude_none=True)["function"].items()), tool.function.name, tool.model_dump()])
        except Exception:
            found.append("refused")
    assert found[0] == found[1], (given, found)
    count += 1
for value in ["a", 3, {"ä": 1}, ("a",), ("a", None), ("a", 0), ({"b": 2}, 1, None), (3, 0.5, {"m": 1}), (), (1, 2, 3, 4), None, [1]]:
    found = []
    for module, normalize in ((theirs, theirs_functions.normalize_function_tool_return), (ours, ours.normalize_function_tool_return)):
        for wrapped in (value, module.ToolResponse(text="t") if value == "a" else value):
            try:
                response, reward, metrics = normalize(wrapped)
                found.append((response.text, reward, metrics))
            except TypeError:
                found.append("refused")
    assert found[:2] == found[2:], (value, found)
    count += 1
print(count, "cases")
