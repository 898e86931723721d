"""A process that scores with a user's reward function in Python, as verl calls it.

The process that started this one writes to file descriptor 3, and reads from 4. Both sides write JSON in ASCII, one message a line:
ts/reward/scorers/scorer_protocol.ts says which, ts/reward/scorers/json_lines.ts how.
"""

import asyncio
import importlib.util
import inspect
import json
import numbers
import os
import queue
import signal
import sys
import threading
import traceback

REQUESTS, REPLIES = 3, 4
# Characters of JSON for one response; the trainer refuses from there on, see contract/outcome.ts.
MAX_OUTCOME = 64 * 1024
# Characters of an exception's own text, calls of its traceback, and characters of each one's line that the trainer is told.
MAX_TEXT = 300
MAX_CALLS = 6
MAX_LINE = 100
# What verl gives to functions that ask a generative reward model.
GENERATIVE = ("reward_router_address", "reward_model_tokenizer")

PATH_KEY = "reward.custom_reward_function.path"


class Told(Exception):
    """What is said as it stands."""


class Refused(Told):
    """A mistake of the configuration."""


def restored(message):
    """A message with its special numbers, which are integers or what float() reads."""
    for path, digits in message.pop("special"):
        holder = message
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = int(digits) if digits.lstrip("-").isdigit() else float(digits)
    return message


class Channel:
    def __init__(self):
        for each in (REQUESTS, REPLIES):
            os.set_inheritable(each, False)
        self._lock = threading.Lock()

    def send(self, special=(), **message):
        message["special"] = special
        data = memoryview(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n")
        with self._lock:
            while data:
                data = data[os.write(REPLIES, data) :]

    def read(self, take):
        """Gives every message to `take`; at the end, the parent's, this process ends, whatever its main thread does."""
        try:
            with open(REQUESTS, "rb", closefd=False) as lines:
                for line in lines:
                    take(restored(json.loads(line)))
        finally:
            os._exit(1)


def end_with_parent():
    """A library that holds the interpreter's lock lets no thread see the end of the parent: there the kernel sees to it."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        pass


def bear_signals():
    """A scheduler sends these to every process of a job, and the trainer still wants its rewards then. Children obey them."""
    borne = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
    usual = [(each, signal.signal(each, lambda *_: None)) for each in borne]

    def child():
        for each in (REQUESTS, REPLIES):
            os.close(each)
        for each, handler in usual:
            signal.signal(each, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, borne)

    os.register_at_fork(
        # One that comes before the child has its own handlers waits for them.
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, borne),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, borne),
        after_in_child=child,
    )


def text_of(error):
    # Of a syntax error the lines that Python shows it in have no place here.
    if isinstance(error, SyntaxError):
        whole = "SyntaxError: %s" % error
    else:
        whole = "".join(traceback.format_exception_only(type(error), error)).strip()
    return whole if len(whole) <= MAX_TEXT else "%s… (%d characters)" % (whole[:MAX_TEXT], len(whole))


def told(error):
    """What the trainer is told of an exception, whose own methods may fail, too."""
    if isinstance(error, Told):
        return str(error)
    try:
        return described(error)
    except BaseException:
        return type(error).__name__


def described(error):
    """An exception with its traceback, the innermost call first, because what is long is cut at its end."""
    text = text_of(error)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        text += " (after %s)" % text_of(cause)
    calls = [
        "%s:%s in %s: %s" % (one.filename, one.lineno, one.name, (one.line or "")[:MAX_LINE])
        for one in reversed(traceback.extract_tb(error.__traceback__))
        if one.filename != __file__ and not one.filename.startswith("<frozen importlib")
    ]
    if len(calls) > MAX_CALLS:
        calls = calls[: MAX_CALLS - 1] + ["…", calls[-1]]
    return text + (", at " + ", from ".join(calls) if calls else "")


def importable(file):
    """A name for the module: where no other module has it that by which processes of `multiprocessing` can import it."""
    name = os.path.splitext(os.path.basename(file))[0]
    try:
        found = importlib.util.find_spec(name) if name.isidentifier() else None
    except ValueError:
        found = None
    return name if found is not None and found.origin == file else "custom_module_" + name


def load(path, name):
    file = os.path.abspath(path)
    # As `python -m` has it, where verl is started; the module's own directory beside.
    sys.path[0] = os.getcwd()
    sys.path.append(os.path.dirname(file))
    module_name = importable(file)
    spec = importlib.util.spec_from_file_location(module_name, file)
    module = importlib.util.module_from_spec(spec)
    # Data classes and pickled objects look their module up.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise Refused("%s: %s (Python %s) could not load %s: %s" % (PATH_KEY, sys.executable, sys.version.split()[0], file, told(error)))
    found = getattr(module, name, None)
    if callable(found):
        return found
    others = [key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module_name]
    raise Refused(
        "reward.custom_reward_function.name: %s has no function '%s'; it has: %s" % (file, name, ", ".join(others) or "none")
    )


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
        self.function = load(module["path"], module["name"])
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
    end_with_parent()
    bear_signals()
    # Printing what the encoding cannot hold is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    channel = Channel()
    channel.send(type="here")
    requests = queue.SimpleQueue()
    threading.Thread(target=channel.read, args=(requests.put,), daemon=True).start()
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
