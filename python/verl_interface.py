"""What tools import of verl (verl.tools, verl.utils.rollout_trace), where verl is not installed.

Fields, defaults and what schemas leave out are those of verl's; everything else of verl is not there.
"""

import asyncio
import importlib.util
import inspect
import json
import os
import sys
import types
from uuid import uuid4

MISSING = object()


class Model:
    """A record that drops what it has no field for. FIELDS: name -> (kind of the value or None, default or MISSING)."""

    FIELDS = {}

    def __init__(self, **given):
        self._given = [name for name in self.FIELDS if name in given]
        for name, (kind, default) in self.FIELDS.items():
            value = given.get(name, default() if callable(default) else default)
            if value is MISSING:
                raise ValueError("%s: field required: %s" % (type(self).__name__, name))
            setattr(self, name, value if kind is None or name not in given else kind(value))

    @classmethod
    def model_validate(cls, value):
        if isinstance(value, cls):
            return value
        if not isinstance(value, dict):
            raise ValueError("%s: expected a mapping, got %r" % (cls.__name__, value))
        return cls(**value)

    parse_obj = model_validate

    def model_dump(self, exclude_unset=False, exclude_none=False, **_):
        names = self._given if exclude_unset else list(self.FIELDS)
        values = {name: dumped(getattr(self, name), exclude_unset, exclude_none) for name in names}
        return {name: value for name, value in values.items() if not (exclude_none and value is None)}


def dumped(value, unset, none):
    if isinstance(value, Model):
        return value.model_dump(exclude_unset=unset, exclude_none=none)
    if isinstance(value, dict):
        return {key: dumped(one, unset, none) for key, one in value.items()}
    return value


class OpenAIFunctionPropertySchema(Model):
    FIELDS = {"type": (None, MISSING), "description": (None, None), "enum": (None, None)}


def properties(value):
    return {key: OpenAIFunctionPropertySchema.model_validate(one) for key, one in value.items()}


class OpenAIFunctionParametersSchema(Model):
    FIELDS = {"type": (None, MISSING), "properties": (properties, MISSING), "required": (None, list)}


class OpenAIFunctionSchema(Model):
    FIELDS = {
        "name": (None, MISSING),
        "description": (None, MISSING),
        "parameters": (
            OpenAIFunctionParametersSchema.model_validate,
            lambda: OpenAIFunctionParametersSchema(type="object", properties={}, required=[]),
        ),
        "strict": (None, False),
    }


class OpenAIFunctionToolSchema(Model):
    FIELDS = {"type": (None, MISSING), "function": (OpenAIFunctionSchema.model_validate, MISSING)}


class ToolResponse(Model):
    FIELDS = {"text": (None, None), "image": (None, None), "video": (None, None)}

    def is_empty(self):
        return not self.text and not self.image and not self.video


class BaseTool:
    def __init__(self, config, tool_schema):
        self.config = config
        self.tool_schema = tool_schema or self.get_openai_tool_schema()
        if self.tool_schema is None:
            raise ValueError("%s has no tool_schema" % type(self).__name__)
        self.name = self.tool_schema.function.name

    def get_openai_tool_schema(self):
        return getattr(self, "tool_schema", None)

    async def create(self, instance_id=None, **kwargs):
        return str(uuid4()) if instance_id is None else instance_id, ToolResponse()

    async def execute(self, instance_id, parameters, **kwargs):
        return ToolResponse(text="Updated the tool state."), 0.0, {}

    async def calc_reward(self, instance_id, **kwargs):
        return 0.0

    async def release(self, instance_id, **kwargs):
        pass


class FunctionTool:
    def __init__(self, name, fn, tool_schema):
        self.name = name
        self.fn = fn
        self.tool_schema = tool_schema

    async def call(self, parameters):
        if inspect.iscoroutinefunction(self.fn):
            return await self.fn(**parameters)
        return await asyncio.to_thread(self.fn, **parameters)


def inferred(function, name):
    try:
        from transformers.utils import get_json_schema
    except ImportError as error:
        raise ImportError(
            "the schema of %s is read from its docstring by transformers, which is not installed: install it, or give "
            "function_tool(schema=...)" % name
        ) from error
    schema = get_json_schema(function)
    schema["function"]["name"] = name
    return schema


_functions = {}


def function_tool(name=None, *, schema=None):
    def decorator(given_name):
        def register(function):
            own = given_name or function.__name__
            found = inferred(function, own) if schema is None else schema
            if _functions.get(own, function) is not function:
                raise ValueError("two function tools have the name %s" % own)
            _functions[own] = function
            function._tool = FunctionTool(own, function, OpenAIFunctionToolSchema.model_validate(found))
            return function

        return register

    if callable(name) and schema is None:
        return decorator(None)(name)
    return decorator(name)


def load_function_tools_from_path(path):
    file = os.path.abspath(path)
    spec = importlib.util.spec_from_file_location("function_tools", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return [_functions[name]._tool for name in sorted(_functions)]


def response_of(value):
    if isinstance(value, ToolResponse):
        return value
    if isinstance(value, dict):
        return ToolResponse(text=json.dumps(value, ensure_ascii=False))
    return ToolResponse(text=value if isinstance(value, str) else str(value))


def normalize_function_tool_return(value):
    """-> response, reward, metrics, from any of the forms that verl's function tools may return."""
    if not isinstance(value, tuple):
        return response_of(value), 0.0, {}
    if not 1 <= len(value) <= 3:
        raise TypeError("a function tool returns (response,), (response, reward) or (response, reward, metrics), not %r" % (value,))
    response, reward, metrics = value + (None, None)[len(value) - 1 :]
    return response_of(response), 0.0 if reward is None else float(reward), dict(metrics or {})


def rollout_trace_op(function):
    return function


MODULES = {
    "verl.tools.schemas": (
        OpenAIFunctionPropertySchema,
        OpenAIFunctionParametersSchema,
        OpenAIFunctionSchema,
        OpenAIFunctionToolSchema,
        ToolResponse,
    ),
    "verl.tools.base_tool": (BaseTool, OpenAIFunctionToolSchema, ToolResponse),
    "verl.tools.function_tool": (
        FunctionTool,
        function_tool,
        load_function_tools_from_path,
        normalize_function_tool_return,
    ),
    "verl.utils.rollout_trace": (rollout_trace_op,),
}


def install(interface=MODULES, make=types.ModuleType):
    """Makes them importable under verl's names. `interface`: modules and what they have; `make`: a module of a name."""
    for name, members in interface.items():
        parts = name.split(".")
        for i in range(1, len(parts) + 1):
            own = ".".join(parts[:i])
            if own not in sys.modules:
                module = sys.modules[own] = make(own)
                module.__path__ = []
                if i > 1:
                    setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], module)
        for member in members:
            setattr(sys.modules[name], member.__name__, member)
