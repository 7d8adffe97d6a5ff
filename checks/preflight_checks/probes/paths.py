"""What a path of the job is on this node: is it there, what file system, which files of which size."""

from __future__ import annotations

import glob
import hashlib
import os
import stat
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Tuple

#: So many files are listed by name and size; more are counted and enter the digest only.
MOST_LISTED = 2000
#: The walk ends here, so that a directory with millions of files costs seconds at most.
MOST_WALKED = 50000


@dataclass(frozen=True)
class Entry:
    """A file below the path, by its name relative to it."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class PathState:
    """One path.

    `kind` is `file`, `directory`, `pattern` (files that match it), `other` or empty when there is nothing;
    `problem` is `missing`, `denied`, `dangling` (a link to nothing) or `other`. `digest` is over all names and
    sizes; `listed` is how many files entered it, `truncated` that there are more.
    """

    path: str
    resolved: str = ""
    kind: str = ""
    problem: str = ""
    detail: str = ""
    size_bytes: int = 0
    file_system: str = ""
    entries: List[Entry] = field(default_factory=list)
    unreadable: List[str] = field(default_factory=list)
    listed: int = 0
    truncated: bool = False
    digest: str = ""


def path_state(params: Dict[str, Any]) -> PathState:
    """Look at `params["path"]`, relative to the working directory of the job context; `~` and $NAME are expanded.

    Runs in a child of its own: a hung network file system makes that one time out, nothing else.
    """
    given = str(params["path"])
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given)))
    try:
        status = os.stat(resolved)
    except OSError as error:
        return _absent(given, resolved, error)
    system = file_system(resolved, _read("/proc/self/mounts"))
    if stat.S_ISREG(status.st_mode):
        unreadable = [] if os.access(resolved, os.R_OK) else [os.path.basename(resolved)]
        digest = _digest([(os.path.basename(resolved), status.st_size)])
        return PathState(
            given,
            resolved,
            "file",
            "",
            "",
            status.st_size,
            system,
            unreadable=unreadable,
            listed=1,
            digest=digest,
        )
    if not stat.S_ISDIR(status.st_mode):
        return PathState(given, resolved, "other", file_system=system)
    if not os.access(resolved, os.R_OK | os.X_OK):
        return PathState(given, resolved, "directory", "denied", "this user may not list it", file_system=system)
    return _collected(given, resolved, "directory", system, _walk(resolved), resolved)


def _absent(given: str, resolved: str, error: OSError) -> PathState:
    if glob.has_magic(given):
        names = sorted(glob.glob(resolved, recursive=True))[:MOST_WALKED]
        if names:
            folder = os.path.dirname(os.path.commonprefix(names)) or "/"
            system = file_system(folder, _read("/proc/self/mounts"))
            return _collected(given, resolved, "pattern", system, iter(names), folder)
    if isinstance(error, PermissionError):
        return PathState(given, resolved, "", "denied", error.strerror or "")
    if os.path.islink(resolved):
        return PathState(given, resolved, "", "dangling", "it links to %s" % os.readlink(resolved))
    missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
    return PathState(given, resolved, "", "missing" if missing else "other", error.strerror or str(error))


def _walk(folder: str) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield os.path.join(where, name)


def _collected(given: str, resolved: str, kind: str, system: str, names: Iterator[str], base: str) -> PathState:
    found = []  # type: List[Tuple[str, int]]
    unreadable = []  # type: List[str]
    truncated = False
    for name in names:
        if len(found) >= MOST_WALKED:
            truncated = True
            break
        shown = os.path.relpath(name, base)
        try:
            status = os.stat(name)
            found.append((shown, status.st_size))
            if not os.access(name, os.R_OK):
                unreadable.append(shown)
        except OSError:
            unreadable.append(shown)
    entries = [Entry(name, size) for name, size in found[:MOST_LISTED]]
    return PathState(
        given,
        resolved,
        kind,
        "",
        "",
        sum(size for _name, size in found),
        system,
        entries,
        unreadable[:MOST_LISTED],
        len(found),
        truncated,
        _digest(found),
    )


def _digest(found: List[Tuple[str, int]]) -> str:
    text = "\n".join("%s\t%d" % item for item in sorted(found))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def file_system(path: str, mounts: str) -> str:
    """Type of the file system `path` lies on, from the text of /proc/self/mounts; empty when it cannot be told."""
    best, kind = "", ""
    for line in mounts.splitlines():
        parts = line.split(" ")
        if len(parts) < 3:
            continue
        at = parts[1].replace("\\040", " ")
        inside = path == at or path.startswith(at.rstrip("/") + "/")
        if inside and len(at) >= len(best):
            best, kind = at, parts[2]
    return kind


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
