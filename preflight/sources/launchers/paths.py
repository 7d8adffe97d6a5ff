"""The files that words of a command line name, as the command would open them."""

from __future__ import annotations

import posixpath

from preflight.job import Unresolved, Value
from preflight.sources.base import LaunchLine, SourceFile, Tree
from preflight.sources.launchers.options import glue, texts

#: What the shell reader says of `$PWD` and its like.
_STARTED_IN = "the directory it is started in"


def relative(path: str, line: LaunchLine, tree: Tree) -> str | None:
    """`path` as the command would open it, relative to the root; None when it leads outside."""
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
        # `$(dirname "$0")/ds.json` comes as a path from the root already.
        return posixpath.normpath(path)
    return posixpath.normpath(found)


def paths_of(value: Value, parts: tuple[Value, ...] = ()) -> tuple[str, ...]:
    """Every path a word may be; `$PWD/train.py` and `$SLURM_SUBMIT_DIR/train.py` are paths from where it runs."""
    if not isinstance(value, Unresolved):
        return texts(value)
    if len(parts) < 2 or not isinstance(parts[0], Unresolved) or _STARTED_IN not in parts[0].why:
        return ()
    return tuple(text.lstrip("/") for text in texts(glue(parts[1:])) if text.startswith("/"))


def module_path(name: str, line: LaunchLine, tree: Tree) -> str:
    """The file that `python -m NAME` runs, relative to the root; the likeliest one where there is none."""
    flat = name.replace(".", "/")
    for candidate in (f"{flat}.py", f"{flat}/__main__.py", f"{flat}/__init__.py"):
        found = relative(candidate, line, tree)
        if found is not None and isinstance(tree.read(found), SourceFile):
            return found
    return relative(f"{flat}.py", line, tree) or f"{flat}.py"
