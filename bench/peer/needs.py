"""To be imported first: packages that are not there, or one that is too old, are told in one line, with the command that installs them."""
import importlib.util
import os
import sys

# Modules that the programs here import, and the packages that have them.
PACKAGES = {"torch": "torch", "transformers": "transformers", "safetensors": "safetensors", "numpy": "numpy", "PIL": "pillow"}


def only(*modules):
    """For a program that imports no others."""
    for name in set(PACKAGES) - set(modules):
        del PACKAGES[name]


def _tell(kind, error, trace):
    # Without a name it is a failure within a package, whose traceback says more.
    if not issubclass(kind, ImportError) or error.name is None:
        sys.__excepthook__(kind, error, trace)
        return
    module = error.name.split(".")[0]
    absent = [package for name, package in PACKAGES.items() if importlib.util.find_spec(name) is None]
    wanted = " ".join(absent if module in PACKAGES and absent else ["-U", PACKAGES.get(module, module)])
    command = f"{sys.executable} -m pip install {wanted}"
    print(f"{os.path.basename(sys.argv[0])}: {error}: {command} (docs/benchmarks.md has the versions that were measured)", file=sys.stderr)


sys.excepthook = _tell
