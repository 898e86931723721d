"""A process that makes a user's data set in Python, as verl makes it, and writes its rows down.

The first message says which class, and of what; ts/data/python/protocol.ts has all of them.
"""

import hashlib
import importlib
import inspect
import os
import queue
import sys
import threading
import time
import traceback

import verl_dataset
from dataset_rows import Columns
from troupe_process import CLASS, Channel, Refused, Told, bear_signals, end_with_parent, load, refuse_by_hand, told, with_calls

SECTION = "data.custom_cls"
# Seconds between signs of life.
SIGN = 0.5
# Bytes that are written at once.
CHUNK = 1 << 20


class Section(dict):
    """A section of the configuration as verl's code reads it, where OmegaConf is not installed: by key, by `get`, by attribute."""

    def __init__(self, values):
        super().__init__((key, Section(value) if isinstance(value, dict) else value) for key, value in values.items())

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError("the configuration of the data has no key '%s'" % name) from None


def section(values):
    try:
        from omegaconf import OmegaConf
    except ImportError:
        return Section(values)
    return OmegaConf.create(values)


class Deferred:
    """Stands for what cannot be had, and says so where it is used."""

    def __init__(self, why):
        self.__dict__["_why"] = why

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        raise ImportError(self._why)

    def __call__(self, *_, **__):
        raise ImportError(self._why)


def of_transformers(what, directory):
    """A tokenizer (AutoTokenizer) or a processor (AutoProcessor) of a model's directory."""
    try:
        import transformers

        return getattr(transformers, what).from_pretrained(directory)
    except Exception as error:
        return Deferred(
            "the class asks for the %s of %s, which transformers reads in %s: %s" % (what[4:].lower(), directory, sys.executable, told(error))
        )


def tokenizer_of(setup):
    tokenizer = of_transformers("AutoTokenizer", setup["tokenizer"])
    if setup["chat_template"] is not None and not isinstance(tokenizer, Deferred):
        tokenizer.chat_template = setup["chat_template"]
    return tokenizer


def load_class(path, name):
    # As `python -m` has it, where verl is started.
    sys.path[0] = os.getcwd()
    try:
        importlib.import_module("verl.utils.dataset.rl_dataset")
    except BaseException as error:
        # Otherwise verl itself is there, and something that it needs is not.
        if not isinstance(error, ModuleNotFoundError) or (error.name or "").split(".")[0] != "verl":
            raise Refused("%s.python: %s could not import verl.utils.dataset: %s" % (SECTION, sys.executable, told(error)))
        verl_dataset.install()
    return load(path, name, SECTION, CLASS)


class Watch:
    """Sees that something goes on, and tells where it does not."""

    def __init__(self, channel, seconds):
        self.channel = channel
        self.seconds = seconds
        self.at = "the module was loaded"
        self.since = time.monotonic()
        threading.Thread(target=self._watch, daemon=True).start()

    def now(self, at):
        self.at, self.since = at, time.monotonic()

    def begin(self, at):
        "As now, told at once: of a process that ends in it nothing else is heard."
        self.now(at)
        self.channel.send(type="at", at=at)

    def _watch(self):
        while True:
            time.sleep(min(SIGN, self.seconds / 4))
            if time.monotonic() - self.since > self.seconds:
                self._late()
            self.channel.send(type="at", at=self.at)

    def _late(self):
        frame = sys._current_frames().get(threading.main_thread().ident)
        what = "nothing came within %s.timeout, %g s, while %s" % (SECTION, self.seconds, self.at)
        self.channel.send(type="failed", error=with_calls(what, traceback.extract_stack(frame)), configuration=False)
        os._exit(1)


class Spool:
    """A file that is written once, in large pieces."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.digest = hashlib.sha256()
        self.bytes = 0
        self._pending = bytearray()

    def add(self, line):
        self._pending += line
        if len(self._pending) >= CHUNK:
            self.flush()

    def flush(self):
        data = memoryview(bytes(self._pending))
        self._pending.clear()
        self.digest.update(data)
        self.bytes += len(data)
        while data:
            try:
                data = data[os.write(self.descriptor, data) :]
            except OSError as error:
                raise Told("its rows could not be written down: %s (TMPDIR says where)" % error.strerror)


def made(found, given, setup, config, tokenizer, processor):
    """The data set of one of the sets of files."""
    arguments = {
        "data_files": given["files"],
        "tokenizer": tokenizer,
        "processor": processor,
        "config": config,
        "max_samples": given["max_samples"],
    }
    try:
        known = inspect.signature(found).parameters
        # Classes for older versions of verl do without.
        if "max_samples" not in known and not any(one.kind is one.VAR_KEYWORD for one in known.values()):
            del arguments["max_samples"]
    except (TypeError, ValueError):
        pass
    dataset = found(**arguments)
    if hasattr(dataset, "on_batch_end"):
        raise Refused(
            "%s: %s has on_batch_end, which would change the data while the run goes on: its rows are made once, before the run: "
            "name a class without it" % (SECTION + ".name", setup["name"])
        )
    for name in ("__len__", "__getitem__"):
        if not hasattr(type(dataset), name):
            raise Refused("%s: %s has no %s: expected rows by number, as torch.utils.data.Dataset has them" % (SECTION + ".name", setup["name"], name))
    return dataset


def write_set(found, given, setup, columns, shared, watch):
    what = given["what"]
    watch.begin("the %s set was made" % what)
    try:
        dataset = made(found, given, setup, *shared)
        count = len(dataset)
    except Told:
        raise
    except BaseException as error:
        raise Told("while the %s set was made: %s" % (what, told(error)))
    spool = Spool(given["descriptor"])
    for i in range(count):
        (watch.now if i else watch.begin)("%s row %d of %d was made" % (what, i, count))
        try:
            spool.add(columns.line(dataset[i]))
        except BaseException as error:
            raise Told("%s row %d: %s" % (what, i, told(error)))
    spool.flush()
    return {"what": what, "rows": count, "bytes": spool.bytes, "digest": spool.digest.hexdigest()}


def run(setup, watch):
    found = load_class(setup["path"], setup["name"])
    watch.begin("the tokenizer was loaded")
    processor = of_transformers("AutoProcessor", setup["tokenizer"]) if setup["reads_images"] else None
    shared = section(setup["config"]), tokenizer_of(setup), processor
    columns = Columns(**setup["columns"])
    return [write_set(found, given, setup, columns, shared, watch) for given in setup["sets"]]


def main():
    refuse_by_hand()
    end_with_parent()
    # Printing what the encoding cannot hold is no reason to fail.
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")
    channel = Channel()
    channel.send(type="at", at="it was started")
    messages = queue.SimpleQueue()
    threading.Thread(target=channel.read, args=(messages.put,), daemon=True).start()
    setup = messages.get()
    spools = [one["descriptor"] for one in setup["sets"]]
    for one in spools:
        os.set_inheritable(one, False)
    bear_signals(spools)
    watch = Watch(channel, setup["timeout"])
    try:
        channel.send(type="done", sets=run(setup, watch))
    except BaseException as error:
        channel.send(type="failed", error=told(error), configuration=isinstance(error, Refused))
    # What the class has left behind, such as threads, is not waited for.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
