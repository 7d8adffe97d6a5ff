"""The file that the dynamic loader uses for a library, by which rule, its version, and the libraries that it needs.

Only 64-bit little-endian files are supported, as on every machine with a data-centre GPU.
"""

from __future__ import annotations

import ctypes
import functools
import glob
import mmap
import os
import re
import struct
from dataclasses import dataclass, field
from typing import Any, Callable

from preflight.agent import command
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes.built import nccl_text
from preflight_checks.probes.isolated import Send, run_isolated

# elf(5): program header types and tags of the dynamic section.
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _RPATH, _RUNPATH = 1, 5, 15, 29
_MAX_ENTRIES = 4096


@dataclass(frozen=True)
class Dynamic:
    """The dynamic section. If there is a `runpath`, which is searched after LD_LIBRARY_PATH, the `rpath` does not count
    (ld.so(8)).
    """

    needed: list[str] = field(default_factory=list)
    rpath: list[str] = field(default_factory=list)
    runpath: list[str] = field(default_factory=list)


def read_dynamic_section(path: str) -> Dynamic | None:
    """Return the dynamic section of the library at `path`; None if there is none that can be read."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(data, os.path.dirname(os.path.realpath(path)))
    except (OSError, ValueError, struct.error, IndexError):
        return None


def _parse(data: mmap.mmap, origin: str) -> Dynamic | None:
    # \x7fELF, 64-bit, little-endian.
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads: list[tuple[int, int, int]] = []
    section: tuple[int, int] | None = None
    for number in range(count):
        kind, _, offset, address, _, length, _, _ = struct.unpack_from("<IIQQQQQQ", data, start + number * size)
        if kind == _LOAD:
            loads.append((address, offset, length))
        elif kind == _DYNAMIC:
            section = (offset, length)
    if section is None:
        return None
    entries: list[tuple[int, int]] = []
    for number in range(min(section[1] // 16, _MAX_ENTRIES)):
        tag, value = struct.unpack_from("<QQ", data, section[0] + number * 16)
        if tag == 0:
            break
        entries.append((tag, value))
    table = next((value for tag, value in entries if tag == _STRINGS), None)
    if table is None:
        return None
    strings = next(
        (table - address + offset for address, offset, size in loads if address <= table < address + size), table
    )
    texts: dict[int, list[str]] = {}
    for tag, value in entries:
        if tag in (_NEEDED, _RPATH, _RUNPATH):
            end = data.find(b"\0", strings + value)
            texts.setdefault(tag, []).append(data[strings + value : end].decode("utf-8", "replace"))
    return Dynamic(
        texts.get(_NEEDED, []), _folders(texts.get(_RPATH, []), origin), _folders(texts.get(_RUNPATH, []), origin)
    )


def _folders(paths: list[str], origin: str) -> list[str]:
    folders = [folder for path in paths for folder in path.split(":") if folder]
    expanded = (folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin) for folder in folders)
    return [os.path.normpath(folder) for folder in expanded]


#: ld.so(8): searched last.
DEFAULT_FOLDERS = ("/lib64", "/usr/lib64", "/lib", "/usr/lib", "/lib/*-linux-gnu", "/usr/lib/*-linux-gnu")
LOAD_S = 3.0
_VERSION_IN_NAME = re.compile(r"\.so\.(\d+\.\d+(?:\.\d+)*)$")


@dataclass(frozen=True)
class LibraryLookup:
    """A library as the loader finds it. `via` is the rule that found it; `path` is empty if it is not found."""

    name: str
    path: str = ""
    via: str = ""
    version: str = ""
    problem: str = ""


@functools.lru_cache(maxsize=1)
def loader_cache() -> dict[str, str]:
    """Return the loader's cache: the first path for each name. Empty if ldconfig cannot be run."""
    try:
        text = command.run(["ldconfig", "-p"], deadline_s=2.0, max_output_bytes=4 << 20).output
    except ProbeUnavailable:
        return {}
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = re.match(r"\s+(\S+) \(.*(?:x86-64|AArch64|64bit).*\) => (\S+)", line)
        if match:
            found.setdefault(match.group(1), match.group(2))
    return found


def locate(name: str, user: Dynamic | None) -> LibraryLookup:
    """Return the file that the loader uses for `name`, on behalf of the library with the section `user`, or of a
    program.
    """
    steps: list[tuple[str, list[str]]] = []
    if user is not None and user.rpath and not user.runpath:
        steps.append(("the RPATH of the library that needs it", user.rpath))
    steps.append(("LD_LIBRARY_PATH", [folder for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder]))
    if user is not None and user.runpath:
        steps.append(("the RUNPATH of the library that needs it", user.runpath))
    for via, folders in steps:
        for folder in folders:
            path = os.path.join(folder, name)
            if os.path.isfile(path):
                return LibraryLookup(name, path, via)
    if name in loader_cache():
        return LibraryLookup(name, loader_cache()[name], "the loader's cache (ldconfig)")
    for pattern in DEFAULT_FOLDERS:
        for path in glob.glob(os.path.join(pattern, name)):
            if os.path.isfile(path):
                return LibraryLookup(name, path, "the system's library folders")
    return LibraryLookup(name)


def with_version(lookup: LibraryLookup, distributions: dict[str, str], read: Callable[[Any], str]) -> LibraryLookup:
    """Return `lookup` with its version: from its file's name, from its distribution, or from the library itself.

    `distributions` are versions by folder in `nvidia/` (`cudnn`, `nccl`); `read` calls the loaded library.
    """
    if not lookup.path:
        return lookup
    version, problem = version_in_name(lookup.path), ""
    parts = os.path.realpath(lookup.path).split(os.sep)
    if not version and "nvidia" in parts[:-1]:
        version = distributions.get(parts[parts.index("nvidia") + 1], "")
    if not version:
        version, problem = _library_version(lookup.path, read)
    return LibraryLookup(lookup.name, lookup.path, lookup.via, version, problem)


def version_in_name(path: str) -> str:
    """Return the version at the end of the file's real name: `libnccl.so.2.21.5`."""
    match = _VERSION_IN_NAME.search(os.path.realpath(path))
    return match.group(1) if match else ""


def _library_version(path: str, read: Callable[[Any], str]) -> tuple[str, str]:
    def task(send: Send) -> None:
        send({"at": f"loading {path}"})
        send({"version": read(ctypes.CDLL(path))})

    (result,) = run_isolated([task], LOAD_S)
    if result.problem:
        return "", f"{result.at}: {result.detail or result.problem}"
    return str(result.values.get("version", "")), ""


def cudnn_version(library: Any) -> str:
    """Format cuDNN's version number: major * 1000 (10000 since 9) + minor * 100 + patch."""
    library.cudnnGetVersion.restype = ctypes.c_size_t
    number = int(library.cudnnGetVersion())
    major = number // 10000 if number >= 90000 else number // 1000
    rest = number - major * (10000 if number >= 90000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"


def nccl_version(library: Any) -> str:
    """Return the version of a loaded NCCL."""
    number = ctypes.c_int()
    library.ncclGetVersion(ctypes.byref(number))
    return nccl_text(number.value)


@dataclass(frozen=True)
class DriverLibrary:
    """The user-space driver, libcuda.so.1, as loaded by a program in this context.

    `problem` is empty, `missing`, `empty` (a zero-byte file, as a broken container mount leaves behind), `unloadable`
    or `timeout`. `empty_files` are further zero-byte driver libraries in the same folder.
    """

    path: str = ""
    version: str = ""
    problem: str = ""
    detail: str = ""
    empty_files: list[str] | None = None


DRIVER = "libcuda.so.1"


def driver_version(path: str) -> str:
    """Return the driver's version in a library's name; empty for names such as `.so.1.1` (WSL, Jetson)."""
    version = version_in_name(path)
    return version if version and int(version.split(".")[0]) >= 100 else ""


def driver_library() -> DriverLibrary:
    """Load the user-space driver in a separate process. Loading it does not start anything on the GPU."""
    (result,) = run_isolated([_load_driver], LOAD_S)
    expected = locate(DRIVER, None)
    path = str(result.values.get("path", "")) or expected.path
    if not result.problem:
        return DriverLibrary(path, driver_version(path), empty_files=_empty_siblings(path))
    if result.problem == "timeout":
        return DriverLibrary(path, driver_version(path), "timeout", f"loading it did not finish within {LOAD_S:g} s")
    if not path:
        return DriverLibrary(problem="missing", detail=result.detail)
    try:
        size = os.stat(path).st_size
    except OSError as error:
        return DriverLibrary(path, "", "unloadable", f"{path}: {error.strerror}")
    problem = "empty" if size == 0 else "unloadable"
    return DriverLibrary(path, driver_version(path), problem, result.detail, _empty_siblings(path))


def _load_driver(send: Send) -> None:
    send({"at": f"loading {DRIVER}"})
    ctypes.CDLL(DRIVER)
    with open("/proc/self/maps") as file:
        for line in file:
            if "/libcuda.so" in line:
                send({"path": line.split(None, 5)[-1].strip()})
                return


def _empty_siblings(path: str) -> list[str]:
    folder = os.path.dirname(path)
    found = []
    for name in ("libcuda.so*", "libnvidia-ml.so*", "libnvidia-ptxjitcompiler.so*", "libnvidia-nvvm.so*"):
        for file in glob.glob(os.path.join(folder, name)):
            try:
                if os.stat(file).st_size == 0:
                    found.append(os.path.basename(file))
            except OSError:
                continue
    return sorted(found)
