"""How commands are written: which stretch of which text each of their words came from, for whoever changes them."""

from __future__ import annotations

from dataclasses import field

from preflight.lazy.dataclasses import dataclass
from preflight.sources.base import Command
from preflight.sources.shell.document import Document
from preflight.sources.shell.text import Field


@dataclass(frozen=True, slots=True)
class Written:
    """The written words of one command, redirections left out.

    Args:
        document: the text they stand in.
        ranges: from where to where in it each of them stands.
        starts: the first of `fields` that each came to; the next one's where it came to none.
        fields: the words of the command, one for each of `Command.words`.
    """

    document: Document
    ranges: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    fields: tuple[Field, ...]

    def holding(self, index: int) -> int:
        """Which written word the field `index` came from."""
        return max(at for at, start in enumerate(self.starts) if start <= index)


@dataclass(frozen=True, slots=True)
class Entered:
    """A file that a command has the shell go on with; `index` is the word of the command that names it."""

    command: Command
    index: int
    target: str


@dataclass(slots=True)
class Trace:
    """What one evaluation tells beside its commands."""

    #: By the identity of the command, because equal commands may stand in several places.
    written: dict[int, Written] = field(default_factory=dict)
    entered: list[Entered] = field(default_factory=list)

    def wrote(self, command: Command, written: Written) -> None:
        """Keep how `command` is written."""
        if len(written.fields) == len(command.words):
            self.written[id(command)] = written

    def enters(self, command: Command | None, path: Field, target: str) -> None:
        """Keep that `command` reads the file `target`, named by its word `path`."""
        known = self.written.get(id(command))
        if command is None or known is None:
            return
        for index, each in enumerate(known.fields):
            if each is path:
                self.entered.append(Entered(command, index, target))
                return
