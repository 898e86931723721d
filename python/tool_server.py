"""Tools in Python for agents, as verl has them, behind the Model Context Protocol over standard input and output.

Its argument is JSON: {"classes": [{"class_name", "config", "tool_schema"}], "functions": path or null}: what verl reads from
tool_config_path, and its function_tool_path. One JSON-RPC message a line; what tools print goes to standard error.
A call of a class is create, execute and release of one instance, as verl's ToolAgentLoop makes it.
"""

import asyncio
import importlib
import json
import math
import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import verl_interface

# Plain functions that run at once.
THREADS = 64
# Seconds that the event loop may take to hear that a call was given up: one that blocks it longer ends the process.
GRACE = 5

INVALID_REQUEST = -32600
NO_SUCH_METHOD = -32601
NOT_LOADED = -32603


class Refused(Exception):
    """What is wrong with the tools themselves."""


def told(error):
    text = str(error)
    return "%s: %s" % (type(error).__name__, text) if text else type(error).__name__


class AgentData:
    """What verl's tools may look at of a trajectory. Its messages and tokens stay with the trainer."""

    def __init__(self, tools_kwargs):
        self.tools_kwargs = tools_kwargs
        self.extra_fields = {}

    def __getattr__(self, name):
        raise AttributeError("agent_data.%s: a tool is given tools_kwargs and extra_fields of its call alone" % name)


class ClassTool:
    def __init__(self, tool):
        self.tool = tool
        self.schema = tool.tool_schema

    async def call(self, arguments, create_kwargs):
        created = await self.tool.create(create_kwargs=create_kwargs)
        # verl before 0.6 returned the instance's id alone.
        instance = created[0] if isinstance(created, tuple) else created
        try:
            data = AgentData({self.tool.name: {"create_kwargs": create_kwargs}})
            return await self.tool.execute(instance, arguments, agent_data=data)
        finally:
            await self.tool.release(instance)


class FunctionTool:
    def __init__(self, tool, normalize):
        self.tool = tool
        self.schema = tool.tool_schema
        self.normalize = normalize

    async def call(self, arguments, create_kwargs):
        return self.normalize(await self.tool.call(arguments))


def load_class(entry):
    name = entry["class_name"]
    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except BaseException as error:
        raise Refused("could not import %s: %s" % (name, told(error)))
    from verl.tools.schemas import OpenAIFunctionToolSchema

    try:
        given = entry["tool_schema"]
        schema = None if given is None else OpenAIFunctionToolSchema.model_validate(given)
        return ClassTool(found(config=entry["config"], tool_schema=schema))
    except BaseException as error:
        raise Refused("could not make a tool of %s: %s" % (name, told(error)))


def load_functions(path):
    from verl.tools.function_tool import load_function_tools_from_path, normalize_function_tool_return

    try:
        found = load_function_tools_from_path(path)
    except BaseException as error:
        raise Refused("could not load %s: %s" % (path, told(error)))
    if not found:
        raise Refused("%s has no function with the decorator function_tool" % path)
    return [FunctionTool(one, normalize_function_tool_return) for one in found]


def load(setup):
    """@return the tools by name. Raises Refused."""
    # As `python -m` has it, where verl is started.
    sys.path[0] = os.getcwd()
    try:
        importlib.import_module("verl.tools.schemas")
    except BaseException as error:
        # Otherwise verl itself is there, and something that it needs is not.
        if not isinstance(error, ModuleNotFoundError) or (error.name or "").split(".")[0] != "verl":
            raise Refused("could not import verl.tools: %s" % told(error))
        verl_interface.install()
    tools = {}
    functions = load_functions(setup["functions"]) if setup["functions"] else []
    for tool in [load_class(one) for one in setup["classes"]] + functions:
        name = tool.schema.function.name
        if name in tools:
            raise Refused("two tools have the name %s" % name)
        tools[name] = tool
    return tools


def described(tool):
    """As verl's chat templates see it."""
    function = tool.schema.model_dump(exclude_unset=True, exclude_none=True)["function"]
    return {
        "name": function["name"],
        "description": function.get("description", ""),
        "inputSchema": function.get("parameters", {"type": "object", "properties": {}}),
    }


def answer(result):
    """What a tool returned, as the protocol has it; `_meta` has its reward. Raises what is wrong with it."""
    response, reward, _ = result if isinstance(result, tuple) else (result, None, None)
    if getattr(response, "image", None) or getattr(response, "video", None):
        raise TypeError("it answered with images or videos, and the model reads text alone")
    # verl before 0.6 had text alone.
    text = response if isinstance(response, str) else response.text
    if not isinstance(text, (str, type(None))):
        raise TypeError("the text of its answer is expected to be a str, and it is of type %s" % type(text).__name__)
    found = {"content": [{"type": "text", "text": text or ""}]}
    if reward is not None:
        if not math.isfinite(float(reward)):
            raise ValueError("it gave a reward of %s" % reward)
        found["_meta"] = {"reward": float(reward)}
    return found


class Server:
    def __init__(self, output, tools, refused):
        self.output = output
        self.tools = tools
        self.refused = refused
        self.loop = asyncio.get_running_loop()
        self.calls = {}
        self.lock = threading.Lock()

    def send(self, id, **message):
        line = json.dumps({"jsonrpc": "2.0", "id": id, **message}, separators=(",", ":"), allow_nan=False) + "\n"
        with self.lock:
            self.output.write(line.encode("ascii"))
            self.output.flush()

    def fail(self, id, code, text):
        self.send(id, error={"code": code, "message": text})

    def read(self, lines):
        """In a thread of its own: a tool that blocks the loop does not keep the process from ending."""
        try:
            for line in lines:
                self.take(json.loads(line))
        finally:
            os._exit(0)

    def take(self, message):
        method, id, params = message.get("method"), message.get("id"), message.get("params") or {}
        if method == "tools/call" and self.refused is None:
            self.loop.call_soon_threadsafe(self.start, id, params)
        elif method == "notifications/cancelled":
            heard = threading.Event()
            self.loop.call_soon_threadsafe(self.give_up, params.get("requestId"), heard)
            threading.Thread(target=self.watch, args=(heard,), daemon=True).start()
        elif id is not None:
            self.reply(method, id, params)

    def reply(self, method, id, params):
        if method == "initialize":
            self.send(
                id,
                result={
                    "protocolVersion": params.get("protocolVersion"),
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "troupe-python-tools", "version": "1"},
                },
            )
        elif method == "ping":
            self.send(id, result={})
        elif self.refused is not None:
            self.fail(id, NOT_LOADED, self.refused)
        elif method == "tools/list":
            self.send(id, result={"tools": [described(one) for one in self.tools.values()]})
        else:
            self.fail(id, NO_SUCH_METHOD, "there is no method %s" % method)

    def watch(self, heard):
        if not heard.wait(GRACE):
            os._exit(1)

    def give_up(self, id, heard):
        heard.set()
        task = self.calls.pop(id, None)
        if task is not None:
            task.cancel()

    def start(self, id, params):
        task = self.loop.create_task(self.call(id, params))
        self.calls[id] = task
        task.add_done_callback(lambda _: self.calls.pop(id, None))

    async def call(self, id, params):
        tool = self.tools.get(params.get("name"))
        if tool is None:
            self.fail(id, INVALID_REQUEST, "there is no tool %s" % params.get("name"))
            return
        try:
            create_kwargs = (params.get("_meta") or {}).get("create_kwargs", {})
            result = answer(await tool.call(params.get("arguments") or {}, create_kwargs))
        except BaseException as error:
            # Of a call that was given up nobody waits for the answer; others may have cancelled something of their own.
            if isinstance(error, asyncio.CancelledError) and id not in self.calls:
                raise
            result = {"content": [{"type": "text", "text": told(error)}], "isError": True}
        self.send(id, result=result)


async def serve(output, lines, setup):
    tools, refused = {}, None
    try:
        # With the loop running: a tool may make what belongs to one.
        tools = load(setup)
    except Refused as error:
        refused = "%s (%s, Python %s)" % (error, sys.executable, sys.version.split()[0])
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS))
    server = Server(output, tools, refused)
    threading.Thread(target=server.read, args=(lines,), daemon=True).start()
    await asyncio.Event().wait()


def main():
    if len(sys.argv) != 2 or not sys.argv[1].startswith("{"):
        sys.exit("tool_server.py is started by Troupe, as the configuration of a run says: there is nothing to start by hand")
    # A Ctrl-C goes to the whole process group; the end of the input is what ends this process.
    signal.signal(signal.SIGINT, lambda *_: None)
    lines = os.fdopen(os.dup(0), "rb")
    output = os.fdopen(os.dup(1), "wb")
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    asyncio.run(serve(output, lines, json.loads(sys.argv[1])))


if __name__ == "__main__":
    main()
