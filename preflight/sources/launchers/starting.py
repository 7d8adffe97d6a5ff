"""The training program that a launcher starts, as a launch, with what its arguments claim."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from preflight.job import Claim, Launch, Reference, one_of
from preflight.lazy.dataclasses import dataclass
from preflight.sources.base import LaunchLine, SourceFile, Tree, Word
from preflight.sources.launchers.arguments import argument_claims
from preflight.sources.launchers.options import head, text_of
from preflight.sources.launchers.paths import module_path, paths_of, relative
from preflight.sources.launchers.programs import python_program
from preflight.sources.launchers.stating import Stating
from preflight.sources.launchers.trainer_arguments import trainer_claims


@dataclass(frozen=True, slots=True)
class Started:
    """The training program a launcher starts, as a launch, with what its arguments claim."""

    launch: Launch
    claims: tuple[Claim, ...]
    references: tuple[Reference, ...]


def started(
    line: LaunchLine,
    launcher: str,
    words: Sequence[Word],
    tree: Tree,
    *,
    module: bool = False,
    python: bool = True,
) -> Started:
    """The launch of `words` (program and its arguments) by `launcher`.

    `module`: the program is the name of a module. `python`: the launcher puts the interpreter in front itself.
    """
    words = list(words)
    if not python:
        words, module = _without_interpreter(words, module)
    program, references = "", []
    stating = Stating(launcher, line.scope, line.command.condition)
    if words:
        word = words[0]
        found = [_program(text, line, tree, module=module) for text in paths_of(word.value, word.parts) if text]
        for path, inside in found:
            if inside and (len(found) == 1 or isinstance(tree.read(path), SourceFile)):
                references.append(Reference(path, "script", word.span, line.scope))
        program = found[0][0] if len(found) == 1 else ""
        value = one_of(path for path, _ in found) if found else word.value
        stating.say("script", value, word.span, word.spelling)
    claims, more = argument_claims(line, words[1:], tree)
    told, files = trainer_claims(line, words[1:], tree)
    launch = Launch(
        id=line.launch_id,
        launcher=launcher,
        span=line.words[0].span if line.words else line.command.span,
        wrappers=line.wrappers,
        program=program,
        arguments=tuple(text_of(word) for word in words[1:]),
        condition=line.command.condition,
    )
    return Started(launch, (*stating.claims, *claims, *told), (*references, *more, *files))


def _program(text: str, line: LaunchLine, tree: Tree, *, module: bool) -> tuple[str, bool]:
    """The file a program's name leads to, and whether it lies inside the root."""
    if module:
        return module_path(text, line, tree), True
    inside = relative(text, line, tree)
    return (text, False) if inside is None else (inside, True)


def _without_interpreter(words: list[Word], module: bool) -> tuple[list[Word], bool]:
    """`python -u train.py` as its program: with `--no-python` the user writes the interpreter."""
    if words and re.fullmatch(r"python[\d.]*", posixpath.basename(head(words[0]))):
        found = python_program(words)
        if found is not None:
            return list(found.words), found.module
    return words, module
