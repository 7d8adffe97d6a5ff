"""Constraints of frameworks and launchers, as a table: the wrong writing is found, the right one is not.

Each file `FAMILY.toml` has a row `[FORM.ID]` for each constraint; the form makes files of a few lines. A constraint of
several rows has the others at ID-again and ID-more. `[not]` has those that files alone do not decide, with the reason.
`finds` is the rule, its severity, and the text at the place where it finds the wrong writing; the right writing has no
error of any rule, and nothing of that one. On the open writing, or where `run_open` starts the wrong one, the rule
answers that it could not tell.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight._util import toml
from preflight.model.findings import Status
from preflight.plugins import registry
from preflight.sources.discovery.assemble import assemble
from tests.constraints import notation, torch_jobs
from tests.constraints.notation import Files
from tests.rules.rule_builders import judged
from tests.rules.test_cases import RULES

FOLDER = Path(__file__).parent
#: How many constraints each family has; one that is lost is missed here.
COUNTS = {
    "huggingface": 384,
    "kubernetes-slurm": 372,
    "megatron": 390,
    "network-versions": 298,
    "older-versions": 144,
    "paddle": 356,
    "program-contracts": 151,
    "rl-recipes": 537,
    "torch": 403,
}
#: How many rows no rule finds yet; the number may only fall.
MISSED = {"older-versions": 4, "rl-recipes": 29, "torch": 37}


def _rows(family: str) -> list[dict[str, Any]]:
    forms = toml.load(FOLDER / f"{family}.toml")
    excluded = [{"id": name, "not": reason} for name, reason in forms.pop("not", {}).items()]
    rows = [{"id": name, "form": form, **row} for form, table in forms.items() for name, row in table.items()]
    return excluded + rows


FAMILIES: dict[str, list[dict[str, Any]]] = {name: _rows(name) for name in COUNTS}
#: The rows of a family are tested in so many parts, each of which takes a second or two.
_PARTS = 32


class Found(NamedTuple):
    """A finding: the rule, its severity, the text at its place, and the message. `unknown` is a severity, too."""

    rule: str
    severity: str
    place: str
    message: str


def build(family: str, row: dict[str, Any], which: str) -> Files:
    """The files of the job `wrong`, `right` or `open` of a row."""
    return (torch_jobs if family == "torch" else notation).build(row, which)


def found(files: Files, folder: Path) -> list[Found]:
    """What all rules find in a job, and what they could not tell."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    outcomes = [
        outcome
        for job in assemble(folder, [folder], sources=registry.sources())
        for rule in RULES.values()
        for outcome in judged(rule, [job])
    ]
    unknown = [Found(one.id, "unknown", "", one.reason) for one in outcomes if one.status is Status.UNKNOWN]
    return unknown + [
        Found(one.id, one.severity.value, _place(files, one.locations[0].path, one.locations[0]), one.message)
        for outcome in outcomes
        if (one := outcome.finding) is not None
    ]


def _place(files: Files, path: str, at: Any) -> str:
    lines = files.get(path, "").split("\n")
    return lines[at.line - 1][at.column - 1 :] if 0 < at.line <= len(lines) else ""


def faults(family: str, row: dict[str, Any], folder: Path) -> list[str]:
    """What is not as the row says."""
    right = found(build(family, row, "right"), folder / "right")
    problems = [f"{row['id']} right: {one}" for one in right if one.severity == "error"]
    is_open = "open" in row or "run_open" in row
    unknown = found(build(family, row, "open"), folder / "open") if is_open else []
    problems += [f"{row['id']} open: {one}" for one in unknown if one.severity == "error"]
    if "finds" not in row:
        return problems
    rule, severity, place = row["finds"].split(" ", 2)
    wrong = found(build(family, row, "wrong"), folder / "wrong")
    if not any(one[:2] == (rule, severity) and one.place.startswith(place) for one in wrong):
        problems.append(f"{row['id']} wrong: not found at {place!r}, but {_findings(wrong)}")
    problems += [f"{row['id']} right: {one}" for one in right if one.rule == rule and one.severity == "warning"]
    if is_open and not any(one[:2] == (rule, "unknown") for one in unknown):
        problems.append(f"{row['id']} open: {rule} could tell, and finds {_findings(unknown)}")
    return problems


def _findings(found: list[Found]) -> list[tuple[str, str, str]]:
    return [one[:3] for one in found if one.severity != "unknown"]


@pytest.mark.parametrize("part", range(_PARTS))
@pytest.mark.parametrize("family", FAMILIES)
def test_constraints(family: str, part: int, tmp_path: Path) -> None:
    rows = [row for row in FAMILIES[family][part::_PARTS] if "not" not in row]
    problems = [problem for row in rows for problem in faults(family, row, tmp_path / row["id"])]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_constraint_has_a_row(family: str) -> None:
    rows = FAMILIES[family]
    assert len({re.sub("-(again|more)$", "", row["id"]) for row in rows}) == COUNTS[family]
    for row in rows:
        assert row["id"].startswith(f"{family}-")
        assert ("not" in row) != {"wrong", "right"}.issubset(row), row["id"]
    assert sum("not" not in row and "finds" not in row for row in rows) <= MISSED.get(family, 0)


#: Rows that another rule finds in a file or call than on a line.
_BY_ANOTHER = {"paddle-168", "paddle-169"}


@pytest.mark.parametrize("part", range(5))
@pytest.mark.parametrize("form", ["paddlenlp_file", "paddlenlp_call"])
def test_arguments_count_wherever_they_are_written(form: str, part: int, tmp_path: Path) -> None:
    rows = [row for row in FAMILIES["paddle"] if row.get("form") == "paddlenlp" and "run" not in row]
    problems = []
    assert len(rows) > 30
    for row in rows[part::5]:
        wrong = found(build("paddle", {**row, "form": form}, "wrong"), tmp_path / row["id"] / "wrong")
        right = found(build("paddle", {**row, "form": form}, "right"), tmp_path / row["id"] / "right")
        rule = row["finds"].split(" ")[0]
        if row["id"] not in _BY_ANOTHER and rule not in {one.rule for one in wrong}:
            problems.append(f"{row['id']}: {_findings(wrong)}")
        problems += [f"{row['id']} right: {one}" for one in right if one.severity == "error"]
    assert not problems, "\n".join(problems)
