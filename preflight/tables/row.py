"""What a generated table is made of: the options of one program, or the keys of one file, at stated versions."""

from __future__ import annotations

from typing import NamedTuple

from preflight.job import Plain
from preflight.lazy.dataclasses import dataclass


class Row(NamedTuple):
    """One option or key, as its parser declares it.

    Args:
        dest: what the parser calls it.
        spellings: every way to write it, as declared; empty for a positional argument.
        takes: how many words follow: `0`, `1`, `2` ..., `?` (one or none), `*`, `+`, `...` (all that remain).
        kind: the declared type as written (`int`, `float`, `str`, `bool`, `Optional[int]` ...); empty when none is.
        default: what is taken when it is not given; None also where the default is computed.
        choices: the values it takes; empty when any.
        since: first of the table's versions that has it; empty when all of them do.
        until: last of the table's versions that has it; empty when the newest does.
    """

    dest: str
    spellings: tuple[str, ...] = ()
    takes: str = "1"
    kind: str = ""
    default: Plain = None
    choices: tuple[str, ...] = ()
    since: str = ""
    until: str = ""


@dataclass(frozen=True, slots=True)
class Generated:
    """The options of one program at one or more versions of its distribution.

    `versions` are oldest first; `date` is the day on which they were looked at; `files` are where they stand.
    """

    program: str
    distribution: str
    versions: tuple[str, ...]
    date: str
    files: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def newest(self) -> str:
        """The newest version that was looked at."""
        return self.versions[-1]

    def spellings(self) -> frozenset[str]:
        """Every spelling of every option."""
        return frozenset(spelling for row in self.rows for spelling in row.spellings)

    def find(self, spelling: str) -> Row | None:
        """The row of an exact spelling, or of a key by its name."""
        return next((row for row in self.rows if spelling in row.spellings or spelling == row.dest), None)
