"""How preflight gets into a Python on a node without a file being written there.

The command line carries only `LOADER`. It moves the channel away from everybody else, prints a nonce, and reads
the rest from the channel: a bundle of modules, which this module then serves to `import` from memory. The same
loader starts the agent over an executor's channel and a child in the job context over pipes, so wrappers such as
`apptainer exec` and `srun` need to pass nothing but three descriptors.
"""

from __future__ import annotations

import binascii
import gc
import json
import marshal
import struct
import sys
import zlib
from contextlib import suppress
from importlib import _bootstrap_external, import_module
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Optional, Sequence

#: Which Python's code objects this one takes; `importlib.util`, which tells it too, is slow to import.
MAGIC_NUMBER: bytes = _bootstrap_external.MAGIC_NUMBER
#: Exit code of a Python that is too old to go on.
TOO_OLD = 97
#: Exit code, and first word on standard error, when a node has no Python that will do.
NO_PYTHON = 98
NO_PYTHON_MARK = "preflight-no-python:"
#: Where tracebacks say that a module came from.
ORIGIN = "preflight-bundle:"

_LENGTH = struct.Struct(">I")

#: Short, because it is part of a command line, which has to fit into one packet: a link that swallows large ones is
#: known by the loss of what comes next. Runs on any Python from 2.7 on, so that an old one says so by its exit code
#: instead of a traceback. The alarm ends a loader whose bundle never arrives; `start` turns it off. A pipe on standard
#: input is made a megabyte large (1031 is F_SETPIPE_SZ), because Hydra gives up a rank whose pipe is full
#: (pmodels/mpich#2336).
LOADER = (
    """
import sys
if sys.version_info < (3, 8):
    sys.exit(%d)
sys.path[:] = [p for p in sys.path if p]
import os, signal
signal.alarm(60)
i = os.dup(0)
o = os.dup(1)
try:
    import fcntl
    fcntl.fcntl(i, 1031, 1048576)
except (ImportError, OSError):
    pass
n = os.open(os.devnull, os.O_RDWR)
os.dup2(n, 0)
os.dup2(2, 1)
os.close(n)
os.write(o, ("\\n" + sys.argv[2] + "\\n").encode())
def take(size):
    parts = []
    while size:
        more = os.read(i, min(1048576, size))
        if not more:
            os._exit(1)
        parts.append(more)
        size -= len(more)
    return b"".join(parts)
def blob():
    return take(int.from_bytes(take(4), "big"))
exec(blob())
"""
    % TOO_OLD
)
#: What the loader runs first of what it is sent: it takes the bundle apart as far as `start` below, and runs that.
_STARTER = (
    """
import gc
gc.disable()
import json, marshal, zlib
from importlib import _bootstrap_external
b = blob()
e = 4 + int.from_bytes(b[:4], "big")
h = json.loads(b[4:e].decode("utf-8"))
k = "preflight.node.bootstrap"
m = {"__name__": k}
def part(place):
    return zlib.decompress(b[e + place[0] : e + place[1]])
if h["magic"] == _bootstrap_external.MAGIC_NUMBER.hex():
    c = marshal.loads(part(h["compiled"][k]))
else:
    c = compile(part(h["packed"][k]), "%s/preflight/node/bootstrap.py", "exec")
exec(c, m)
m["start"](h, b[e:], b, json.loads(blob().decode("utf-8")), i, o)
"""
    % ORIGIN
)

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
    return binascii.b2a_base64(zlib.compress(LOADER.encode(), 9), newline=False).decode()


def arguments(interpreter: str, nonce: str, flags: List[str]) -> List[str]:
    """The argument list that starts the loader in `interpreter`."""
    return [interpreter, *flags, "-c", _RUN_LOADER, packed_loader(), nonce]


def shell_line(nonce: str) -> str:
    """One line for a login shell on a node, which finds an interpreter and starts the loader in it.

    Any shell takes it (POSIX, csh, fish): all that they would read differently stands in one quoted word without
    quotes, backslashes, newlines or exclamation marks. `-I` keeps the directory of login from shadowing modules; `-S`
    leaves out what a site hooks into every start of Python: it may be slow or broken, and the agent needs none of it.
    """
    script = (
        'for p in %s; do command -v "$p" >/dev/null 2>&1 || continue; '
        '"$p" -I -S -u -c "%s" %s %s; r=$?; '
        'case $r in 2|%d|126|127) t="$t $p";; *) exit $r;; esac; done; '
        'echo "%s$t" >&2; exit %d'
    ) % (" ".join(INTERPRETERS), _RUN_LOADER, packed_loader(), nonce, TOO_OLD, NO_PYTHON_MARK, NO_PYTHON)
    return "exec sh -c '" + script + "'"


def first_words(bundle: bytes, entry: str, arguments: Dict[str, Any]) -> bytes:
    """What to send once the nonce was seen: a bundle of `preflight.bundle`, and what to run: `module:function`."""
    what = json.dumps({"entry": entry, "arguments": arguments}, separators=(",", ":")).encode()
    return b"".join(_LENGTH.pack(len(part)) + part for part in (_STARTER.encode(), bundle, what))


def filename(module: str, packaged: bool) -> str:
    """Where a module of the bundle claims to be; no such file exists."""
    return ORIGIN + "/" + module.replace(".", "/") + ("/__init__.py" if packaged else ".py")


class BundleFinder:
    """Imports the modules of a bundle from memory, before anything of the same name on the node's disk.

    It is a finder and a loader by its methods alone: the abstract classes for both cost more to import than all else
    that is needed here.
    """

    def __init__(
        self,
        modules: Dict[str, str],
        packages: List[str],
        ready: Sequence[str] = (),
        packed: Optional[Dict[str, List[int]]] = None,
        compiled: Optional[Dict[str, List[int]]] = None,
        appendix: bytes = b"",
    ) -> None:
        """`packed` and `compiled` say where in the appendix lie compressed sources, and code of a like Python.

        `packed[""]` is where the sources of all `modules` lie together, where those are empty here.
        """
        self._modules = modules
        self._packages = frozenset(packages)
        self._ready = tuple(package + "." for package in ready)
        self._packed = dict(packed or {})
        self._together = self._packed.pop("", None)
        self._marshalled = compiled or {}
        self._appendix = appendix
        self._compiled: Dict[str, CodeType] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """The spec of a module in the bundle; None leaves it to the others."""
        if not self.holds(fullname):
            return None
        packaged = fullname in self._packages
        spec = ModuleSpec(fullname, self, origin=self.get_filename(fullname), is_package=packaged)  # type: ignore[arg-type]
        # With a location, `__file__` is set and tracebacks and `inspect` ask `get_source` for lines.
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind of module."""

    def exec_module(self, module: Any) -> None:
        """Run the module's code in it."""
        exec(self.get_code(module.__name__), module.__dict__)

    def is_ready(self, fullname: str) -> bool:
        """Whether importing the module does nothing that a process which must not wait should leave to its children."""
        return fullname.startswith(self._ready) and self.holds(fullname)

    def add(self, modules: Dict[str, str], packages: Sequence[str]) -> None:
        """Serve these too, by name with their sources."""
        self._modules.update(modules)
        self._packages |= frozenset(packages)

    def holds(self, fullname: str) -> bool:
        """Whether the module is in the bundle."""
        return fullname in self._modules or fullname in self._packed

    def get_filename(self, fullname: str) -> str:
        """Where the module claims to be; no such file exists."""
        return filename(fullname, fullname in self._packages)

    def get_source(self, fullname: str) -> Optional[str]:
        """The text of the module, for `import`, tracebacks and `inspect`."""
        packed = self._packed.pop(fullname, None)
        if packed is not None:
            self._modules[fullname] = self._part(packed).decode("utf-8")
        elif self._together is not None and fullname in self._modules:
            self._modules.update(json.loads(self._part(self._together).decode("utf-8")))
            self._together = None
        return self._modules.get(fullname)

    def _part(self, place: Sequence[int]) -> bytes:
        return zlib.decompress(self._appendix[place[0] : place[1]])

    def is_package(self, fullname: str) -> bool:
        """Whether the module can hold others."""
        return fullname in self._packages

    def get_code(self, fullname: str) -> CodeType:
        """The compiled module; compiled once, also for processes that are forked later."""
        code = self._compiled.get(fullname)
        if code is None:
            marshalled = self._marshalled.pop(fullname, None)
            if marshalled is not None:
                code = marshal.loads(self._part(marshalled))
            else:
                source = self.get_source(fullname) or ""
                code = compile(source, self.get_filename(fullname), "exec", dont_inherit=True)
            self._compiled[fullname] = code
        return code


def prepare(module: str) -> None:
    """Import a module of the bundle, or compile it where importing may do more, so that forked processes need not."""
    for finder in sys.meta_path:
        if isinstance(finder, BundleFinder) and finder.holds(module):
            with suppress(Exception):  # Whoever needs it will say so.
                if finder.is_ready(module):
                    import_module(module)
                else:
                    finder.get_code(module)


def extend(bundle: bytes, modules: Dict[str, str], packages: Sequence[str]) -> bytes:
    """Serve further modules to `import` here, and the bundle with them, for processes that are still to be started."""
    for finder in sys.meta_path:
        if isinstance(finder, BundleFinder):
            finder.add(modules, packages)
    end = 4 + int.from_bytes(bundle[:4], "big")
    content = json.loads(bundle[4:end].decode("utf-8"))
    appendix = bytearray(bundle[end:])
    for name, source in modules.items():
        began = len(appendix)
        appendix += zlib.compress(source.encode("utf-8", "surrogatepass"))
        content["packed"][name] = [began, len(appendix)]
    content["packages"] = sorted({*content["packages"], *packages})
    head = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    return _LENGTH.pack(len(head)) + head + bytes(appendix)


def start(
    content: Dict[str, Any], appendix: bytes, bundle: bytes, what: Dict[str, Any], fd_in: int, fd_out: int
) -> None:
    """Called by the loader: serve the bundle to `import` and run the entry."""
    import signal

    # The loader has run this module already, under no name: once is enough.
    mine = ModuleType("preflight.node.bootstrap")
    mine.__dict__.update(globals())
    sys.modules["preflight.node.bootstrap"] = mine
    compiled = content["compiled"] if content["magic"] == MAGIC_NUMBER.hex() else {}
    own = (dict.fromkeys(content["modules"], ""), content["packages"], content["ready"])
    finder = BundleFinder(*own, content["packed"], compiled, appendix)
    sys.meta_path.insert(0, finder)
    module, _, name = what["entry"].partition(":")
    sys.argv[:] = [what["entry"]]
    signal.alarm(0)
    function = getattr(import_module(module), name)
    # Nothing of what was imported is garbage, neither here nor in any fork.
    gc.freeze()
    gc.enable()
    function(bundle, fd_in, fd_out, **what["arguments"])
