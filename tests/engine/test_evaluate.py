"""Judging: crashes are isolated, selected rules run, one fault is one finding, and the order is stable."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from preflight.engine.evaluate import MAX_NODES, is_selected, outcomes_of
from preflight.engine.evaluate import judge_without_crashing_nodes as isolation_judged
from preflight.engine.report import ExitCode
from preflight.engine.suppress import fold
from preflight.model.findings import Confidence, Finding, Severity, Status, VerdictKind
from preflight.model.job import Job, Known, Launch, Unresolved
from preflight.model.recording import Configuration, Fleet, Node, NodeRecord, UnplannedCheck
from preflight.model.requests import EventRecord, FactRecord, Facts, Request
from preflight.plugins.authoring import Rule, Verdict, failed, passed, unknown
from tests.builders import claim, job, judged, make_check, make_recording, make_rule, reached, seen, span


def finds_nothing(subject: Job) -> Iterator[Verdict]:
    yield passed(subject.name)


def finds_a_fault(subject: Job) -> Iterator[Verdict]:
    yield failed(subject.name, "3 was seen, 4 was expected", at=span(), remedy="Say 4.")


def crashes_half_way(subject: Job) -> Iterator[Verdict]:
    yield passed("the first launch")
    raise RuntimeError("a bug in this rule")


# --- isolation ---


def test_a_crashing_rule_is_unknown_and_others_run() -> None:
    rules = [make_rule(crashes_half_way, "TST001"), make_rule(finds_nothing, "TST002")]
    report = judged(make_recording(job()), rules)
    first, crashed, other = report.outcomes
    assert (first.status, crashed.status, other.status) == (Status.PASS, Status.UNKNOWN, Status.PASS)
    assert crashed.required
    assert "TST001 fault-tst001 crashed" in crashed.reason
    assert "a bug in this rule" in crashed.reason
    assert (report.verdict, report.exit_code) == (VerdictKind.INCOMPLETE, ExitCode.INCOMPLETE)


@pytest.mark.parametrize("answer", [None, 3, ["not a verdict"]])
def test_a_rule_with_an_invalid_result_has_crashed(answer: object) -> None:
    rule = make_rule(lambda subject: answer)  # type: ignore[arg-type,return-value]
    report = judged(make_recording(job()), [rule])
    assert [outcome.status for outcome in report.outcomes] == [Status.UNKNOWN]
    assert report.exit_code == ExitCode.INCOMPLETE


def test_a_finding_beside_a_crash_is_still_no_go() -> None:
    rules = [make_rule(crashes_half_way, "TST001"), make_rule(finds_a_fault, "TST002")]
    assert judged(make_recording(job()), rules).exit_code == ExitCode.NO_GO


def test_a_check_that_crashes_is_unknown() -> None:
    def crashes(subject: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
        raise KeyError(fleet.nodes[7].name)

    recording = make_recording(job(), verb="check", nodes=reached("a"), stages=("node",))
    report = judged(recording, (), [make_check(crashes)])
    assert report.outcomes[0].required
    assert report.exit_code == ExitCode.INCOMPLETE


def test_a_check_that_crashed_while_planning_is_unknown_although_its_judgement_finds_nothing_wrong() -> None:
    recording = make_recording(job(), verb="check", nodes=reached("a"), stages=("node",))
    recording = replace(recording, unplanned=(UnplannedCheck("TST501", recording.jobs[0].name, "KeyError: 7"),))
    report = judged(recording, (), [make_check(lambda *_: [passed("a")])])
    assert [outcome.status for outcome in report.outcomes] == [Status.UNKNOWN]
    assert "KeyError: 7" in report.outcomes[0].reason
    assert report.exit_code == ExitCode.INCOMPLETE


def test_a_truncated_evaluation_is_not_a_go() -> None:
    recording = make_recording(
        job(), verb="check", nodes=reached("a"), skipped=[("node", "it was interrupted")], interrupted=130
    )
    report = judged(recording, (), [make_check(lambda *_: [passed("a")])])
    assert report.verdict is VerdictKind.INCOMPLETE
    assert report.exit_code == 130


# --- which ones run ---


RULES = [
    make_rule(finds_nothing, "NET001", "dead-link", profile="gate"),
    make_rule(finds_nothing, "NET002", "slow-link"),
    make_rule(finds_nothing, "BAT001", "odd-batch", profile="pedantic"),
]


@pytest.mark.parametrize(
    ("configuration", "ids"),
    [
        (Configuration(), {"NET001", "NET002"}),
        (Configuration(profile="gate"), {"NET001"}),
        (Configuration(profile="pedantic"), {"NET001", "NET002", "BAT001"}),
        (Configuration(select=("BAT001",)), {"BAT001"}),
        (Configuration(select=("odd-batch", "net001")), {"BAT001", "NET001"}),
        (Configuration(select=("NET",)), {"NET001", "NET002"}),
        (Configuration(select=("net",), ignore=("slow-link",)), {"NET001"}),
        (Configuration(ignore=("NET",)), set()),
        (Configuration(ignore=("NET",), mandatory=("NET001",)), {"NET001"}),
        (Configuration(mandatory=("odd-batch",)), {"NET001", "NET002", "BAT001"}),
        (Configuration(ignore=("N", "NET0", "")), {"NET001", "NET002"}),
    ],
    ids=lambda value: " ".join(sorted(value)) if isinstance(value, set) else str(value),
)
def test_profile_select_and_ignore(configuration: Configuration, ids: set[str]) -> None:
    outcomes = outcomes_of(make_recording(job(), configuration=configuration), RULES, ())
    assert {outcome.id for outcome in outcomes} == ids
    assert {rule.meta.id for rule in RULES if is_selected(rule.meta, configuration)} == ids


@pytest.mark.parametrize("wrong", [{"profile": "strict"}, {"fail_on": "never"}])
def test_an_invalid_configuration_is_rejected(wrong: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="use one of"):
        Configuration(**wrong)  # type: ignore[arg-type]


def test_checks_do_not_run_in_lint() -> None:
    check = make_check(lambda subject, fleet, facts: [passed("a")])
    assert outcomes_of(make_recording(job()), (), [check]) == ()


def test_a_skipped_stage_gives_unknown_outcomes_with_the_reason() -> None:
    looks = [
        make_check(lambda *_: [passed("a")], "TST501"),
        make_check(lambda *_: [passed("a")], "TST502", when="smoke"),
        make_check(lambda *_: [passed("a")], "TST503", when="link"),
    ]
    recording = make_recording(
        job(),
        verb="check",
        nodes=reached("a"),
        stages=("node",),
        skipped=[("smoke", "WLD001 would stop it anyway")],
    )
    outcomes = outcomes_of(recording, (), looks)
    assert [(o.id, o.status) for o in outcomes] == [("TST501", Status.PASS), ("TST502", Status.UNKNOWN)]
    assert outcomes[1].reason == "the smoke stage did not run: WLD001 would stop it anyway"
    assert not outcomes[1].required


# --- findings ---


def findings(*verdicts: Verdict, rule: Rule | None = None, subject: Job | None = None) -> tuple[Finding, ...]:
    """The findings of a rule with these verdicts."""
    meta = (rule or make_rule(finds_nothing)).meta
    said = make_rule(lambda _: verdicts, meta.id, meta.name, severity=meta.severity, confidence=meta.confidence)
    return judged(make_recording(subject or job()), [said]).findings


def test_one_fault_on_many_nodes_is_one_finding() -> None:
    nodes = [f"gpu{number}" for number in range(512)]
    verdicts = [
        failed(node, "no GPU is visible", at=seen(node, "0 GPUs"), nodes=[node], remedy="Load the driver.")
        for node in nodes
    ]
    (finding,) = findings(*verdicts)
    assert finding.nodes == tuple(nodes)
    assert len(finding.evidence) == 512


def test_a_fault_with_a_location_is_folded_over_nodes() -> None:
    verdicts = [
        failed(node, "ib0 does not exist", at=span(), also=[seen(node, "eth0")], nodes=[node], remedy="Name eth0.")
        for node in ("a", "b")
    ]
    (finding,) = findings(*verdicts)
    assert finding.nodes == ("a", "b")
    assert [item.node for item in finding.evidence] == ["a", "b"]


@pytest.mark.parametrize("difference", ["message", "place", "remedy"])
def test_different_faults_are_separate_findings(difference: str) -> None:
    changed = {
        "message": failed("x", "5 was seen", at=span(), remedy="Say 4."),
        "place": failed("x", "3 was seen", at=span(line=9), remedy="Say 4."),
        "remedy": failed("x", "3 was seen", at=span(), remedy="Say 8."),
    }
    assert len(findings(failed("x", "3 was seen", at=span(), remedy="Say 4."), changed[difference])) == 2


def test_faults_without_a_location_are_distinguished_by_subject() -> None:
    verdicts = [failed(subject, "too small", at=seen("a", "64 MiB"), remedy="-") for subject in ("/dev/shm", "/tmp")]
    assert len(findings(*verdicts)) == 2


def test_a_fault_in_a_file_that_many_jobs_share_is_one_finding() -> None:
    launches = [span(path=f"{name}.sh") for name in "abcdefghijkl"]
    verdicts = [
        failed(f"{place.path}:1", "no set_epoch", at=span(path="common.py"), also=[(place, "reaches it")], remedy="-")
        for place in launches
    ]
    (finding,) = findings(*verdicts)
    assert finding.locations[0].path == "common.py"
    assert [location.path for location in finding.locations[1:3]] == ["a.sh", "b.sh"]
    assert len(finding.locations) <= 8


def test_two_lines_of_the_same_text_have_two_fingerprints() -> None:
    first, second = findings(
        *(failed("run.sh", "misspelt", at=span(line=line), remedy="Correct it.") for line in (3, 8))
    )
    assert second.fingerprint == f"{first.fingerprint}:2"


def test_a_fingerprint_survives_moved_lines_and_indentation() -> None:
    (before,) = findings(failed("run.sh:3", "wrong", at=span(line=3, snippet="srun -N2"), remedy="-"))
    (after,) = findings(failed("run.sh:40", "wrong", at=span(line=40, snippet="    srun  -N2"), remedy="-"))
    (other,) = findings(failed("run.sh:3", "wrong", at=span(line=3, snippet="srun -N4"), remedy="-"))
    assert before.fingerprint == after.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    ("subject", "second", "severity"),
    [
        ("run.sh:3", "run.sh", Severity.ERROR),
        ("run.sh:3", "other.sh", Severity.WARNING),
        ("run.sh:3 and 1 more", "run.sh", Severity.WARNING),
    ],
)
def test_a_finding_that_depends_on_a_guessed_job_is_not_an_error(subject: str, second: str, severity: Severity) -> None:
    guessed = job(probable=True, launches=(Launch("run.sh:3", "torchrun", span()),))
    fault = failed(subject, "wrong", at=span(), also=[span(path=second, line=9)], remedy="-")
    (finding,) = findings(fault, subject=guessed)
    assert finding.severity is severity


@pytest.mark.parametrize("confidence", [Confidence.MEDIUM, Confidence.LOW])
def test_an_error_needs_high_confidence(confidence: Confidence) -> None:
    (finding,) = findings(failed("x", "wrong", at=span(), remedy="-", confidence=confidence))
    assert (finding.severity, finding.confidence) == (Severity.WARNING, confidence)
    with pytest.raises(ValueError, match="high confidence"):
        make_rule(finds_nothing, confidence=confidence)


def test_a_verdict_can_only_be_milder_than_its_rule() -> None:
    mild = make_rule(finds_nothing, severity=Severity.WARNING)
    (harsher,) = findings(failed("x", "wrong", at=span(), remedy="-", severity=Severity.ERROR), rule=mild)
    (milder,) = findings(failed("x", "wrong", at=span(), remedy="-", severity=Severity.INFO), rule=mild)
    assert (harsher.severity, milder.severity) == (Severity.WARNING, Severity.INFO)


def test_an_unknown_outcome_keeps_its_place() -> None:
    rule = make_rule(lambda subject: [unknown("ds.json", "a template", at=span("ds.json", 4))])
    (outcome,) = judged(make_recording(job()), [rule]).outcomes
    assert (outcome.locations[0].path, outcome.locations[0].line) == ("ds.json", 4)


def test_a_rule_with_a_wrong_name_cannot_be_created() -> None:
    with pytest.raises(ValueError, match="not a rule id"):
        make_rule(finds_nothing, "TST1")
    with pytest.raises(ValueError, match="not a rule name"):
        make_rule(finds_nothing, name="Has Spaces")
    with pytest.raises(ValueError, match="gate, default, pedantic"):
        make_rule(finds_nothing, profile="strict")


# --- order ---


def test_the_result_does_not_depend_on_input_order() -> None:
    def says(subject: Job) -> Iterator[Verdict]:
        value = subject.value("nodes")
        if isinstance(value, Known):
            yield failed(subject.name, f"{value.value} nodes", at=span(subject.name), remedy="-")
        elif isinstance(value, Unresolved):
            yield unknown(subject.name, value.why)

    rules = [make_rule(says, f"TST{number:03}") for number in range(5)]
    jobs = [job(claim("nodes", number), name=f"run{number}.sh") for number in range(4)] + [job(name="z.sh")]
    expected = judged(make_recording(*jobs), rules)
    shuffler = random.Random(7)
    for _ in range(10):
        shuffler.shuffle(rules)
        shuffler.shuffle(jobs)
        assert judged(make_recording(*jobs), rules) == expected


def test_findings_are_ordered_worst_first_then_by_id_and_place() -> None:
    def finding(id: str, severity: Severity, line: int) -> Finding:
        (found,) = findings(
            failed("x", f"line {line}", at=span(line=line), remedy="-"),
            rule=make_rule(finds_nothing, id, severity=severity),
        )
        return found

    expected = [
        finding("TST002", Severity.ERROR, 9),
        finding("TST001", Severity.WARNING, 2),
        finding("TST001", Severity.WARNING, 10),
        finding("TST000", Severity.INFO, 1),
    ]
    for order in itertools.permutations(expected):
        assert [f.message for f in fold(order)] == [f.message for f in expected]


def test_a_repeated_location_is_shown_once() -> None:
    verdict = failed("x", "m", at=span("a.sh", 1), also=[(span("a.sh", 2), "n"), (span("a.sh", 2), "n")], remedy="r")
    assert [(place.line, place.note) for place in verdict.locations] == [(1, ""), (2, "n")]


# A check that crashes on one node's facts judges the others.


def probe() -> int:
    """A number."""
    return 0


NAME = f"{__name__}:probe"


def facts(values: dict[str, int]) -> Facts:
    """The fact of each node."""
    records = [FactRecord(Request(NAME, node), value) for node, value in values.items()]
    events = tuple(EventRecord(record.request.key, record.request.node, 0.0, "child", {}) for record in records)
    return Facts(records, events)


def fleet(values: dict[str, int]) -> Fleet:
    """The nodes of these facts."""
    return Fleet(tuple(NodeRecord(Node(node, index)) for index, node in enumerate(values)))


def inverse(fleet: Fleet, facts: Facts) -> Iterator[str]:
    """Crashes on a node that sent 0."""
    for record in facts.records:
        yield f"{record.request.node} {1 / record.value}" if record.unavailable is None else f"{record.request.node} -"


@pytest.mark.parametrize("bad", [["a"], ["h"], ["c", "d"], ["a", "e", "h"], []])
def test_only_the_nodes_that_make_it_crash_are_excluded(bad: list[str]) -> None:
    values = {node: 0 if node in bad else 2 for node in "abcdefgh"}
    found, problems = isolation_judged(inverse, fleet(values), facts(values))
    assert sorted(problems) == bad and all("ZeroDivisionError" in why for why in problems.values())
    assert found == [f"{node} {'-' if node in bad else 0.5}" for node in values]


def test_one_of_two_nodes_that_crash_only_together_is_excluded() -> None:
    values = {"a": 3, "b": 1, "c": -3}

    def total(fleet: Fleet, facts: Facts) -> Iterator[str]:
        yield str(1 / sum(record.value for record in facts.records if record.unavailable is None and record.value != 1))

    with pytest.raises(ZeroDivisionError):
        # Without any node there is a division by zero, too.
        isolation_judged(total, fleet(values), facts(values))

    def difference(fleet: Fleet, facts: Facts) -> Iterator[str]:
        numbers = [record.value for record in facts.records if record.unavailable is None]
        yield str(1 / ((sum(numbers) - 1) or len(numbers) - 3) if numbers else "none")

    found, problems = isolation_judged(difference, fleet(values), facts(values))
    assert len(found) == 1 and len(problems) == 1


def test_a_check_that_crashes_without_facts_is_itself_at_fault() -> None:
    def broken(fleet: Fleet, facts: Facts) -> Iterator[str]:
        raise LookupError("mine")
        yield ""

    with pytest.raises(LookupError, match="mine"):
        isolation_judged(broken, fleet({"a": 1}), facts({"a": 1}))


def test_a_check_that_crashes_on_most_nodes_is_itself_at_fault() -> None:
    values = {f"node{number}": 0 for number in range(MAX_NODES + 10)}
    with pytest.raises(ZeroDivisionError):
        isolation_judged(inverse, fleet(values), facts(values))


# --- defaults ---


def finds_five_nodes(subject: Job) -> Iterator[Verdict]:
    value = subject.value("nodes")
    if not isinstance(value, Known):
        yield unknown(subject.name, "the number of nodes is set by the caller")
    elif value.value == 5:
        yield failed(subject.name, "`--nnodes=$NNODES` (5) is one too many", at=span(), remedy="Take four.")
    else:
        yield passed(subject.name)


def nodes_by_default(number: int) -> Job:
    opened = job(claim("nodes", Unresolved("set by the caller")))
    return replace(
        opened, by_default=replace(job(claim("nodes", number)), assumed=(("NNODES", str(number)), ("X", "1")))
    )


def test_what_a_rule_cannot_tell_is_a_warning_if_the_defaults_are_wrong() -> None:
    unknown, outcome = outcomes_of(make_recording(nodes_by_default(5)), [make_rule(finds_five_nodes)], [])
    finding = outcome.finding
    assert unknown.status is Status.UNKNOWN and finding is not None
    assert finding.severity is Severity.WARNING
    assert finding.message == "With the defaults (NNODES=5): `--nnodes=$NNODES` (5) is one too many"


def test_what_a_rule_cannot_tell_stays_unknown_if_the_defaults_are_right() -> None:
    (outcome,) = outcomes_of(make_recording(nodes_by_default(4)), [make_rule(finds_five_nodes)], [])
    assert outcome.status is Status.UNKNOWN
