"""How long this node takes to read a framework's files, and to import it."""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import dataclass
from typing import Any, Iterator

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import built

#: Limits on the number of modules, the bytes of the largest libraries, and the time.
MAX_FILES, MAX_BYTES, WITHIN_S = 120, 8 * 1024 * 1024, 2.5
_CHUNK = 1 << 20


@dataclass(frozen=True)
class ReadCost:
    """The time to read part of a package (`cut`: whether time ran out), and the last minute's load per core, if
    known.
    """

    package: str
    folder: str
    files: int
    took_s: float
    cut: bool = False
    load_per_core: float | None = None


def read_cost(params: dict[str, Any]) -> ReadCost:
    """Read modules and libraries of the first installed of `params["packages"]`; importing would take seconds."""
    for name in params["packages"]:
        folder = built.package(str(name))
        if folder:
            return _read_package(str(name), folder)
    raise ProbeUnavailable("missing", "none of {} is installed".format(", ".join(map(str, params["packages"]))))


def _read_package(package: str, folder: str) -> ReadCost:
    started_at = time.monotonic()
    files = total = 0
    cut = False
    for path in _files(folder):
        if files >= MAX_FILES or total >= MAX_BYTES:
            break
        if time.monotonic() - started_at > WITHIN_S:
            cut = True
            break
        try:
            with open(path, "rb") as file:
                total += len(file.read(_CHUNK))
        except OSError:
            continue
        files += 1
    return ReadCost(package, folder, files, round(time.monotonic() - started_at, 3), cut, _load())


def _load() -> float | None:
    try:
        return round(os.getloadavg()[0] / (os.cpu_count() or 1), 2)
    except OSError:
        return None


def _files(folder: str) -> Iterator[str]:
    """Yield the modules near the top of the package, which every import reads, and its libraries."""
    waiting: list[str] = [folder]
    seen = 0
    while waiting and seen < 200:
        here = waiting.pop(0)
        seen += 1
        try:
            entries = sorted(os.scandir(here), key=lambda entry: entry.name)
        except OSError:
            continue
        for entry in entries:
            if entry.name.endswith(".py") or ".so" in entry.name:
                yield entry.path
            elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


@dataclass(frozen=True)
class ImportCost:
    """The time that importing a package took, and the package's origin."""

    package: str
    took_s: float
    version: str = ""


def import_cost(params: dict[str, Any]) -> ImportCost:
    """Import the first of `params["packages"]` that is installed, in this process, and return how long it took."""
    for name in params["packages"]:
        if not built.package(str(name)):
            continue
        started_at = time.monotonic()
        try:
            module = importlib.import_module(str(name))
        except Exception as error:
            raise ProbeUnavailable("crashed", f"import {name}: {type(error).__name__}: {error}") from None
        return ImportCost(str(name), round(time.monotonic() - started_at, 3), str(getattr(module, "__version__", "")))
    raise ProbeUnavailable("missing", "none of {} is installed".format(", ".join(map(str, params["packages"]))))
