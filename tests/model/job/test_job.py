"""Spans, scopes, and which of several claims is in force."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import (
    WHOLE_JOB,
    Job,
    Known,
    Launch,
    OneOf,
    Relation,
    Scope,
    Strength,
    Unresolved,
    alternatives,
    span_of,
)
from tests.builders import claim, job, span

SCOPES = st.builds(
    Scope,
    launch=st.sampled_from(["", "run.sh:3", "run.sh:9"]),
    role=st.sampled_from(["", "server", "trainer"]),
    node=st.sampled_from(["", "a", "b"]),
    rank=st.sampled_from([None, 0, 1]),
)


# --- spans ---


@given(st.text(alphabet="ab \t\n", max_size=40), st.data())
def test_a_span_leads_back_to_its_text(text: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, len(text)))
    found = span_of("f", text, start, end)
    lines = text.split("\n")
    offset = sum(len(line) + 1 for line in lines[: found.line - 1]) + found.column - 1
    end_offset = sum(len(line) + 1 for line in lines[: found.end_line - 1]) + found.end_column - 1
    assert (offset, end_offset) == (start, end)
    assert found.snippet == lines[found.line - 1]


def test_a_span_shows_no_carriage_return_and_no_endless_line() -> None:
    assert span_of("f", "one\r\ntwo\r\n", 5, 8).snippet == "two"
    assert len(span_of("f", "x" * 10_000, 9_000, 9_001).snippet) == MAX_SNIPPET_LENGTH


def test_a_span_past_the_end_is_clipped() -> None:
    found = span_of("f", "ab", -3, 99)
    assert (found.line, found.column, found.end_line, found.end_column) == (1, 1, 1, 3)


# --- scopes ---


@given(SCOPES)
def test_the_whole_job_covers_everything_and_each_scope_itself(scope: Scope) -> None:
    assert WHOLE_JOB.covers(scope)
    assert scope.covers(scope)


@given(SCOPES, SCOPES)
def test_scopes_that_cover_each_other_are_equal(left: Scope, right: Scope) -> None:
    if left.covers(right) and right.covers(left):
        assert left == right
    if left.covers(right) and left != right:
        assert left.specificity < right.specificity


@given(SCOPES, SCOPES, SCOPES)
def test_covering_is_transitive(a: Scope, b: Scope, c: Scope) -> None:
    if a.covers(b) and b.covers(c):
        assert a.covers(c)


def test_a_launch_does_not_cover_another_launch() -> None:
    assert not Scope(launch="run.sh:3").covers(Scope(launch="run.sh:9"))
    assert not Scope(rank=0).covers(WHOLE_JOB)


# --- what is in force ---

HERE = Scope(launch="run.sh:3")


def test_the_stronger_claim_wins_in_any_order() -> None:
    default = claim("nodes", 1, strength=Strength.DEFAULT)
    flag = claim("nodes", 2, strength=Strength.FLAG)
    observed = claim("nodes", 4, strength=Strength.SCHEDULER)
    assert job(flag, default).setting("nodes") == (flag,)
    assert job(default, observed, flag).setting("nodes") == (observed,)


def test_the_narrower_of_equally_strong_claims_wins() -> None:
    wide, narrow = claim("nodes", 4), claim("nodes", 2, scope=HERE)
    found = job(narrow, wide)
    assert found.setting("nodes", HERE) == (narrow,)
    assert found.setting("nodes") == (wide,)
    assert found.setting("nodes", Scope(launch="run.sh:9")) == (wide,)


def test_strength_comes_before_narrowness() -> None:
    wide = claim("nodes", 4, strength=Strength.SCHEDULER)
    narrow = claim("nodes", 2, scope=HERE, strength=Strength.DEFAULT)
    assert job(narrow, wide).setting("nodes", HERE) == (wide,)


def test_claims_in_branches_give_alternatives() -> None:
    found = job(claim("nodes", 2), claim("nodes", 4))
    assert len(found.setting("nodes")) == 2
    assert found.value("nodes") == OneOf((2, 4))


def test_requirements_of_different_sources_coexist() -> None:
    torchrun = claim("nodes", 2, relation=Relation.REQUIRES)
    weaker = claim("nodes", 3, relation=Relation.REQUIRES, strength=Strength.DEFAULT)
    python = claim("nodes", 4, relation=Relation.REQUIRES, source="python", strength=Strength.DEFAULT)
    assert job(torchrun, weaker, python).requiring("nodes") == (torchrun, python)


def test_claims_that_set_a_quantity_precede_requirements() -> None:
    needs = claim("nodes", 2, relation=Relation.REQUIRES)
    assert job(needs).value("nodes") == Known(2)
    assert job(needs, claim("nodes", 4, strength=Strength.DEFAULT)).value("nodes") == Known(4)


def test_bounds_do_not_set_the_value() -> None:
    found = job(claim("nodes", 4, relation=Relation.AT_MOST)).value("nodes")
    assert isinstance(found, Unresolved)
    assert "nodes" in found.why


def test_one_unresolved_branch_makes_the_value_unresolved() -> None:
    assert alternatives(job(claim("nodes", 2), claim("nodes", Unresolved("$N"))).value("nodes")) == ()


def test_the_environment_is_by_name_and_in_force() -> None:
    weak = claim("env.NCCL_DEBUG", "WARN", strength=Strength.DEFAULT)
    strong = claim("env.NCCL_DEBUG", "INFO")
    other = claim("env.A", "1")
    assert tuple(job(strong, weak, other, claim("nodes", 2)).environment()) == (other, strong)


def test_a_launch_is_found_by_its_id() -> None:
    launch = Launch("run.sh:3", "torchrun", span())
    assert Job("run.sh", launches=(launch,)).launch("run.sh:3") is launch
    with pytest.raises(KeyError):
        Job("run.sh").launch("run.sh:3")
    assert launch.scope == HERE


def test_added_claims_are_visible_and_the_first_job_is_unchanged() -> None:
    before = job(claim("nodes", 2))
    assert before.value("nodes") == Known(2)
    after = before.with_claims([claim("nodes", 4, strength=Strength.SCHEDULER)])
    assert (before.value("nodes"), after.value("nodes")) == (Known(2), Known(4))


def test_a_job_with_more_claims_does_not_change_the_original() -> None:
    first = job(claim("nodes", 2), claim("nodes", 4, scope=Scope(launch="a:1")))
    assert len(first.about("nodes")) == 2
    assert len(first.about("nodes", Scope(launch="a:1"))) == 2
    second = first.with_claims([claim("nodes", 8, scope=Scope(launch="b:1"))])
    third = first.with_claims([claim("nodes", 16)])
    assert [len(job.about("nodes")) for job in (first, second, third)] == [2, 3, 3]
    assert [c.value for c in second.about("nodes", Scope(launch="b:1"))] == [Known(2), Known(8)]
    assert [c.value for c in third.about("nodes", Scope(launch="a:1"))] == [Known(2), Known(4), Known(16)]
    assert [c.value for c in first.about("nodes", Scope(launch="b:1"))] == [Known(2)]
