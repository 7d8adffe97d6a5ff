"""No rule crashes on any number in a file: the numbers of each case become zero, negative or huge."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.model.findings import Outcome, Status
from preflight.model.job import Claim, Job, Known, OneOf, Unresolved, alternatives
from preflight.model.job.derive import with_derived
from tests.rules.case_files import Case, all_cases
from tests.rules.rule_builders import judged
from tests.rules.test_cases import RULES, jobs_of
from tests.suite import effort

#: Larger than any float, as many digits as Python converts, and numbers that no quantity has.
EXTREMES = (0, -1, 1, -(10**400), 10**400, 10**4200, 2**63, 0.0, -0.5, 1e308, 5e-324, math.inf, -math.inf, math.nan)


def is_number(claim: Claim) -> bool:
    return any(isinstance(one, int | float) and not isinstance(one, bool) for one in alternatives(claim.value))


def crashes(outcomes: list[Outcome]) -> Iterator[str]:
    for outcome in outcomes:
        if outcome.status is Status.UNKNOWN and "crashed, which is a bug" in outcome.reason:
            yield outcome.reason


def mutated(job: Job, values: dict[int, object]) -> Job:
    claims = tuple(
        replace(claim, value=Known(values[place])) if place in values else claim  # type: ignore[arg-type]
        for place, claim in enumerate(job.claims)
    )
    return with_derived(replace(job, claims=claims))


@pytest.mark.parametrize("rule", RULES)
def test_extreme_numbers_crash_no_rule(rule: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    cases = [case for case in all_cases() if case.rule == rule]
    if not request.config.getoption(effort.OPTION):
        # The gate tries the first failing case, in which the body of the rule runs to its end.
        cases = [case for case in cases if case.name.startswith("fail-")][:1]
    for case in cases:
        for job in jobs_of(case, tmp_path):
            _try_extremes(case, job)


def _try_extremes(case: Case, job: Job) -> None:
    rule = RULES[case.rule]
    numbers = [place for place, claim in enumerate(job.claims) if is_number(claim)]
    own = [place for place in numbers if job.claims[place].source != "environment"][:12]
    for extreme in EXTREMES:
        found = judged(rule, (mutated(job, dict.fromkeys(numbers, extreme)),))
        assert not list(crashes(found)), (case.name, "all", extreme)
    # Lists of hosts and names may be empty.
    lists = [
        place
        for place, claim in enumerate(job.claims)
        if any(isinstance(one, tuple) and one and isinstance(one[0], str) for one in alternatives(claim.value))
    ]
    found = judged(rule, (mutated(job, dict.fromkeys(lists, ())),))
    assert not list(crashes(found)), (case.name, "lists")
    for place in own:
        for extreme in (0, -1):
            found = judged(rule, (mutated(job, {place: extreme}),))
            assert not list(crashes(found)), (case.name, job.claims[place].quantity, extreme)


@functools.cache
def _jobs() -> list[Job]:
    with tempfile.TemporaryDirectory() as above:
        found = [job for case in all_cases()[::40] for job in jobs_of(case, Path(above) / case.rule)]
    return [job for job in found if any(is_number(claim) for claim in job.claims)]


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_mixed_extreme_numbers_crash_no_rule(data: st.DataObject) -> None:
    job = data.draw(st.sampled_from(_jobs()))
    number = st.one_of(
        st.sampled_from(EXTREMES), st.integers(-4, 4), st.integers(-(10**500), 10**500), st.floats(width=64)
    )
    places = [place for place, claim in enumerate(job.claims) if is_number(claim)]
    values = {place: data.draw(number) for place in places if data.draw(st.booleans())}
    changed = mutated(job, values)
    for rule in RULES.values():
        assert not list(crashes(judged(rule, (changed,))))


def test_impossible_sizes_are_unresolved() -> None:
    claim = next(claim for job in _jobs() for claim in job.claims if is_number(claim))
    for extreme in (10**400, -(10**400), math.inf, math.nan):
        (kept,) = Job("x", claims=(replace(claim, value=Known(extreme)),)).claims
        assert isinstance(kept.value, Unresolved)
        assert "larger than any quantity" in kept.value.why
        (kept,) = Job("x", claims=(replace(claim, value=OneOf((1, extreme))),)).claims
        assert isinstance(kept.value, Unresolved)
    (kept,) = Job("x", claims=(replace(claim, value=Known(2**53)),)).claims
    assert kept.value == Known(2**53)
