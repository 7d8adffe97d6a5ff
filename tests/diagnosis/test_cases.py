"""Every log gets its cause, its first rank and what would have told before; those without a cause get none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from preflight import api
from preflight.diagnosis.diagnose import diagnose
from preflight.diagnosis.model import Answer, Diagnosis, Pointer
from preflight.diagnosis.table import Table, known
from tests.diagnosis.cases import FOLDER, Case, cases

CASES = cases()


@pytest.fixture(scope="module")
def table() -> Table:
    """The tables that come with the checks."""
    return known()


@pytest.fixture(scope="module")
def pointers() -> Mapping[str, Pointer]:
    """Every rule and check."""
    return api._pointers()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_log_is_told_as_it_should_be(
    case: Case, table: Table, pointers: Mapping[str, Pointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.folder)
    found = diagnose(["."], table, lambda: pointers, version="test")
    if case.healthy:
        assert (found.answer, found.cause, found.exit_code) == (Answer.NOTHING_WRONG, None, 0)
    elif case.symptom:
        assert_cause(found, case)
    else:
        assert (found.answer, found.cause, found.exit_code) == (Answer.UNKNOWN, None, 3)
        assert (found.suspect.party.rank if found.suspect else None) == case.suspect
        assert found.last_words


def assert_cause(found: Diagnosis, case: Case) -> None:
    """The cause, and all that the case says of it."""
    assert found.cause is not None, found.effects
    cause = found.cause
    assert (cause.symptom, found.answer, found.exit_code) == (case.symptom, Answer.CAUSE, 1)
    first = cause.parties[0] if cause.parties else None
    assert (first.rank if first else None) == case.rank
    assert (first.host if first else "") == case.host
    assert (first.role if first else "") == case.role
    if case.parties:
        assert tuple(party.rank for party in cause.parties) == case.parties
    assert case.line in cause.line.text
    assert cause.frame.endswith(case.frame)
    assert case.time in cause.line.time
    path, number = cause.line.path, cause.line.line
    assert cause.line.text.strip()[:40] in (case.folder / path).read_text("utf-8", "replace").splitlines()[number - 1]
    told = {pointer.id for pointer in cause.told_by}
    assert set(case.before) <= told
    assert bool(told) == bool(case.before)
    assert found.suspect is None


def test_there_are_logs_enough_of_every_kind() -> None:
    kinds = Counter("healthy" if case.healthy else "cause" if case.symptom else "unknown" for case in CASES)
    assert kinds["cause"] >= 45
    assert kinds["unknown"] + kinds["healthy"] >= 10
    assert Counter(case.origin for case in CASES)["recorded"] >= 40
    folders = {case.folder for case in CASES}
    assert folders == {path for origin in ("recorded", "written") for path in (FOLDER / "logs" / origin).iterdir()}
