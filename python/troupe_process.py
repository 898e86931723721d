"""What the processes that run a user's code in Python have in common: messages, signals, their end, loading a module, telling an exception.

The process that started this one writes to file descriptor 3, and reads from 4. Both sides write JSON in ASCII, one message a line.
"""

import importlib.util
import inspect
import json
import os
import signal
import sys
import threading
import traceback

REQUESTS, REPLIES = 3, 4
# Characters of an exception's own text, calls of its traceback, and characters of each one's line that the trainer is told.
MAX_TEXT = 300
MAX_CALLS = 6
MAX_LINE = 100
# Calls in files beside this one are no user's.
OWN = os.path.dirname(os.path.abspath(__file__))


class Told(Exception):
    """What is said as it stands."""


class Refused(Told):
    """A mistake of the configuration."""


class Channel:
    def __init__(self):
        for each in (REQUESTS, REPLIES):
            os.set_inheritable(each, False)
        self._lock = threading.Lock()

    def send(self, **message):
        data = memoryview(json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n")
        with self._lock:
            while data:
                data = data[os.write(REPLIES, data) :]

    def read(self, take):
        """Gives every message to `take`; at the end, the parent's, this process ends, whatever its main thread does."""
        try:
            with open(REQUESTS, "rb", closefd=False) as lines:
                for line in lines:
                    take(json.loads(line))
        finally:
            os._exit(1)


def refuse_by_hand():
    """Ends a program that somebody has started to see what it does."""
    try:
        for each in (REQUESTS, REPLIES):
            os.fstat(each)
    except OSError:
        sys.exit("%s is started by Troupe, as the configuration of a run says: there is nothing to start by hand" % os.path.basename(sys.argv[0]))


def end_with_parent():
    """A library that holds the interpreter's lock lets no thread see the end of the parent: there the kernel sees to it."""
    try:
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        pass


def bear_signals(held=()):
    """A scheduler sends these to every process of a job, and the trainer still wants its answers then. Children obey them, without the descriptors of this process (`held`: further ones)."""
    borne = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)
    usual = [(each, signal.signal(each, lambda *_: None)) for each in borne]

    def child():
        for each in (REQUESTS, REPLIES, *held):
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


def hint_for(error, section):
    if not isinstance(error, ModuleNotFoundError):
        return ""
    return ". Install the package that has it into this Python, or name one that has it (%s.python)" % section


def described(error):
    """An exception with its traceback, the innermost call first, because what is long is cut at its end."""
    text = text_of(error)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        text += " (after %s)" % text_of(cause)
    return with_calls(text, traceback.extract_tb(error.__traceback__))


def with_calls(text, stack):
    """With where it happened in a user's code, as `traceback` has it."""
    calls = [
        "%s:%s in %s: %s" % (one.filename, one.lineno, one.name, (one.line or "")[:MAX_LINE])
        for one in reversed(stack)
        if os.path.dirname(one.filename) != OWN and not one.filename.startswith("<frozen importlib")
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


# What may be asked for in a module: what it is called, what may be taken for it, and what is named where it is not there.
FUNCTION = ("function", callable, inspect.isfunction)
CLASS = ("class", inspect.isclass, inspect.isclass)


def load(path, name, section, kind):
    """The function or class `name` of a file. `section`: of the configuration, with the keys path and name. Raises Refused."""
    file = os.path.abspath(path)
    # As `python -m` has it, where verl is started; the module's own directory beside.
    sys.path[0] = os.getcwd()
    # Processes of `multiprocessing` import the program again, and with it what lies beside it.
    sys.path += [os.path.dirname(file), OWN]
    module_name = importable(file)
    spec = importlib.util.spec_from_file_location(module_name, file)
    module = importlib.util.module_from_spec(spec)
    # Data classes and pickled objects look their module up.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        raise Refused(
            "%s.path: %s (Python %s) could not load %s: %s%s"
            % (section, sys.executable, sys.version.split()[0], file, told(error), hint_for(error, section))
        )
    what, fits, is_one = kind
    found = getattr(module, name, None)
    if fits(found):
        return found
    others = [key for key, value in vars(module).items() if is_one(value) and value.__module__ == module_name]
    raise Refused("%s.name: %s has no %s '%s'; it has: %s" % (section, file, what, name, ", ".join(others) or "none"))
