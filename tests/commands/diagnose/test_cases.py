"""Every log gets its cause, its first rank and the check that finds it; logs without a cause get none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from preflight import api
from preflight.commands.diagnose.diagnosis import Answer, Certainty, Diagnosis, Pointer
from preflight.commands.diagnose.pipeline import diagnose
from preflight.commands.diagnose.scan import Table, known
from tests.commands.diagnose.cases import FOLDER, Case, cases

CASES = cases()


@pytest.fixture(scope="module")
def table() -> Table:
    """The symptom tables of the checks."""
    return known()


@pytest.fixture(scope="module")
def pointers(table: Table) -> Mapping[str, Pointer]:
    """Every rule and check that a symptom names."""
    return api._pointers({name for row in table.rows for name in row.symptom.found_by})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_log_gets_its_expected_diagnosis(
    case: Case, table: Table, pointers: Mapping[str, Pointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.folder)
    found = diagnose(["."], table, lambda _: pointers, version="test")
    if case.healthy:
        expected = (Answer.COMPLETED, 0) if case.completed else (Answer.NO_END, 3)
        assert (found.answer, found.exit_code, found.cause) == (*expected, None)
        assert (found.completion is not None) is case.completed
    elif case.symptom:
        assert_cause(found, case)
    else:
        assert (found.answer, found.cause, found.exit_code) == (Answer.UNKNOWN, None, 3)
        assert (found.suspect.member.rank if found.suspect else None) == case.suspect
        assert found.last_words


def assert_cause(found: Diagnosis, case: Case) -> None:
    """Assert the cause and all properties that the case gives."""
    assert found.cause is not None, found.effects
    cause = found.cause
    # Only the reason itself, or an exception with its place in the program, counts as named.
    is_named = cause.certainty is Certainty.NAMED or (cause.certainty is Certainty.OPEN and bool(cause.frame))
    expected = (Answer.CAUSE, 1) if is_named else (Answer.SUSPECTED, 6)
    assert (cause.symptom, found.answer, found.exit_code) == (case.symptom, *expected)
    first = cause.members[0] if cause.members else None
    assert (first.rank if first else None) == case.rank
    assert (first.host if first else "") == case.host
    assert (first.role if first else "") == case.role
    if case.members:
        assert tuple(member.rank for member in cause.members) == case.members
    assert case.line in cause.line.text
    assert cause.frame.endswith(case.frame)
    assert case.time in cause.line.time
    path, number = cause.line.path, cause.line.line
    assert cause.line.text.strip()[:40] in (case.folder / path).read_text("utf-8", "replace").splitlines()[number - 1]
    told = {pointer.id for pointer in cause.found_by}
    assert set(case.before) <= told
    assert bool(told) == bool(case.before)
    assert found.suspect is None


def test_there_are_enough_logs_of_every_kind() -> None:
    kinds = Counter("healthy" if case.healthy else "cause" if case.symptom else "unknown" for case in CASES)
    assert kinds["cause"] >= 45
    assert kinds["unknown"] + kinds["healthy"] >= 10
    assert Counter(case.origin for case in CASES)["recorded"] >= 40
    folders = {case.folder for case in CASES}
    assert folders == {path for origin in ("recorded", "written") for path in (FOLDER / "logs" / origin).iterdir()}
