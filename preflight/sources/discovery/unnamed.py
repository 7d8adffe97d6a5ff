"""The kind of a file without a name, such as standard input, by its content."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Callable, Sequence

from preflight._util import toml
from preflight._util.budget import BudgetExceeded, current, running
from preflight.sources.base import Source, SourceFile
from preflight.sources.discovery.collect import STDIN
from preflight.sources.formats.tree import decode
from preflight.sources.shell.shell_source import startable

#: The first instruction of a container file, behind comments and arguments.
_FROM = re.compile(r"(?:[ \t]*(?:#[^\n]*|ARG[^\n]*)?\n)*FROM[ \t]+\S")


def name_by_content(content: bytes, sources: Sequence[Source]) -> str:
    """A name for the content of standard input, with the suffix of its kind.

    Without a suffix if a source recognises the content as it is, as manifests and scripts with a first line that names
    their shell, or if none does with any suffix.
    """
    found = decode(STDIN, content)
    if not isinstance(found, SourceFile):
        return STDIN
    with running():
        for suffix, may_be in _KINDS:
            name = STDIN + suffix
            file = SourceFile(name, found.text, found.sha256, found.size_bytes)
            try:
                if current().attempt(functools.partial(_is_kind, file, may_be, sources), len(content)):
                    return name
            except BudgetExceeded:
                continue
    return STDIN


def _is_kind(file: SourceFile, may_be: Callable[[SourceFile], bool], sources: Sequence[Source]) -> bool:
    return may_be(file) and any(source.recognises(file) for source in sources)


def _is_json(file: SourceFile) -> bool:
    if not file.text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(file.text)
    except (ValueError, RecursionError):
        return False
    return True


def _is_toml(file: SourceFile) -> bool:
    try:
        return bool(toml.loads(file.text))
    except (ValueError, RecursionError):
        return False


def _is_python(file: SourceFile) -> bool:
    """Whether it is Python that imports something; a command line of one word is valid Python, too."""
    try:
        tree = ast.parse(file.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(isinstance(node, ast.Import | ast.ImportFrom) for node in tree.body)


def _is_dockerfile(file: SourceFile) -> bool:
    return _FROM.match(file.text) is not None


def _is_shell(file: SourceFile) -> bool:
    return bool(startable([file]))


#: Suffixes in the order in which they are tried: what has a strict grammar first.
_KINDS: tuple[tuple[str, Callable[[SourceFile], bool]], ...] = (
    ("", lambda file: True),
    (".json", _is_json),
    (".toml", _is_toml),
    (".yaml", lambda file: ":" in file.text),
    (".dockerfile", _is_dockerfile),
    (".py", _is_python),
    (".sh", _is_shell),
)
