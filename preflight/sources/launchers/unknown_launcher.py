"""A launch whose launcher is known only at run time: `$LAUNCHER train.py`, `$PREFIX python train.py`.

How many ranks it starts is unknown. It still counts as a launch, so the job is not treated as one without launches.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.model.job import Note, NoteKind, Unresolved
from preflight.sources.base import Command, LaunchLine, Reading, SourceFile, Tree, Word
from preflight.sources.launchers.option_parser import text_of
from preflight.sources.launchers.paths import relative
from preflight.sources.launchers.python_program import is_python, python_program
from preflight.sources.launchers.started_program import read_program

#: Names that users give to a variable with a launcher.
_NAME = re.compile(
    r"launch|torchrun|deepspeed|accelerate|mpi|srun|dist|starter|(?:^|[_{$])(?:run|cmd|exec)", re.IGNORECASE
)
#: Patterns that only a program of several ranks contains.
_DISTRIBUTED = re.compile(
    r"init_process_group|init_distributed|DistributedDataParallel|FullyShardedDataParallel|fully_shard|fleet\.init"
    r"|deepspeed\.initialize|initialize_megatron|\bAccelerator\(|init_parallel_env|hvd\.init"
)
#: Words after the launcher that are searched for its program.
_MAX_WORDS = 30


def unknown_launcher(words: Sequence[Word], tree: Tree | None, command: Command) -> int | None:
    """Return the index of the program that an unknown launcher starts; None if the line is not a launch."""
    if len(words) < 2 or not isinstance(words[0].value, Unresolved) or is_python(words):
        return None
    at = _program_at(words)
    if at is None:
        return None
    if _NAME.search(words[0].spelling):
        return at
    path = text_of(words[at])
    target = relative(path, LaunchLine("", tuple(words), command), tree) if path and tree is not None else None
    file = tree.read(target) if tree is not None and target is not None else None
    return at if isinstance(file, SourceFile) and _DISTRIBUTED.search(file.text) else None


def _program_at(words: Sequence[Word]) -> int | None:
    for index, word in enumerate(words[1:_MAX_WORDS], start=1):
        if is_python(words[index:]):
            found = python_program(words[index:])
            module = found is not None and found.module
            return words.index(found.words[0]) if found is not None and not module else None
        text = text_of(word) or ""
        if text.endswith(".py"):
            return index
    return None


class UnknownReader:
    """Reads the program of a line whose launcher is unknown; `at` is the index of the program."""

    name: str = "unknown"
    names: tuple[str, ...] = ()

    def __init__(self, at: int) -> None:
        self._at = at

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """Return the launch, with a note about what is unknown."""
        launcher = line.words[0]
        program = read_program(line, self.name, line.words[self._at :], tree)
        message = (
            f"`{launcher.spelling[:60]}` is known only at run time, so it is unknown how many ranks of"
            f" {line.words[self._at].spelling} it starts; the launch was not judged"
        )
        note = Note(NoteKind.UNSUPPORTED, message, launcher.span, required=True)
        return Reading(program.claims, (program.launch,), program.references, (note,))
