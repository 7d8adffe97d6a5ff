"""How preflight gets into a Python on a node without a file being written there.

The command line carries only `LOADER`. It moves the channel away from everybody else, prints a nonce, and reads
the rest from the channel: a bundle of modules, which this module then serves to `import` from memory. The same
loader starts the agent over an executor's channel and a child in the job context over pipes, so wrappers such as
`apptainer exec` and `srun` need to pass nothing but three descriptors.
"""

from __future__ import annotations

import base64
import importlib.abc
import importlib.machinery
import importlib.util
import json
import struct
import sys
import zlib
from typing import Any, Dict, List, Optional

#: Exit code of a Python that is too old to go on.
TOO_OLD = 97
#: Exit code, and first word on standard error, when a node has no Python that will do.
NO_PYTHON = 98
NO_PYTHON_MARK = "preflight-no-python:"
#: Where tracebacks say that a module came from.
ORIGIN = "preflight-bundle:"

_LENGTH = struct.Struct(">I")

#: Runs on any Python from 2.7 on, so that an old one says so by its exit code instead of a traceback. The alarm
#: ends a loader whose bundle never arrives; `start` turns it off.
LOADER = """
import sys
if sys.version_info < (3, 8):
    sys.exit(%d)
sys.path[:] = [p for p in sys.path if p]
import os, signal
signal.alarm(60)
i = os.dup(0)
o = os.dup(1)
n = os.open(os.devnull, os.O_RDWR)
os.dup2(n, 0)
os.dup2(2, 1)
os.close(n)
os.write(o, ("\\n" + sys.argv[2] + "\\n").encode())
def take(size):
    data = b""
    while len(data) < size:
        more = os.read(i, min(65536, size - len(data)))
        if not more:
            os._exit(1)
        data += more
    return data
def blob():
    return take(int.from_bytes(take(4), "big"))
import json, zlib
z = blob()
b = json.loads(zlib.decompress(z).decode("utf-8"))
m = {"__name__": "preflight.node.bootstrap"}
exec(compile(b["modules"]["preflight.node.bootstrap"], "%s/preflight/node/bootstrap.py", "exec"), m)
m["start"](b, z, json.loads(blob().decode("utf-8")), i, o)
""" % (TOO_OLD, ORIGIN)

_RUN_LOADER = "import sys,zlib,binascii;exec(zlib.decompress(binascii.a2b_base64(sys.argv[1])))"
#: In this order: the first that is there and new enough is taken.
INTERPRETERS = (
    "python3",
    *("python3.%d" % minor for minor in range(14, 7, -1)),
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    *("/usr/bin/python3.%d" % minor for minor in range(14, 7, -1)),
    "python",
)


def packed_loader() -> str:
    """The loader in letters that mean nothing to any shell."""
    return base64.b64encode(zlib.compress(LOADER.encode(), 9)).decode()


def arguments(interpreter: str, nonce: str, flags: List[str]) -> List[str]:
    """The argument list that starts the loader in `interpreter`."""
    return [interpreter, *flags, "-c", _RUN_LOADER, packed_loader(), nonce]


def shell_line(nonce: str) -> str:
    """One line for a login shell on a node, which finds an interpreter and starts the loader in it.

    Any shell takes it (POSIX, csh, fish): all that they would read differently stands in one quoted word without
    quotes, backslashes, newlines or exclamation marks. `-I` keeps the directory of login from shadowing modules.
    """
    script = (
        'for p in %s; do command -v "$p" >/dev/null 2>&1 || continue; '
        '"$p" -I -u -c "%s" %s %s; r=$?; '
        'case $r in 2|%d|126|127) t="$t $p";; *) exit $r;; esac; done; '
        'echo "%s$t" >&2; exit %d'
    ) % (" ".join(INTERPRETERS), _RUN_LOADER, packed_loader(), nonce, TOO_OLD, NO_PYTHON_MARK, NO_PYTHON)
    return "exec sh -c '" + script + "'"


def first_words(bundle: bytes, entry: str, arguments: Dict[str, Any]) -> bytes:
    """What to send once the nonce was seen: the bundle, and which `module:function` to run with what."""
    what = json.dumps({"entry": entry, "arguments": arguments}, separators=(",", ":")).encode()
    return _LENGTH.pack(len(bundle)) + bundle + _LENGTH.pack(len(what)) + what


class BundleFinder(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    """Imports the modules of a bundle from memory, before anything of the same name on the node's disk."""

    def __init__(self, modules: Dict[str, str], packages: List[str]) -> None:
        self._modules = modules
        self._packages = frozenset(packages)

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """The spec of a module in the bundle; None leaves it to the others."""
        if fullname not in self._modules:
            return None
        spec = importlib.util.spec_from_loader(fullname, self, origin=self.get_filename(fullname))
        if spec is not None:
            # With a location, `__file__` is set and tracebacks and `inspect` ask `get_source` for lines.
            spec.has_location = True
        return spec

    def get_filename(self, fullname: str) -> str:
        """Where the module claims to be; no such file exists."""
        tail = "/__init__.py" if fullname in self._packages else ".py"
        return ORIGIN + "/" + fullname.replace(".", "/") + tail

    def get_source(self, fullname: str) -> Optional[str]:
        """The text of the module, for `import`, tracebacks and `inspect`."""
        return self._modules.get(fullname)

    def is_package(self, fullname: str) -> bool:
        """Whether the module can hold others."""
        return fullname in self._packages

    def get_code(self, fullname: str) -> Any:
        """The compiled module."""
        return compile(self._modules[fullname], self.get_filename(fullname), "exec", dont_inherit=True)


def start(content: Dict[str, Any], bundle: bytes, what: Dict[str, Any], fd_in: int, fd_out: int) -> None:
    """Called by the loader: serve the bundle to `import` and run the entry."""
    import importlib
    import signal

    sys.meta_path.insert(0, BundleFinder(content["modules"], content["packages"]))
    module, _, name = what["entry"].partition(":")
    sys.argv[:] = [what["entry"]]
    signal.alarm(0)
    getattr(importlib.import_module(module), name)(bundle, fd_in, fd_out, **what["arguments"])
