"""Versioned knowledge as data: what launchers and frameworks accept, one JSON file per program.

`make tables` generates them from the programs' own parsers at pinned versions, and `tools/tables/custom_resources.py`
those of custom resources. Do not edit them by hand.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

from preflight._util.toml import with_tuples
from preflight.model.job import Plain

FOLDER = Path(__file__).parent


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
        """Return the newest version that was read."""
        return self.versions[-1]

    def names(self) -> frozenset[str]:
        """Return the name of every option or key."""
        return frozenset(row.dest for row in self.rows)

    def spellings(self) -> frozenset[str]:
        """Return every spelling of every option."""
        return frozenset(spelling for row in self.rows for spelling in row.spellings)

    def find(self, spelling: str) -> Row | None:
        """Return the row of an exact spelling, or of a key by its name."""
        return next((row for row in self.rows if spelling in row.spellings or spelling == row.dest), None)


@functools.cache
def load_table(name: str) -> Generated:
    """Return the table in the file of that name, which is read once."""
    return parse_table((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def parse_table(text: str) -> Generated:
    """Return the table of a document."""
    document = json.loads(text)
    rows = tuple(Row(**with_tuples(row)) for row in document.pop("rows"))
    return Generated(**with_tuples(document), rows=rows)
