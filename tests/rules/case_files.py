"""The cases of rules: small jobs, all of one rule in `cases/ID.toml`, a table each.

`fail-*` has one fault, at the location `at` (path:line:column), of a `severity`; its message `says` and its remedy
`advises` a text, and it names `also` other places. In `pass-*` the rule applies and finds nothing; in `unknown-*` it
cannot decide; in `na-*` it does not apply. `named` lists the files that are given by name; without it the folder is
given. Every other key is a file of the job.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight._util import toml

CASES = Path(__file__).parent / "cases"
_EXPECTED = ("at", "severity", "says", "advises", "also", "named")


@dataclass(frozen=True)
class Case:
    """One job of one rule, and what the rule says of it."""

    rule: str
    name: str
    files: dict[str, str]
    expected: dict[str, Any]

    def write(self, above: Path) -> Path:
        """Make the folder of the job below `above`."""
        folder = above / self.name
        for name, text in self.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode())
        return folder

    def given(self, folder: Path) -> list[Path]:
        """What is given to lint: the folder, or files in it."""
        return [folder / name for name in self.expected.get("named", ())] or [folder]


@functools.cache
def all_cases() -> tuple[Case, ...]:
    """Every case, by rule and name."""
    found = []
    for path in sorted(CASES.glob("*.toml")):
        for name, row in sorted(toml.load(path).items()):
            expected = {key: row.pop(key) for key in _EXPECTED if key in row}
            found.append(Case(path.stem, name, row, expected))
    return tuple(found)


def case_named(rule: str, name: str) -> Case:
    """One case."""
    return next(case for case in all_cases() if (case.rule, case.name) == (rule, name))
