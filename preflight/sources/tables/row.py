"""The row type of generated tables: the options of one program, or the keys of one file, at stated versions."""

from __future__ import annotations

from typing import NamedTuple

from preflight.model.job import Plain


class Row(NamedTuple):
    """One option or key, as its parser declares it.

    Args:
        dest: its name in the parser.
        spellings: every spelling, as declared; empty for a positional argument.
        takes: the number of words that follow: `0`, `1`, `2` ..., `?` (one or none), `*`, `+`, `...` (all that remain).
        kind: the declared type as written (`int`, `float`, `str`, `bool`, `Optional[int]` ...); empty when none is.
        default: its default; None also if the default is computed.
        choices: its valid values; empty if any.
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


class Generated(NamedTuple):
    """The options of one program at one or more versions of its distribution.

    `versions` are oldest first; `date` is the day on which they were read; `files` are the sources.
    """

    program: str
    distribution: str
    versions: tuple[str, ...]
    date: str
    files: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def newest(self) -> str:
        """The newest version that was read."""
        return self.versions[-1]

    def spellings(self) -> frozenset[str]:
        """Every spelling of every option."""
        return frozenset(spelling for row in self.rows for spelling in row.spellings)

    def find(self, spelling: str) -> Row | None:
        """The row of an exact spelling, or of a key by its name."""
        return next((row for row in self.rows if spelling in row.spellings or spelling == row.dest), None)
