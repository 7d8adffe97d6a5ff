"""Spans, scopes, and which of several claims is in force."""

from __future__ import annotations

import math
import operator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight import api
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.cli.main import run
from preflight.config.resolve import jobs_in
from preflight.model.job import (
    WHOLE_JOB,
    Job,
    Known,
    Launch,
    OneOf,
    Plain,
    Relation,
    Scope,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    join,
    lift,
    one_of,
    span_of,
)
from preflight.model.job.derive import deepspeed_slots, host_slots
from preflight.model.job.value import MAX_ALTERNATIVES
from preflight.model.progress import Step, delayed
from preflight.model.recording_io import save
from tests.builders import claim, job, make_recording, reached, span

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
    assert job(torchrun, weaker, python).requirement_claims("nodes") == (torchrun, python)


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


# Laws of values under branches, arithmetic and conversion from text.


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
PLAINS = SCALARS | st.tuples(SCALARS, SCALARS)
SMALL = st.integers(0, 40)
VALUES = st.builds(one_of, st.lists(SMALL, max_size=20)) | st.just(Unresolved("$N is set by the caller"))


def same(left: Value, right: Value) -> bool:
    """Equal except for the order of alternatives and the reason of unresolved values."""
    if isinstance(left, Unresolved) or isinstance(right, Unresolved):
        return isinstance(left, Unresolved) and isinstance(right, Unresolved)
    return set(alternatives(left)) == set(alternatives(right))


@given(st.lists(PLAINS, max_size=24))
def test_one_of_keeps_distinct_values_in_order(values: list[Plain]) -> None:
    found = one_of(values)
    kept = alternatives(found)
    distinct = list(dict.fromkeys((type(value), value) for value in values))
    if 0 < len(distinct) <= MAX_ALTERNATIVES:
        assert [(type(value), value) for value in kept] == distinct
    else:
        assert isinstance(found, Unresolved)


def test_values_of_different_types_are_different() -> None:
    assert one_of([1, True, 1.0, "1"]) == OneOf((1, True, 1.0, "1"))
    assert len(alternatives(one_of([1, True, 1.0, "1"]))) == 4


@given(VALUES)
def test_joining_a_value_with_itself_changes_nothing(value: Value) -> None:
    assert same(join([value, value]), value)


@given(VALUES, VALUES)
def test_the_order_of_branches_does_not_matter(left: Value, right: Value) -> None:
    assert same(join([left, right]), join([right, left]))


@given(VALUES, VALUES, VALUES)
def test_branches_may_meet_in_any_grouping(first: Value, second: Value, third: Value) -> None:
    assert same(join([join([first, second]), third]), join([first, join([second, third])]))


@given(VALUES)
def test_a_value_unresolved_in_one_branch_stays_unresolved(value: Value) -> None:
    outside = Unresolved("$NNODES is set by the caller")
    assert isinstance(join([value, outside]), Unresolved)
    assert isinstance(lift(operator.add, value, outside), Unresolved)


@given(st.lists(SMALL, min_size=1, max_size=3), st.lists(SMALL, min_size=1, max_size=3))
def test_lift_reaches_every_combination_and_no_other(left: list[int], right: list[int]) -> None:
    found = lift(operator.mul, one_of(left), one_of(right))
    assert set(alternatives(found)) == {a * b for a in left for b in right}


@pytest.mark.parametrize(
    "fault",
    [lambda: 1 // 0, lambda: int("x"), lambda: len(3), lambda: int(math.inf), lambda: math.exp(1e6)],
    ids=["division", "text", "type", "infinity", "overflow"],
)
def test_arithmetic_that_fails_leaves_the_value_unresolved(fault: object) -> None:
    assert isinstance(lift(lambda _: fault(), Known(1)), Unresolved)  # type: ignore[operator]


@given(st.integers())
def test_whole_numbers_are_read_from_text(number: int) -> None:
    assert as_int(Known(str(number))) == Known(number)
    assert as_int(Known(number)) == Known(number)


@given(PLAINS)
def test_as_int_never_raises_and_gives_whole_numbers_only(value: Plain) -> None:
    for number in alternatives(as_int(Known(value))):
        assert type(number) is int


@pytest.mark.parametrize("value", [True, None, 1.5, math.inf, math.nan, "", "eight", "1.0", "0x10", ("1",), "9" * 5000])
def test_a_text_that_is_not_a_number_is_unresolved(value: Plain) -> None:
    assert isinstance(as_int(Known(value)), Unresolved)


def test_one_bad_alternative_makes_the_number_unresolved() -> None:
    assert isinstance(as_int(OneOf(("8", "auto"))), Unresolved)
    assert as_int(OneOf(("8", "08", 8))) == Known(8)


def test_hostile_numbers_of_alternatives_end_quickly() -> None:
    wide = one_of(range(MAX_ALTERNATIVES))
    assert isinstance(lift(lambda *numbers: sum(numbers), *[wide] * 30), Unresolved)
    assert isinstance(one_of(range(10**6)), Unresolved)


# The slots of a hostfile that DeepSpeed uses, and the slots of each host for other launchers.


_HOSTS = "node1 slots=3\nnode2 slots=2\nnode3 slots=3\n"


def _job(folder: Path, line: str, hosts: str = _HOSTS) -> Job:
    (folder / "hostfile").write_text(hosts)
    (folder / "train.py").write_text("import torch\n")
    (folder / "run.sh").write_text(f"{line} train.py\n")
    (found,) = jobs_in([folder / "run.sh"], root=folder)
    return found


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("", {"node1": (0, 1, 2), "node2": (0, 1), "node3": (0, 1, 2)}),
        # The hostfile gives the order, regardless of the option.
        ("--include node3@node1:2,0", {"node1": (2, 0), "node3": (0, 1, 2)}),
        ("--exclude node2", {"node1": (0, 1, 2), "node3": (0, 1, 2)}),
        ("--exclude node1:0,1@node2:0,1", {"node1": (2,), "node3": (0, 1, 2)}),
        ("--num_nodes 2", {"node1": (0, 1, 2), "node2": (0, 1)}),
        ("--num_nodes=2 --num_gpus=1", {"node1": (0,), "node2": (0,)}),
        ("--include node4", {}),
        ("--include node1:a", {}),
        ("--num_gpus $GPUS", {}),
    ],
)
def test_options_leave_some_slots_of_a_hostfile(
    options: str, expected: dict[str, tuple[int, ...]], tmp_path: Path
) -> None:
    job = _job(tmp_path, f"deepspeed --hostfile hostfile {options}")
    assert deepspeed_slots(job, job.launches[0]) == expected
    if expected and options:
        world = sum(len(own) for own in expected.values())
        assert job.value("world_size", job.launches[0].scope) == Known(world)
        assert job.value("nodes", job.launches[0].scope) == Known(len(expected))


def test_only_deepspeed_has_such_slots(tmp_path: Path) -> None:
    job = _job(tmp_path, "mpirun -hostfile hostfile -np 8 python")
    assert deepspeed_slots(job, job.launches[0]) == {}
    assert host_slots(job, job.launches[0]) == {"node1": 3, "node2": 2, "node3": 3}


def test_hosts_without_slots_have_none(tmp_path: Path) -> None:
    job = _job(tmp_path, "mpirun -hostfile hostfile -np 2 python", "node1\nnode2\n")
    assert host_slots(job, job.launches[0]) == {}


# Every command that may take long reports its progress, from the first step to the last.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve small jobs."""
    for number in range(12):
        script = f"#!/bin/bash\ntorchrun --nnodes=2 --master_port={29500 + number} train{number}.py\n"
        (tmp_path / f"run{number}.sh").write_text(script)
    return tmp_path


def stages(steps: list[Step]) -> list[str]:
    """The stages in the order in which they began."""
    return list(dict.fromkeys(step.stage for step in steps))


def test_lint_reports_progress_of_files_jobs_and_rules(folder: Path) -> None:
    steps: list[Step] = []
    api.lint([folder], root=folder, progress=steps.append)
    assert stages(steps) == ["files", "jobs", "judge"]
    assert [step.done for step in steps if step.stage == "jobs"] == list(range(12))
    judged = [step for step in steps if step.stage == "judge"]
    assert [step.done for step in judged] == list(range(judged[0].total))


def test_judge_reports_progress_of_reading_and_judging(tmp_path: Path) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(save(make_recording(job(), verb="check", nodes=reached("a", "b"), stages=("node",))))
    steps: list[Step] = []
    api.judge(path, progress=steps.append)
    assert stages(steps) == ["recording", "judge"]
    assert steps[-1].done == steps[-1].total - 1


def test_diagnose_reports_progress_of_each_log(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"rank{number}.log").write_text("RuntimeError: CUDA out of memory\n")
    steps: list[Step] = []
    api.diagnose([tmp_path], progress=steps.append)
    assert [(step.stage, step.done, step.total) for step in steps] == [("logs", n, 3) for n in range(3)]


def test_a_quick_run_shows_no_progress() -> None:
    now, steps = [10.0], list[Step]()
    tell = delayed(steps.append, after_s=1.0, clock=lambda: now[0])
    tell(Step("files", 1, 9))
    now[0] = 11.0
    tell(Step("files", 2, 9))
    assert [step.done for step in steps] == [2]


@pytest.mark.parametrize("verb", ["lint", "judge", "diagnose"])
def test_a_quick_command_shows_no_progress(verb: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recording, log = folder / "recording.json", folder / "rank0.log"
    recording.write_bytes(save(make_recording(job())))
    log.write_text("all is well\n")
    named = {"lint": folder / "run0.sh", "judge": recording, "diagnose": log}[verb]
    run([verb, str(named)])
    assert capsys.readouterr().err == ""
