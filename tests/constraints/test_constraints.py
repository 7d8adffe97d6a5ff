"""Constraints of frameworks and launchers, as a table: the wrong writing is found, the right and the open one are not.

Each file `FAMILY.toml` has a row for each constraint. `finds` is the rule, its severity, and the text at the place
where it finds the wrong writing; the right writing has no error of any rule, and nothing of that one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight._util import toml
from preflight.plugins import registry
from preflight.sources.discovery.assemble import assemble
from tests.constraints.notation import Files, build
from tests.rules.rule_builders import judged
from tests.rules.test_cases import RULES

FOLDER = Path(__file__).parent
#: How many rows each family has; a row that is lost is missed here.
COUNTS = {"huggingface": 327, "megatron": 379, "paddle": 344}
FAMILIES: dict[str, list[dict[str, Any]]] = {name: toml.load(FOLDER / f"{name}.toml")["row"] for name in COUNTS}
#: The rows of a family are tested in so many parts, each of which takes a second or two.
_PARTS = 32


class Found(NamedTuple):
    """A finding: the rule, its severity, the text at its place, and the message."""

    rule: str
    severity: str
    place: str
    message: str


def found(files: Files, folder: Path) -> list[Found]:
    """What all rules find in a job."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    findings = [
        outcome.finding
        for job in assemble(folder, [folder], sources=registry.sources())
        for rule in RULES.values()
        for outcome in judged(rule, [job])
        if outcome.finding is not None
    ]
    return [
        Found(one.id, one.severity.value, _place(files, one.locations[0].path, one.locations[0]), one.message)
        for one in findings
    ]


def _place(files: Files, path: str, at: Any) -> str:
    lines = files.get(path, "").split("\n")
    return lines[at.line - 1][at.column - 1 :] if 0 < at.line <= len(lines) else ""


def faults(row: dict[str, Any], folder: Path) -> list[str]:
    """What is not as the row says."""
    rule, severity, place = row["finds"].split(" ", 2)
    wrong = found(build(row, "wrong"), folder / "wrong")
    right = found(build(row, "right"), folder / "right")
    unknown = found(build(row, "open"), folder / "open") if "open" in row else []
    problems = []
    if not any(one[:2] == (rule, severity) and one.place.startswith(place) for one in wrong):
        problems.append(f"{row['id']} wrong: not found at {place!r}, but {[one[:3] for one in wrong]}")
    problems += [f"{row['id']} right: {one}" for one in right if one.severity == "error" or one.rule == rule]
    problems += [f"{row['id']} open: {one}" for one in unknown if one.severity == "error"]
    return problems


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("family", FAMILIES)
def test_constraints(family: str, part: int, tmp_path: Path) -> None:
    rows = [row for row in FAMILIES[family][part::_PARTS] if "not" not in row]
    problems = [problem for row in rows for problem in faults(row, tmp_path / row["id"])]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_constraint_has_one_row(family: str) -> None:
    rows = FAMILIES[family]
    assert len({row["id"] for row in rows}) == len(rows) == COUNTS[family]
    for row in rows:
        assert row["id"].startswith(f"{family}-")
        assert ("not" in row) != {"wrong", "right", "finds"}.issubset(row), row["id"]


#: Rows that another rule finds in a file or call than on a line.
_BY_ANOTHER = {"paddle-168", "paddle-169"}


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("form", ["paddlenlp_file", "paddlenlp_call"])
def test_arguments_count_wherever_they_are_written(form: str, part: int, tmp_path: Path) -> None:
    rows = [row for row in FAMILIES["paddle"] if row.get("form") == "paddlenlp" and "run" not in row]
    problems = []
    assert len(rows) > 30
    for row in rows[part::5]:
        wrong = found(build({**row, "form": form}, "wrong"), tmp_path / row["id"] / "wrong")
        right = found(build({**row, "form": form}, "right"), tmp_path / row["id"] / "right")
        rule = row["finds"].split(" ")[0]
        if row["id"] not in _BY_ANOTHER and rule not in {one.rule for one in wrong}:
            problems.append(f"{row['id']}: {[one[:3] for one in wrong]}")
        problems += [f"{row['id']} right: {one}" for one in right if one.severity == "error"]
    assert not problems, "\n".join(problems)
