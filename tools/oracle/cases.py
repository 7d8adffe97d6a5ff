"""A case: the files of a small job, and the changes made to them; a verdict: the framework's result for the case."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

VERDICTS = Path(__file__).parents[2] / "tests" / "oracle" / "verdicts"
#: One case in three is sealed: no rule is written for or tuned to it.
_SEALED_EVERY = 3
#: Sealed cases, two of sbatch, one of Megatron-LM and one of Lightning, that were read because of a wrong error; they
#: count as learnt.
_OPENED = frozenset(("5d437c9c84e8", "a345d8e117ff", "3fd56afe93c3", "e998263bfbaa"))


@dataclass(frozen=True, slots=True)
class Change:
    """A change to a valid configuration.

    Args:
        key: the keys from the outermost one on, joined by dots.
        kind: `value`, `type`, `range`, `unknown` (a key that does not exist) or `removed`.
        value: the new value; None if the key was removed.
        line: counted from 1; if the key was removed, the line of its section, or 0 (any line of the file) without one.
    """

    key: str
    kind: str
    value: Any = None
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Case:
    """The files of one job.

    Args:
        form: the format of the configuration: `script`, `yaml`, `flags`, `file`.
        files: the text of each file by its path.
        command: the words of the launch line as the framework's program gets them; empty if it gets none.
        changes: the differences from the valid configuration; empty for that one itself.
        lines: the line of every key: `{"ds.json": {"zero_optimization.stage": 4}}`.
    """

    framework: str
    form: str
    files: dict[str, str]
    command: tuple[str, ...] = ()
    changes: tuple[Change, ...] = ()
    lines: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Return a name that depends only on the content."""
        content = json.dumps([self.framework, self.form, self.files, self.command], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:12]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A validator's verdict on one case.

    Args:
        refused: whether the framework fails at startup.
        message: the first line of its message; empty if it accepts the case.
        version: of the framework: `transformers 5.24.0`.
        date: the day of the verdict (ISO).
        depends_on_node: the framework refuses it because the node lacks something (a GPU, a library).
        blamed: the changes that cause the refusal, by their position in `case.changes`.
    """

    case: Case
    refused: bool
    message: str
    version: str
    date: str
    depends_on_node: bool = False
    blamed: tuple[int, ...] = ()

    @property
    def sealed(self) -> bool:
        """Return whether rules may not be tuned to the case."""
        return int(self.case.id, 16) % _SEALED_EVERY == 0 and self.case.id not in _OPENED

    def places(self) -> frozenset[tuple[str, int]]:
        """Return the file and line of every key in the refusal: changed keys, and keys that the message names."""
        blamed = [change for n, change in enumerate(self.case.changes) if n in self.blamed]
        found = {(change.file, change.line) for change in blamed}
        for change in blamed:
            # A section that was written anew: each key in it.
            below = self.case.lines.get(change.file, {}) if isinstance(change.value, dict) else {}
            found.update((change.file, line) for key, line in below.items() if key.startswith(f"{change.key}."))
        for file, lines in self.case.lines.items():
            for key, line in lines.items():
                name = key.rpartition(".")[2]
                if len(name) > 3 and name in self.message.replace("-", "_"):
                    found.add((file, line))
        return frozenset(found)


def write(path: Path, verdicts: Iterable[Verdict]) -> None:
    """Write one verdict per line, sorted by the ids of the cases."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = sorted(verdicts, key=lambda verdict: verdict.case.id)
    path.write_text("".join(json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


def read(path: Path) -> Iterator[Verdict]:
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        case = row.pop("case")
        case["changes"] = tuple(Change(**change) for change in case["changes"])
        case["command"] = tuple(case["command"])
        row["blamed"] = tuple(row["blamed"])
        yield Verdict(case=Case(**case), **row)


def located(case: Case) -> Case:
    """Return the case with the file and line of each change."""
    return replace(case, changes=tuple(_located(case, change) for change in case.changes))


def _located(case: Case, change: Change) -> Change:
    key = change.key
    while key:
        for file, lines in case.lines.items():
            if key in lines:
                return replace(change, file=file, line=lines[key])
        key = key.rpartition(".")[0]
    root, _, _ = change.key.partition(".")
    own = (file for file, lines in case.lines.items() if any(key.startswith(f"{root}.") for key in lines))
    return replace(change, file=next(own, next(reversed(case.lines), "")), line=0)
