"""The state of a job's path on this node: existence, file system, names, sizes and content of files."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import stat
import time
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Iterable, Iterator, List, Tuple

from preflight_checks.probes.content import Sample, sampled
from preflight_checks.probes.mounts import SHARED, mount_of, mounted
from preflight_checks.probes.patterns import expanded, has_braces, indexed, is_list, listed

#: The number of files that are listed by name and size; more are counted and only enter the digest.
MAX_LISTED = 2000
#: The walk ends here, so that a directory with millions of files costs seconds at most.
MAX_WALKED = 50000
#: And here, if a server takes milliseconds for each file. The files listed until then differ from node to node.
TIME_LIMIT_S = 2.0


@dataclass(frozen=True)
class Entry:
    """A file below the path, by its name relative to it."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class PathState:
    """One path.

    `kind` is `file`, `directory`, `pattern` (files that match it), `indexed` (the prefix of a .bin and an .idx), `list`
    (a file and the files it names), `other` or empty if it does not exist; `problem` is `missing`, `denied`, `dangling`
    (a broken link), `stale` (its server no longer knows it) or `other`. `digest` is over all names and sizes; `listed`
    is the number of files in it, up to MAX_WALKED. `absent` are files that the path names but that do
    not exist. `samples` are digests of some files (none on a shared file system, whose `source` is compared instead),
    `sample_problem` why there are fewer. `hurried`: time was up before all files were seen, so that nothing can be
    compared.
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
    digest: str = ""
    absent: List[str] = field(default_factory=list)
    source: str = ""
    samples: List[Sample] = field(default_factory=list)
    sample_problem: str = ""
    hurried: bool = False


def path_state(params: Dict[str, Any]) -> PathState:
    """Examine `params["path"]`, relative to the working directory of the job context; `~` and $NAME are expanded.

    Runs in its own child process: a hung network file system makes that one time out, nothing else.
    """
    given = str(params["path"])
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given)))
    try:
        status = os.stat(resolved)
    except OSError as error:
        return _missing_path(given, resolved, error)
    state = _placed(PathState(given, resolved))
    if stat.S_ISREG(status.st_mode):
        if is_list(resolved):
            names = listed(resolved)
            if names is not None:
                return _collected(replace(state, kind="list"), [resolved, *names], os.path.dirname(resolved))
        state = _collected(replace(state, kind="file"), [resolved], os.path.dirname(resolved))
        return replace(state, entries=[])
    if not stat.S_ISDIR(status.st_mode):
        return replace(state, kind="other")
    if not os.access(resolved, os.R_OK | os.X_OK):
        return replace(state, kind="directory", problem="denied", detail="this user may not list it")
    return _collected(replace(state, kind="directory"), _walk(resolved), resolved)


def _placed(state: PathState) -> PathState:
    """Add the file system and its source; links are resolved to the actual location."""
    mount = mount_of(os.path.realpath(state.resolved), mounted())
    return replace(state, file_system=mount.kind, source=mount.source) if mount is not None else state


def _missing_path(given: str, resolved: str, error: OSError) -> PathState:
    names, kind = [], "pattern"  # type: List[str], str
    if has_braces(resolved):
        names = expanded(resolved)
        # Nothing of it exists: this is reported of the path itself, not of each of its files.
        names = names if any(os.path.lexists(name) for name in names) else []
    elif glob.has_magic(given):
        names = sorted(glob.glob(resolved, recursive=True))[:MAX_WALKED]
    elif indexed(resolved):
        names, kind = indexed(resolved), "indexed"
    if names:
        folder = os.path.dirname(os.path.commonprefix(names)) or "/"
        return _collected(replace(_placed(PathState(given, folder)), resolved=resolved, kind=kind), names, folder)
    if isinstance(error, PermissionError):
        return PathState(given, resolved, "", "denied", error.strerror or "")
    if os.path.islink(resolved):
        return PathState(given, resolved, "", "dangling", "it links to %s" % os.readlink(resolved))
    problem = "missing" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "other"
    problem = "stale" if error.errno == errno.ESTALE else problem
    return PathState(given, resolved, "", problem, error.strerror or str(error))


def _walk(folder: str) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield os.path.join(where, name)


def _collected(state: PathState, names: Iterable[str], base: str) -> PathState:
    found = []  # type: List[Tuple[str, int]]
    unreadable, absent = [], []  # type: List[str], List[str]
    readable = {}  # type: Dict[str, str]
    hurried = False
    ends = time.monotonic() + TIME_LIMIT_S
    explicit = state.kind in ("list", "indexed") or has_braces(state.path)
    for name in names:
        if len(found) >= MAX_WALKED:
            break
        if time.monotonic() > ends:
            hurried = True
            break
        shown = os.path.relpath(name, base)
        try:
            status = os.stat(name)
        except OSError:
            (absent if explicit and not os.path.lexists(name) else unreadable).append(shown)
            continue
        found.append((shown, status.st_size))
        if not os.access(name, os.R_OK):
            unreadable.append(shown)
        elif stat.S_ISREG(status.st_mode):
            readable[shown] = name
    # Files that all nodes read from one server are the same for all of them.
    samples, problem = ([], "") if hurried or state.file_system in SHARED else sampled(readable)
    return replace(
        state,
        size_bytes=sum(size for _name, size in found),
        entries=[Entry(name, size) for name, size in found[:MAX_LISTED]],
        unreadable=unreadable[:MAX_LISTED],
        absent=absent[:MAX_LISTED],
        listed=len(found),
        digest=_digest(found),
        samples=samples,
        sample_problem=problem,
        hurried=hurried,
    )


def _digest(found: List[Tuple[str, int]]) -> str:
    text = "\n".join("%s\t%d" % item for item in sorted(found))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
