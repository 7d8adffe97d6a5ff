"""Resolves the files that words of a command line name, as the command would open them."""

from __future__ import annotations

import posixpath

from preflight.model.job import Unresolved, Value
from preflight.model.job.symbols import Symbol, symbols_in
from preflight.sources.base import LaunchLine, SourceFile, Tree
from preflight.sources.launchers.option_parser import concatenate, texts


def relative(path: str, line: LaunchLine, tree: Tree) -> str | None:
    """Resolve `path` as the command would open it, relative to the root; None when it leads outside."""
    directory = line.command.directory
    base = posixpath.join(directory, "_") if directory else line.command.span.path
    outermost = line.command
    while outermost.outer is not None:
        outermost = outermost.outer
    if not directory:
        base = outermost.span.path
    found = tree.resolve(path, relative_to=base)
    if found is None:
        return None
    folder = posixpath.dirname(base)
    if folder and path.startswith(f"{folder}/") and not isinstance(tree.read(found), SourceFile):
        # `$(dirname "$0")/ds.json` is already relative to the root.
        return posixpath.normpath(path)
    return posixpath.normpath(found)


def paths_of(value: Value, parts: tuple[Value, ...] = ()) -> tuple[str, ...]:
    """Every path that a word may name; `$PWD/train.py` and `$SLURM_SUBMIT_DIR/train.py` count from its working
    directory.
    """
    if not isinstance(value, Unresolved):
        return texts(value)
    if len(parts) < 2 or Symbol.START_DIRECTORY not in symbols_in(parts[0]):
        return ()
    return tuple(text.lstrip("/") for text in texts(concatenate(parts[1:])) if text.startswith("/"))


def module_path(name: str, line: LaunchLine, tree: Tree) -> str:
    """The file that `python -m NAME` runs, relative to the root; the most likely one when none exists."""
    flat = name.replace(".", "/")
    for candidate in (f"{flat}.py", f"{flat}/__main__.py", f"{flat}/__init__.py"):
        found = relative(candidate, line, tree)
        if found is not None and isinstance(tree.read(found), SourceFile):
            return found
    return relative(f"{flat}.py", line, tree) or f"{flat}.py"
