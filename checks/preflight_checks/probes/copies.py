"""This node's own copies of the job's files: their hashes, their named numbers, and the code beside them."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Sequence, Tuple

from preflight_checks.probes.installed import commit_of
from preflight_checks.probes.named_values import named_values

#: Hand-written files of a job are smaller.
MAX_FILE_BYTES = 4 * 1024 * 1024
#: The code beside the training script: limits on the number of files, bytes and time.
MAX_CODE, MAX_CODE_BYTES, CODE_WITHIN_S = 1500, 64 * 1024 * 1024, 2.0
#: The number of files that are listed one by one; a larger tree has one hash.
MAX_NAMED = 400
_CODE = (".py", ".pyx", ".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp")
#: Folders with output of programs, or with installed packages.
_NOT_CODE = frozenset(
    ("__pycache__", "node_modules", "site-packages", "wandb", "outputs", "checkpoints", "logs", "build")
)


@dataclass(frozen=True)
class Copy:
    """One file. `problem` is `missing`, or the system's message why it cannot be read; `path` is its location."""

    name: str
    path: str = ""
    problem: str = ""
    sha256: str = ""
    size_bytes: int = 0
    numbers: Dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Copies:
    """The requested files, and the code in the working directory.

    `code` are short hashes by relative name, empty if there are more than MAX_NAMED; `code_hash` covers all of it,
    empty if the walk was cut off (`cut` is the reason) or there is nothing to walk.
    """

    directory: str
    copies: List[Copy] = field(default_factory=list)
    commit: str = ""
    code: Dict[str, str] = field(default_factory=dict)
    code_hash: str = ""
    code_files: int = 0
    cut: str = ""


def copies(params: Dict[str, Any]) -> Copies:
    """Examine `params["files"]`, pairs of a name and its possible locations, relative to the working directory.

    The first existing location counts. If one is found, the code below the working directory is hashed too, and listed
    one by one unless `params["whole"]` is true.
    """
    directory = os.getcwd()
    found = [_copy(str(name), [str(place) for place in places]) for name, places in params["files"]]
    if not any(copy.path and not copy.problem for copy in found) or _is_home(directory):
        return Copies(directory, found)
    listed, cut = _code(directory)
    whole = hashlib.sha256("".join("%s %s\n" % item for item in sorted(listed.items())).encode("utf-8", "replace"))
    return Copies(
        directory,
        found,
        commit_of(directory),
        listed if len(listed) <= MAX_NAMED and not params.get("whole") else {},
        "" if cut else whole.hexdigest()[:16],
        len(listed),
        cut,
    )


def _is_home(directory: str) -> bool:
    """A home directory holds more than a job, and intentionally differs between nodes."""
    return os.path.realpath(directory) in (os.path.realpath(os.path.expanduser("~")), "/")


def _copy(name: str, places: Sequence[str]) -> Copy:
    for place in places:
        try:
            if not os.path.exists(place):
                continue
            path = os.path.abspath(place)
            if not os.path.isfile(place):
                return Copy(name, path, "it is not a regular file")
            with open(place, "rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            return Copy(name, os.path.abspath(place), error.strerror or str(error))
        if len(data) > MAX_FILE_BYTES:
            return Copy(
                name, path, "it is larger than %d MiB" % (MAX_FILE_BYTES >> 20), size_bytes=os.path.getsize(place)
            )
        numbers = named_values(name, data.decode("utf-8", "replace"))
        return Copy(name, path, "", hashlib.sha256(data).hexdigest(), len(data), numbers)
    return Copy(name, "", "missing")


def _code(directory: str) -> Tuple[Dict[str, str], str]:
    """Short hashes by relative name, and why the walk was cut off."""
    until = time.monotonic() + CODE_WITHIN_S
    listed = {}  # type: Dict[str, str]
    read = 0
    for path in _sources(directory):
        if time.monotonic() > until:
            return listed, "reading the code took longer than %g s" % CODE_WITHIN_S
        if len(listed) >= MAX_CODE or read >= MAX_CODE_BYTES:
            return listed, "there is more code than %d files or %d MiB" % (MAX_CODE, MAX_CODE_BYTES >> 20)
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_FILE_BYTES)
        except OSError:
            data = b""
        read += len(data)
        listed[os.path.relpath(path, directory)] = hashlib.sha256(data).hexdigest()[:12]
    return listed, ""


def _sources(directory: str) -> Iterator[str]:
    for where, folders, files in os.walk(directory):
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name not in _NOT_CODE
            and not os.path.exists(os.path.join(where, name, "pyvenv.cfg"))
        )
        for name in sorted(files):
            path = os.path.join(where, name)
            if name.endswith(_CODE) and os.path.isfile(path):
                yield path
