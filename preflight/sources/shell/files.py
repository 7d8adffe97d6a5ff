"""Which file of the tree a path in a script means."""

from __future__ import annotations

import posixpath

from preflight.sources.base import SourceFile
from preflight.sources.shell.document import Document
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import State


def locate(machine: Machine, state: State, path: str) -> str | None:
    """`path` as used by the script, relative to the root; None when it leads outside.

    A path is meant from where the script has changed to; where that is not known, from the script's own
    directory or the root.
    """
    if not path or len(path) > 1000 or "\n" in path or "\x00" in path or path.startswith("~"):
        return None
    here = machine.reading[-1] if machine.reading else machine.main.path
    if state.directory is not None and not path.startswith("/"):
        joined = posixpath.normpath(posixpath.join(state.directory or ".", path))
        if not joined.startswith("..") and isinstance(machine.tree.read(joined), SourceFile):
            return joined
    return machine.tree.resolve(path, relative_to=here)


def read(machine: Machine, state: State, path: str) -> SourceFile | None:
    """The file's content when it is in the tree."""
    target = locate(machine, state, path)
    if target is None:
        return None
    for written in reversed(machine.written):
        if written.path == target:
            return SourceFile(target, written.text, "", len(written.text))
    found = machine.tree.read(target)
    return found if isinstance(found, SourceFile) else None


def document(machine: Machine, file: SourceFile) -> Document:
    """The parsed file; parsed once."""
    known = machine.documents.get(file.path)
    if known is None:
        known = machine.documents[file.path] = Document.of_file(file.path, file.text)
    return known


def change_directory(machine: Machine, state: State, path: str | None) -> str | None:
    """The directory after `cd path`, relative to the root; None when it cannot be told."""
    if path is None or path.startswith(("~", "/")) or path == "-":
        if path is None or not path.startswith("/"):
            return None
        return machine.tree.resolve(path, relative_to=machine.main.path)
    here = machine.reading[-1] if machine.reading else machine.main.path
    if state.directory is not None:
        joined = posixpath.normpath(posixpath.join(state.directory or ".", path))
    else:
        # A path computed from the script's own place ($(dirname $0)/..) already counts from the root.
        own = posixpath.dirname(here)
        if own and (path == own or path.startswith(own + "/")):
            joined = posixpath.normpath(path)
        else:
            resolved = machine.tree.resolve(path, relative_to=here)
            if resolved is None:
                return None
            joined = posixpath.normpath(resolved)
    if joined.startswith(".."):
        return None
    return "" if joined == "." else joined
