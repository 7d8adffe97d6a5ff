"""A rule of questions: the engine states what is unknown or without fault, the rule only what is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Job, OneOf, Value
from preflight.plugin import (
    Question,
    Rule,
    SubjectQuestion,
    Verdict,
    claims_about,
    failed,
    launches_with,
    not_applicable,
    passed,
    rule,
    subjects_with,
    unknown,
)
from tests.rules.rule_builders import RUN_TIME, claim, launch
from tests.rules.rule_builders import job as job_of

FIRST, SECOND = launch("a.sh:1"), launch("b.sh:1", condition='[ "$1" = b ]')


@rule(
    "ZZZ001",
    "more-nodes-than-tasks",
    severity=Severity.WARNING,
    evidence=("https://example.org/",),
    otherwise="no launch has nodes and tasks",
    each=subjects_with("nodes", "tasks", also=("gpus_per_node",)),
)
def more_nodes_than_tasks(question: SubjectQuestion) -> Verdict | None:
    """A rule about two quantities."""
    (nodes, *_), (tasks, *_), _gpus = question.of
    if nodes.alternatives == (7,):
        return not_applicable(question.subject, "seven")
    if nodes.value == tasks.value:
        return None
    return failed(question.subject, "more nodes than tasks", at=nodes, remedy="Start more tasks.")


def statuses(judged: Rule, job: Job) -> list[tuple[str, Status]]:
    return [(verdict.subject, verdict.status) for verdict in judged.judge(job)]


def test_a_question_with_an_open_claim_is_unknown_and_the_rule_does_not_see_it() -> None:
    nodes, tasks = claim("nodes", RUN_TIME, "a.sh:2", "--nodes=$N"), claim("tasks", 4, "a.sh:3")
    (verdict,) = more_nodes_than_tasks.judge(job_of(nodes, tasks, launches=(FIRST,)))
    assert verdict == unknown("a.sh:1", f"`--nodes=$N` is unknown: {RUN_TIME.why}", at=nodes)


def test_a_claim_in_a_branch_is_certain_only_for_a_launch_in_the_same_branch() -> None:
    nodes = claim("nodes", 4, "b.sh:2", condition=SECOND.condition)
    found = statuses(more_nodes_than_tasks, job_of(nodes, claim("tasks", 4, "b.sh:3"), launches=(FIRST, SECOND)))
    assert found == [("a.sh:1", Status.UNKNOWN), ("b.sh:1", Status.PASS)]


def test_the_quantity_is_named_if_the_question_has_one() -> None:
    def each(job: Job) -> Iterator[Question[None]]:
        yield Question(job.name, job.about("nodes"), quantity="nodes", of=None)

    @rule("ZZZ002", "any", severity=Severity.WARNING, evidence=("https://example.org/",), each=each)
    def any_nodes(question: Question[None]) -> Verdict | None:
        return None

    (verdict,) = any_nodes.judge(job_of(claim("nodes", RUN_TIME, "a.sh:2", "$N")))
    assert verdict.message == f"nodes: `$N` is unknown: {RUN_TIME.why}"


def test_no_verdict_is_a_pass_and_a_verdict_is_stated_as_it_is() -> None:
    tasks = claim("tasks", 4, "a.sh:3")
    for value, expected in ((4, Status.PASS), (8, Status.FAIL), (7, Status.NOT_APPLICABLE)):
        job = job_of(claim("nodes", value, "a.sh:2"), tasks, launches=(FIRST,))
        assert statuses(more_nodes_than_tasks, job) == [("a.sh:1", expected)]
    job = job_of(claim("nodes", OneOf((4, 8)), "a.sh:2"), tasks, launches=(FIRST,))
    assert statuses(more_nodes_than_tasks, job) == [("a.sh:1", Status.FAIL)]


def test_without_a_question_the_rule_does_not_apply() -> None:
    job = job_of(claim("nodes", 4, "a.sh:2"), launches=(FIRST,))
    assert list(more_nodes_than_tasks.judge(job)) == [not_applicable(job.name, "no launch has nodes and tasks")]


def test_a_job_without_launches_is_one_question() -> None:
    job = job_of(claim("nodes", 4, "a.sh:2"), claim("tasks", 4, "a.sh:3"))
    assert list(more_nodes_than_tasks.judge(job)) == [passed(job.name)]


@pytest.mark.parametrize("gpus", [RUN_TIME, 8])
def test_a_further_quantity_counts_only_where_it_is_set(gpus: Value | int) -> None:
    stated = (claim("nodes", 4, "a.sh:2"), claim("tasks", 4, "a.sh:3"))
    assert statuses(more_nodes_than_tasks, job_of(*stated, launches=(FIRST,))) == [("a.sh:1", Status.PASS)]
    known = Status.UNKNOWN if gpus is RUN_TIME else Status.PASS
    job = job_of(*stated, claim("gpus_per_node", gpus, "a.sh:4"), launches=(FIRST,))
    assert statuses(more_nodes_than_tasks, job) == [("a.sh:1", known)]


def test_only_launches_that_the_rule_is_about_are_asked() -> None:
    each = launches_with("nodes", where=lambda stated: stated.launch.condition == "")
    nodes = claim("nodes", 4, "a.sh:2")
    (question,) = each(job_of(nodes, launches=(FIRST, SECOND)))
    assert (question.subject, question.claims, tuple(question.of)) == ("a.sh:1", (nodes,), ((nodes,),))
    assert list(each(job_of(nodes))) == []


def test_a_claim_of_several_launches_is_asked_once() -> None:
    nodes, other = claim("nodes", 4, "a.sh:2"), claim("nodes", 8, "a.sh:3")
    job = job_of(nodes, other, launches=(FIRST, SECOND))
    assert [question.claims for question in claims_about("nodes")(job)] == [(nodes,), (other,)]
    fours = claims_about("nodes", where=lambda claim: claim.alternatives == (4,))
    assert [question.claims for question in fours(job)] == [(nodes,)]


@rule(
    "ZZZ003",
    "script-harmful",
    severity=Severity.WARNING,
    evidence=("https://example.org/",),
    otherwise="no script",
    passes_with=("nodes", "env."),
    each=claims_about("tasks"),
)
def script_harmful(question: SubjectQuestion) -> Verdict | None:
    """A rule about something that is stated only where it is wrong."""
    return failed(question.subject, "harmful", at=question.claims[0], remedy="Remove it.")


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("tasks", Status.FAIL),
        ("nodes", Status.PASS),
        ("env.RANK", Status.PASS),
        ("time_limit_s", Status.NOT_APPLICABLE),
    ],
)
def test_a_job_without_a_finding_passes_if_it_states_what_the_rule_is_about(quantity: str, expected: Status) -> None:
    assert statuses(script_harmful, job_of(claim(quantity, 4, "a.sh:2"))) == [("job", expected)]
