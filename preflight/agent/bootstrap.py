"""How preflight starts in a Python on a node without writing a file there.

The command line carries only `LOADER`. It moves the channel to another descriptor, away from other code, prints a
nonce, and reads the rest from the channel: a bundle of modules, which this module then serves to `import` from memory.
The same loader starts the agent over an executor's channel and a child in the job context over pipes, so wrappers such
as `apptainer exec` and `srun` need to pass on only three descriptors.
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
    from typing import Any, Sequence

#: The Python version whose code objects this one accepts; `importlib.util`, which provides it too, is slow to import.
MAGIC_NUMBER: bytes = _bootstrap_external.MAGIC_NUMBER
#: Exit code of a Python that is too old to continue.
TOO_OLD = 97
#: Exit code, and first word on standard error, when a node has no usable Python.
NO_PYTHON = 98
NO_PYTHON_MARK = "preflight-no-python:"
#: First line on standard output: the login shell has read its start-up files and runs the command.
SHELL_MARK = "preflight-shell"
#: The end of the message of a Python that is too old.
OLD_PYTHON_MARK = "is too old for preflight"
#: Prefix of the file names of modules in tracebacks.
ORIGIN = "preflight-bundle:"

_LENGTH = struct.Struct(">I")

#: Short, because it is part of a command line, which has to fit into one packet: a link that drops large ones is
#: detected by the loss of the next message. Runs on any Python from 2.7 on, so that an old one reports itself by its
#: exit code instead of a traceback. The alarm ends a loader whose bundle never arrives; `start` turns it off. A pipe on
#: standard input is enlarged to a megabyte (1031 is F_SETPIPE_SZ), because Hydra drops a rank whose pipe is full
#: (pmodels/mpich#2336).
LOADER = f"""
import sys
if sys.version_info < (3, 8):
    sys.stderr.write("Python %d.%d {OLD_PYTHON_MARK}\\n" % sys.version_info[:2])
    sys.exit({TOO_OLD})
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
#: The first code that the loader runs from its input: it unpacks the bundle as far as `start` below, and runs that.
_STARTER = f"""
import gc
gc.disable()
import json, marshal, zlib
from importlib import _bootstrap_external
b = blob()
e = 4 + int.from_bytes(b[:4], "big")
h = json.loads(b[4:e].decode("utf-8"))
k = "preflight.agent.bootstrap"
m = {{"__name__": k}}
def part(place):
    return zlib.decompress(b[e + place[0] : e + place[1]])
if h["magic"] == _bootstrap_external.MAGIC_NUMBER.hex():
    c = marshal.loads(part(h["compiled"][k]))
else:
    c = compile(part(h["packed"][k]), "{ORIGIN}/preflight/agent/bootstrap.py", "exec")
exec(c, m)
m["start"](h, b[e:], b, json.loads(blob().decode("utf-8")), i, o)
"""

_RUN_LOADER = "import sys,zlib,binascii;exec(zlib.decompress(binascii.a2b_base64(sys.argv[1])))"
#: In this order: the first that exists and is new enough is used.
INTERPRETERS = (
    "python3",
    *(f"python3.{minor}" for minor in range(14, 7, -1)),
    "/usr/bin/python3",
    "/usr/local/bin/python3",
    *(f"/usr/bin/python3.{minor}" for minor in range(14, 7, -1)),
    "python",
)


def packed_loader() -> str:
    """Return the loader, compressed and in base64, so that no shell interprets any of its characters."""
    return binascii.b2a_base64(zlib.compress(LOADER.encode(), 9), newline=False).decode()


def arguments(interpreter: str, nonce: str, flags: list[str]) -> list[str]:
    """Return the argument list that starts the loader in `interpreter`."""
    return [interpreter, *flags, "-c", _RUN_LOADER, packed_loader(), nonce]


def without_mark(text: str) -> str:
    """Return the output of a node while its agent starts, without the line that shows that the shell runs commands."""
    return "\n".join(line for line in text.splitlines() if SHELL_MARK not in line)


def shell_line(nonce: str) -> str:
    """Return one line for a login shell on a node that finds an interpreter and starts the loader in it.

    Any shell accepts it (POSIX, csh, fish): everything that they would interpret differently is in one quoted word
    without quotes, backslashes, newlines or exclamation marks. `-I` keeps the login directory from shadowing modules;
    `-S` skips a site's startup hooks, which may be slow or broken, and which the agent does not need.
    """
    script = (
        'echo %s; for p in %s; do command -v "$p" >/dev/null 2>&1 || continue; '
        '"$p" -I -S -u -c "%s" %s %s; r=$?; '
        'case $r in 2|%d|126|127) t="$t $p";; *) exit $r;; esac; done; '
        'echo "%s$t" >&2; exit %d'
    ) % (SHELL_MARK, " ".join(INTERPRETERS), _RUN_LOADER, packed_loader(), nonce, TOO_OLD, NO_PYTHON_MARK, NO_PYTHON)
    return "exec sh -c '" + script + "'"


def bootstrap_message(bundle: bytes, entry: str, arguments: dict[str, Any]) -> bytes:
    """Return the data to send after the nonce: a bundle, and the entry to run as `module:function`."""
    what = json.dumps({"entry": entry, "arguments": arguments}, separators=(",", ":")).encode()
    return b"".join(_LENGTH.pack(len(part)) + part for part in (_STARTER.encode(), bundle, what))


def filename(module: str, packaged: bool) -> str:
    """Return the value of `__file__` of a module in the bundle; no such file exists."""
    return ORIGIN + "/" + module.replace(".", "/") + ("/__init__.py" if packaged else ".py")


class BundleFinder:
    """Imports the modules of a bundle from memory, before anything of the same name on the node's disk.

    It is a finder and a loader only by its methods: importing the abstract classes for both costs more than everything
    else needed here.
    """

    def __init__(
        self,
        modules: dict[str, str],
        packages: list[str],
        ready: Sequence[str] = (),
        packed: dict[str, list[int]] | None = None,
        compiled: dict[str, list[int]] | None = None,
        appendix: bytes = b"",
    ) -> None:
        """`packed` and `compiled` locate sources (under "" all together) and matching code in the appendix."""
        self._modules = modules
        self._packages = frozenset(packages)
        self._ready = tuple(package + "." for package in ready)
        self._packed = dict(packed or {})
        self._joint_sources = self._packed.pop("", None)
        self._marshalled = compiled or {}
        self._appendix = appendix
        self._compiled: dict[str, CodeType] = {}

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a module in the bundle; None for any other module, which leaves it to other finders."""
        if not self.holds(fullname):
            return None
        packaged = fullname in self._packages
        spec = ModuleSpec(fullname, self, origin=self.get_filename(fullname), is_package=packaged)  # type: ignore[arg-type]
        # With a location, `__file__` is set and tracebacks and `inspect` request lines from `get_source`.
        spec.has_location = True
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        """Create a plain module."""

    def exec_module(self, module: Any) -> None:
        exec(self.get_code(module.__name__), module.__dict__)

    def is_ready(self, fullname: str) -> bool:
        """Return whether the module can be imported without work that might block."""
        return fullname.startswith(self._ready) and self.holds(fullname)

    def add(self, modules: dict[str, str], packages: Sequence[str]) -> None:
        """Also serve these modules, given by name with their sources."""
        self._modules.update(modules)
        self._packages |= frozenset(packages)

    def holds(self, fullname: str) -> bool:
        return fullname in self._modules or fullname in self._packed

    def get_filename(self, fullname: str) -> str:
        """Return the value of the module's `__file__`; no such file exists."""
        return filename(fullname, fullname in self._packages)

    def get_source(self, fullname: str) -> str | None:
        """Return the text of the module, for `import`, tracebacks and `inspect`."""
        packed = self._packed.pop(fullname, None)
        if packed is not None:
            self._modules[fullname] = self._part(packed).decode("utf-8")
        elif self._joint_sources is not None and fullname in self._modules:
            self._modules.update(json.loads(self._part(self._joint_sources).decode("utf-8")))
            self._joint_sources = None
        return self._modules.get(fullname)

    def _part(self, place: Sequence[int]) -> bytes:
        return zlib.decompress(self._appendix[place[0] : place[1]])

    def is_package(self, fullname: str) -> bool:
        return fullname in self._packages

    def get_code(self, fullname: str) -> CodeType:
        """Return the compiled module; compiled once, also for later forks."""
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
    """Import a module of the bundle before a fork, or only compile it if importing it may have effects."""
    for finder in sys.meta_path:
        if isinstance(finder, BundleFinder) and finder.holds(module):
            with suppress(Exception):  # The child that needs it reports the error.
                if finder.is_ready(module):
                    import_module(module)
                else:
                    finder.get_code(module)


def extend(bundle: bytes, modules: dict[str, str], packages: Sequence[str]) -> bytes:
    """Serve additional modules to `import` here, and the bundle with them, for processes started later."""
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
    content: dict[str, Any], appendix: bytes, bundle: bytes, what: dict[str, Any], fd_in: int, fd_out: int
) -> None:
    """Serve the bundle to `import` and run the entry. Called by the loader."""
    import signal

    # The loader has already run this module without a name: once is enough.
    mine = ModuleType("preflight.agent.bootstrap")
    mine.__dict__.update(globals())
    sys.modules["preflight.agent.bootstrap"] = mine
    compiled = content["compiled"] if content["magic"] == MAGIC_NUMBER.hex() else {}
    own = (dict.fromkeys(content["modules"], ""), content["packages"], content["ready"])
    finder = BundleFinder(*own, content["packed"], compiled, appendix)
    sys.meta_path.insert(0, finder)
    module, _, name = what["entry"].partition(":")
    sys.argv[:] = [what["entry"]]
    signal.alarm(0)
    function = getattr(import_module(module), name)
    # No imported object is garbage, neither here nor in any fork.
    gc.freeze()
    gc.enable()
    function(bundle, fd_in, fd_out, **what["arguments"])
