"""The state of a job's path on this node: existence, file system, names, sizes and content of its files."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import re
import stat
import time
from dataclasses import dataclass, field, replace
from typing import Any, Iterable, Iterator

from preflight_checks.probes.cgroups import SHARED, mount_of, mounted

#: A pattern may expand to more; no folder has that many shards.
MAX_NAMES = 50000
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"^(-?\d+)\.\.(-?\d+)(?:\.\.(\d+))?$")
_LETTERS = re.compile(r"^([A-Za-z])\.\.([A-Za-z])$")
_MAX_LIST_BYTES = 4 << 20


def has_braces(text: str) -> bool:
    """Whether the text contains brace expansions, as in webdataset and the shell."""
    return any(_alternatives(found) is not None for found in _BRACES.findall(text))


def expanded(text: str) -> list[str]:
    """All expansions of a text with braces, at most MAX_NAMES; a text without braces expands to itself."""
    found: list[str] = []
    for name in _expand(text):
        if len(found) >= MAX_NAMES:
            break
        found.append(name)
    return found


def _expand(text: str) -> Iterator[str]:
    for match in _BRACES.finditer(text):
        choices = _alternatives(match.group(1))
        if choices is None:
            continue
        for choice in choices:
            for rest in _expand(text[match.end() :]):
                yield text[: match.start()] + choice + rest
        return
    yield text


def _alternatives(inside: str) -> list[str] | None:
    numbers = _RANGE.match(inside)
    if numbers:
        first, last, step = numbers.group(1), numbers.group(2), max(1, int(numbers.group(3) or 1))
        low, high = int(first), int(last)
        if abs(high - low) // step > MAX_NAMES:
            return None
        padded = any(len(word.lstrip("-")) > 1 and word.lstrip("-").startswith("0") for word in (first, last))
        width = max(len(first), len(last)) if padded else 0
        values = range(low, high + 1, step) if low <= high else range(low, high - 1, -step)
        return [str(value).zfill(width) for value in values]
    letters = _LETTERS.match(inside)
    if letters:
        low, high = ord(letters.group(1)), ord(letters.group(2))
        return [chr(code) for code in (range(low, high + 1) if low <= high else range(low, high - 1, -1))]
    return inside.split(",") if "," in inside else None


def indexed(prefix: str) -> list[str]:
    """The two files of an indexed data set that is named by its prefix (Megatron-LM's --data-path); empty if it is not
    one.
    """
    files = [prefix + ".bin", prefix + ".idx"]
    return files if any(os.path.exists(name) for name in files) else []


def is_list(path: str) -> bool:
    """Whether a file lists others, by its name (Paddle's train.list)."""
    return path.endswith((".list", ".filelist", "file_list.txt", "filelist.txt"))


def listed(path: str) -> list[str] | None:
    """The files that a list names, one a line, first word; relative ones as the reader finds them. None: unreadable.

    Readers resolve a name from the working directory; lists are often written for their own folder, so that is tried if
    the first location does not exist.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(_MAX_LIST_BYTES).splitlines()
    except OSError:
        return None
    folder = os.path.dirname(path)
    found: list[str] = []
    for line in lines[:MAX_NAMES]:
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        here, candidate = os.path.abspath(words[0]), os.path.join(folder, words[0])
        found.append(candidate if not os.path.exists(here) and os.path.exists(candidate) else here)
    return found


#: The number of files that are read; the selection depends on their names alone, so that every node reads the same.
MAX_FILES = 8
#: A file up to this size is read completely; of a larger one its head, middle and tail.
FULL_READ_BYTES = 1 << 20
PIECE_BYTES = 64 * 1024
#: No further file is read after this time; a slow disk must not delay the check.
CONTENT_TIME_LIMIT_S = 1.5


@dataclass(frozen=True)
class Sample:
    """A digest of one file: of all of it (`whole`), or of its size, head, middle and tail."""

    name: str
    size_bytes: int
    digest: str
    whole: bool


def chosen(names: Iterable[str]) -> list[str]:
    """The names to read, selected by their hashes: practically random, and the same ones on every node."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())[:MAX_FILES]


def sampled(files: dict[str, str]) -> tuple[list[Sample], str]:
    """Digests of some of the files (name -> path), and why there are fewer than planned."""
    found: list[Sample] = []
    began = time.monotonic()
    for name in chosen(files):
        if time.monotonic() - began > CONTENT_TIME_LIMIT_S:
            return found, f"reading took longer than {CONTENT_TIME_LIMIT_S:.1f} s"
        try:
            found.append(digest_of(name, files[name]))
        except OSError as error:
            return found, f"{name}: {error.strerror or error}"
    return found, ""


def digest_of(name: str, path: str) -> Sample:
    """The digest of one regular file. Raises OSError."""
    # A name may have become a pipe meanwhile, and opening that would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        digest = hashlib.sha256(b"%d\n" % size)
        if size <= FULL_READ_BYTES:
            digest.update(file.read(FULL_READ_BYTES + 1) or b"")
            return Sample(name, size, digest.hexdigest()[:16], True)
        for place in (0, size // 2, size - PIECE_BYTES):
            file.seek(place)
            digest.update(file.read(PIECE_BYTES) or b"")
        return Sample(name, size, digest.hexdigest()[:16], False)


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
    entries: list[Entry] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    listed: int = 0
    digest: str = ""
    absent: list[str] = field(default_factory=list)
    source: str = ""
    samples: list[Sample] = field(default_factory=list)
    sample_problem: str = ""
    hurried: bool = False


def path_state(params: dict[str, Any]) -> PathState:
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
    names: list[str] = []
    kind: str = "pattern"
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
        return PathState(given, resolved, "", "dangling", f"it links to {os.readlink(resolved)}")
    problem = "missing" if isinstance(error, (FileNotFoundError, NotADirectoryError)) else "other"
    problem = "stale" if error.errno == errno.ESTALE else problem
    return PathState(given, resolved, "", problem, error.strerror or str(error))


def _walk(folder: str) -> Iterator[str]:
    for where, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted(files):
            yield os.path.join(where, name)


def _collected(state: PathState, names: Iterable[str], base: str) -> PathState:
    found: list[tuple[str, int]] = []
    unreadable: list[str] = []
    absent: list[str] = []
    readable: dict[str, str] = {}
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


def _digest(found: list[tuple[str, int]]) -> str:
    text = "\n".join("%s\t%d" % item for item in sorted(found))
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
