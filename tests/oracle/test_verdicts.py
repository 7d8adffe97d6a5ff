"""Lint reports at error, at the key's place, what a framework refuses; what it accepts has no error.

`python -m tools.oracle` recorded the verdicts. `limits.toml` has the number of misses that are allowed for each
framework. The sealed third of the cases is scored as well, but its misses are not listed: no rule is tuned to them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from preflight._util import toml
from tests.suite.effort import OPTION
from tools.oracle.cases import VERDICTS, Verdict, read
from tools.oracle.score import Answer, answers, names

LIMITS: dict[str, Any] = toml.loads((Path(__file__).parent / "limits.toml").read_text(encoding="utf-8"))
#: The gate judges one case in this many, and one in fewer where fewer than so many refusals are recorded.
_GATE_EVERY, _GATE_EVERY_OF_FEW, _FEW = 10, 5, 200


def sample(name: str) -> Iterator[Verdict]:
    """The cases that run without `--thorough`. Cases are sealed by the remainder by 3, which is left aside here."""
    verdicts = recorded(name)
    every = _GATE_EVERY if sum(verdict.refused for verdict in verdicts) >= _FEW else _GATE_EVERY_OF_FEW
    return (verdict for verdict in verdicts if int(verdict.case.id, 16) // 3 % every == 0)


@pytest.fixture
def rows(name: str, request: pytest.FixtureRequest) -> list[Answer]:
    """Lint's answer to each case of a framework that runs."""
    return _rows(name, bool(request.config.getoption(OPTION)))


@functools.cache
def _rows(name: str, thorough: bool) -> list[Answer]:
    return list(answers(recorded(name) if thorough else sample(name)))


def recorded(name: str) -> list[Verdict]:
    """All verdicts of a framework."""
    return list(read(VERDICTS / f"{name}.jsonl"))


def limit(name: str, kind: str, request: pytest.FixtureRequest) -> int:
    """The number of misses that are allowed for all cases, or for those of the gate."""
    limits = LIMITS[name] if request.config.getoption(OPTION) else LIMITS[name]["sample"]
    return int(limits[kind])


def describe(answers_to_list: list[Answer]) -> list[str]:
    """The learnt ones among the answers, for the message of a failure."""
    return [f"{a.verdict.case.id}: {a.verdict.message}" for a in answers_to_list if not a.verdict.sealed]


def test_every_framework_has_limits() -> None:
    assert set(LIMITS) == set(names())


@pytest.mark.parametrize("kind", ["learnt", "sealed"])
@pytest.mark.parametrize("name", sorted(LIMITS))
def test_refusals_are_errors_at_their_key(
    name: str, kind: str, rows: list[Answer], request: pytest.FixtureRequest
) -> None:
    refused = [row for row in rows if row.verdict.refused and row.verdict.sealed is (kind == "sealed")]
    assert len(refused) >= 3
    missed = [row for row in refused if not row.found]
    assert len(missed) <= limit(name, kind, request), describe(missed)


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_accepted_cases_have_no_error(name: str, rows: list[Answer], request: pytest.FixtureRequest) -> None:
    accepted = [row for row in rows if not row.verdict.refused]
    assert accepted
    wrong = [row for row in accepted if row.contradictions]
    assert len(wrong) <= limit(name, "wrong", request), describe(wrong)
    everywhere = [row for row in accepted if not row.verdict.depends_on_node]
    silent = [row for row in everywhere if any(error.id in LIMITS[name]["silent"] for error in row.contradictions)]
    assert not silent, describe(silent) or "only sealed cases"


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_unchanged_configurations_have_no_error(name: str) -> None:
    seeds = list(answers(verdict for verdict in recorded(name) if not verdict.case.changes))
    assert seeds
    assert not [(row.verdict.case.form, error.id) for row in seeds for error in row.contradictions]


@pytest.mark.parametrize("name", sorted(LIMITS))
def test_recorded_verdicts_are_complete(name: str) -> None:
    verdicts = recorded(name)
    assert len({verdict.case.id for verdict in verdicts}) == len(verdicts)
    assert all(verdict.version and verdict.date for verdict in verdicts)
    # A refusal says why and which change caused it; the valid configurations are accepted.
    assert all(verdict.message and verdict.blamed for verdict in verdicts if verdict.refused)
    assert not [verdict.case.form for verdict in verdicts if not verdict.case.changes and verdict.refused]
    assert sum(verdict.refused for verdict in verdicts) >= LIMITS[name]["refusals"]
