"""A process that scores with a user's reward function in Python, as verl calls it.

Messages: ts/reward/scorers/scorer_protocol.ts says which, ts/reward/scorers/json_lines.ts how special numbers stand in them.
"""

import asyncio
import inspect
import json
import numbers
import queue
import sys
import threading

from troupe_process import FUNCTION, Channel, Refused, Told, bear_signals, end_with_parent, load, refuse_by_hand, told

# Characters of JSON for one response; the trainer refuses from there on, see contract/outcome.ts.
MAX_OUTCOME = 64 * 1024
# What verl gives to functions that ask a generative reward model.
GENERATIVE = ("reward_router_address", "reward_model_tokenizer")

SECTION = "reward.custom_reward_function"
PATH_KEY = SECTION + ".path"


def restored(message):
    """A message with its special numbers, which are integers or what float() reads."""
    for path, digits in message.pop("special"):
        holder = message
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = int(digits) if digits.lstrip("-").isdigit() else float(digits)
    return message


NAMES = ("data_source", "solution_str", "ground_truth", "extra_info")
BATCH_NAMES = ("data_sources", "solution_strs", "ground_truths", "extra_infos")


def check_parameters(function, names, kwargs):
    """A call that cannot be made is told at the start, and not by every response."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    asked = [
        one.name
        for one in signature.parameters.values()
        if one.name in GENERATIVE and one.default is one.empty and one.name not in kwargs
    ]
    if asked:
        raise Refused(
            "%s: the function asks for %s: it is one for generative reward models, which are not there" % (PATH_KEY, " and ".join(asked))
        )
    try:
        signature.bind(**{**dict.fromkeys(names), **kwargs})
    except TypeError as error:
        raise Refused(
            "%s: the function cannot be called with %s and reward_kwargs (%s): %s; it is %s%s"
            % (PATH_KEY, ", ".join(names), ", ".join(kwargs) or "none", error, getattr(function, "__name__", "function"), signature)
        )


def plain(value, special, path):
    """`value` as JSON has it. `special` gets [path, name] of each number that JSON lacks."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if type(value) is int:
        return value
    if isinstance(value, dict):
        return {str(key): plain(one, special, path + (str(key),)) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one, special, path + (i,)) for i, one in enumerate(value)]
    # Scalars and arrays of numpy, tensors.
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return plain(value.tolist(), special, path)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) or type(value).__name__ == "Decimal":
        number = float(value)
        if number - number == 0:
            return number
        special.append([list(path), str(number)])
        return None
    where = "".join("[%r]" % (key,) for key in path[1:])
    raise Told("it returned what is no JSON value%s: %s" % (where and " at " + where, type(value).__name__))


def size(value):
    text = json.dumps(value, separators=(",", ":"))
    if len(text) <= MAX_OUTCOME:
        return len(text)
    # As JavaScript counts.
    return len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-16-le", "surrogatepass")) // 2


def checked(result, batch):
    """Result and special numbers, as they are sent."""
    special = []
    value = plain(result, special, ("result",))
    for one in value if batch and isinstance(value, list) else [value]:
        length = size(one)
        if length > MAX_OUTCOME:
            raise Told(
                "it returned %d characters of JSON for one response, and %d are the most that is kept" % (length, MAX_OUTCOME)
            )
    return value, special


class Worker:
    def __init__(self, channel):
        self.channel = channel
        self.function = None
        self.kwargs = {}

    def setup(self, setup):
        module, self.kwargs = setup["module"], setup["kwargs"]
        self.function = load(module["path"], module["name"], SECTION, FUNCTION)
        check_parameters(self.function, BATCH_NAMES if module.get("batch") else NAMES, self.kwargs)

    def call(self, job):
        return self.function(**{**job, **self.kwargs})

    def reply(self, id, job, result):
        value, special = checked(result, BATCH_NAMES[0] in job)
        self.channel.send(type="reply", id=id, ok=True, result=value, special=special)

    def fail(self, id, error):
        self.channel.send(
            type="reply", id=id, ok=False, error=told(error), configuration=isinstance(error, Refused)
        )

    def one(self, request):
        """A plain function: no event loop runs, so that it may run one."""
        id, job = request["id"], request["job"]
        self.channel.send(type="begin", id=id)
        try:
            result = self.call(job)
            if inspect.isawaitable(result):
                result = asyncio.run(awaited(result))
            self.reply(id, job, result)
        except BaseException as error:
            self.fail(id, error)

    async def one_async(self, request):
        id, job = request["id"], request["job"]
        self.channel.send(type="begin", id=id)
        try:
            self.reply(id, job, await self.call(job))
        except BaseException as error:
            self.fail(id, error)

    async def many(self, jobs):
        """Calls of an async function, as many at once as there are."""
        loop = asyncio.get_running_loop()
        tasks = set()

        def start(request):
            if request["type"] == "ask":
                self.channel.send(type="here")
                return
            task = loop.create_task(self.one_async(request))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            # After its first step, which comes next.
            loop.call_soon(lambda: task.done() or self.channel.send(type="waiting", id=request["id"], bounded=False))

        def feed():
            while True:
                loop.call_soon_threadsafe(start, jobs.get())

        threading.Thread(target=feed, daemon=True).start()
        await asyncio.Event().wait()


async def awaited(result):
    return await result


def main():
    refuse_by_hand()
    end_with_parent()
    bear_signals()
    # Printing what the encoding cannot hold is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    channel = Channel()
    channel.send(type="here")
    requests = queue.SimpleQueue()
    threading.Thread(target=channel.read, args=(lambda message: requests.put(restored(message)),), daemon=True).start()
    worker = Worker(channel)
    first = requests.get()
    try:
        worker.setup(first["setup"])
    except Refused as error:
        worker.fail(first["id"], error)
        return
    channel.send(type="reply", id=first["id"], ok=True, result=None)
    if inspect.iscoroutinefunction(worker.function) or inspect.iscoroutinefunction(getattr(worker.function, "__call__", None)):
        asyncio.run(worker.many(requests))
    while True:
        worker.one(requests.get())


if __name__ == "__main__":
    main()
