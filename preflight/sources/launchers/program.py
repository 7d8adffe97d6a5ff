"""Any other program that mpirun starts several times: nccl-tests, a compiled trainer, a script of the site."""

from __future__ import annotations

import posixpath

from preflight.sources.base import LaunchLine, Reading, Tree, Word
from preflight.sources.launchers import slurm
from preflight.sources.launchers.options import text_of
from preflight.sources.launchers.starting import started

#: Interpreters and builders: what they run is read elsewhere, or trains nothing.
_OTHERS = frozenset(
    ("bash", "sh", "zsh", "ksh", "dash", "perl", "make", "cmake", "gdb", "xterm", "conda", "pip", "sudo")
)


def is_program(word: Word) -> bool:
    """Whether a word names a program that is worth reading where mpirun starts it."""
    name = posixpath.basename(text_of(word) or "")
    return bool(name) and name not in _OTHERS and name not in slurm.HARMLESS and not name.startswith("-")


class ProgramReader:
    """Reads the program behind mpirun; all that is known of it is what stands in front."""

    name: str = "mpirun"
    names: tuple[str, ...] = ()

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """The launch itself; mpirun's own claims are stated with its context."""
        launcher = next((name for name in reversed(line.wrappers) if name in ("mpirun", "horovodrun")), self.name)
        program = started(line, launcher, line.words, tree)
        references = tuple(r for r in program.references if r.target.endswith((".py", ".sh")))
        return Reading(claims=program.claims, launches=(program.launch,), references=references)
