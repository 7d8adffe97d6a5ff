"""Records which characters each word of a command came from, for callers that edit the script."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from preflight.sources.base import Command
from preflight.sources.shell.shell_document import Document
from preflight.sources.shell.words import Field


class Written(NamedTuple):
    """The written words of one command, without redirections.

    Args:
        document: the text they are in.
        ranges: start and end of each written word in the document.
        starts: for each written word, the index of its first field; if it expanded to nothing, of the next word's.
        fields: the words after expansion, one for each of `Command.words`.
    """

    document: Document
    ranges: tuple[tuple[int, int], ...]
    starts: tuple[int, ...]
    fields: tuple[Field, ...]

    def holding(self, index: int) -> int:
        """The index of the written word that field `index` came from."""
        return max(at for at, start in enumerate(self.starts) if start <= index)


@dataclass(frozen=True, slots=True)
class Entered:
    """A file that a command runs; `index` is that of the command's word that names it."""

    command: Command
    index: int
    target: str


@dataclass(slots=True)
class Trace:
    """The additional records of one evaluation, besides its commands."""

    #: By the identity of the command, because equal commands may occur in several places.
    written: dict[int, Written] = field(default_factory=dict)
    entered: list[Entered] = field(default_factory=list)

    def record_words(self, command: Command, written: Written) -> None:
        """Record how `command` is written."""
        if len(written.fields) == len(command.words):
            self.written[id(command)] = written

    def record_entry(self, command: Command | None, path: Field, target: str) -> None:
        """Record that `command` reads the file `target`, which its word `path` names."""
        written = self.written.get(id(command))
        if command is None or written is None:
            return
        for index, item in enumerate(written.fields):
            if item is path:
                self.entered.append(Entered(command, index, target))
                return
