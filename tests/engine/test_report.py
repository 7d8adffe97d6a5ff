"""The verdict and exit code of every kind of run, and the shape that programs read."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from preflight import api
from preflight.config import document as settings
from preflight.engine import report as reports
from preflight.engine.report import (
    DEFAULTS,
    AvoidedCost,
    ExitCode,
    Report,
    adapter,
    avoided_cost,
    crashed,
    report_on,
    to_json,
    with_price,
)
from preflight.model import recording_io
from preflight.model.charts import (
    Bar,
    Bars,
    Cell,
    Chart,
    Column,
    Lane,
    Layout,
    Mark,
    Matrix,
    Piece,
    Place,
    Row,
    Span,
    Table,
    Timeline,
)
from preflight.model.configuration import Accepted, Configuration, FileIgnores, Waiver
from preflight.model.findings import Confidence, Finding, Location, Severity, Status, VerdictKind
from preflight.model.job import Claim, Job, Launch, Note, NoteKind, Scope, Strength, Suppression, Unresolved
from preflight.model.recording import Recording
from preflight.model.recording_io import load, save
from preflight.plugins import registry
from preflight.plugins.authoring import MakeCharts, Rule, failed, passed, unknown
from preflight.plugins.pack import Pack
from preflight.plugins.registry import Broken, PackFunction
from preflight.reporters.text import groups
from tests.builders import (
    DOCS,
    assert_follows_schema,
    claim,
    job,
    judged,
    make_check,
    make_recording,
    make_rule,
    reached,
    seen,
    span,
)

GO, NO_GO, INCOMPLETE = VerdictKind.GO, VerdictKind.NO_GO, VerdictKind.INCOMPLETE


def finds(severity: Severity, id: str = "TST001") -> Rule:
    """A rule with a finding of this severity."""
    return make_rule(lambda _: [failed("x", "wrong", at=span(), remedy="-")], id, severity=severity)


def cannot_tell(*, required: bool) -> Rule:
    """A rule with an unknown outcome."""
    return make_rule(lambda _: [unknown("x", "no answer", required=required)], "TST002")


ERROR, WARNING, INFO = finds(Severity.ERROR), finds(Severity.WARNING), finds(Severity.INFO)
NEEDED, OPTIONAL = cannot_tell(required=True), cannot_tell(required=False)
FINE = make_rule(lambda _: [passed("x")], "TST003")


@pytest.mark.parametrize(
    ("rules", "fail_on", "verdict", "exit_code", "allowed"),
    [
        ([FINE], "error", GO, 0, 0),
        ([], "error", GO, 0, 0),
        ([ERROR], "error", NO_GO, 1, 1),
        ([WARNING], "error", GO, 0, 0),
        ([INFO], "error", GO, 0, 0),
        ([ERROR], "warning", NO_GO, 1, 1),
        ([WARNING], "warning", NO_GO, 1, 1),
        ([INFO], "warning", GO, 0, 0),
        ([INFO], "info", NO_GO, 1, 1),
        ([OPTIONAL], "info", GO, 0, 0),
        ([NEEDED], "error", INCOMPLETE, 3, 0),
        ([NEEDED, WARNING], "error", INCOMPLETE, 3, 0),
        ([NEEDED, WARNING], "warning", NO_GO, 1, 1),
        ([NEEDED, ERROR], "error", NO_GO, 1, 1),
    ],
)
def test_verdict_and_exit_code(
    rules: Sequence[Rule], fail_on: str, verdict: VerdictKind, exit_code: int, allowed: int
) -> None:
    for allow, expected in ((False, exit_code), (True, allowed)):
        configuration = Configuration(fail_on=fail_on, allow_incomplete=allow)
        report = judged(make_recording(job(), configuration=configuration), rules)
        assert (report.verdict, report.exit_code) == (verdict, expected)


def test_a_run_without_a_job_is_not_judged() -> None:
    report = judged(make_recording(), [ERROR])
    assert (report.verdict, report.exit_code) == (VerdictKind.NOT_JUDGED, ExitCode.NOT_JUDGED)


@pytest.mark.parametrize(("allow", "exit_code"), [(False, ExitCode.NOT_JUDGED), (True, ExitCode.GO)])
def test_a_job_without_a_launch_is_not_judged(allow: bool, exit_code: ExitCode) -> None:
    configuration = Configuration(allow_incomplete=allow)
    report = judged(make_recording(job(launches=()), configuration=configuration), [FINE])
    assert (report.verdict, report.exit_code) == (VerdictKind.NOT_JUDGED, exit_code)


def test_an_error_is_a_no_go_even_without_a_launch() -> None:
    report = judged(make_recording(job(launches=())), [ERROR])
    assert (report.verdict, report.exit_code) == (NO_GO, 1)


def test_a_required_unknown_is_incomplete_even_without_a_launch() -> None:
    report = judged(make_recording(job(launches=())), [NEEDED])
    assert (report.verdict, report.exit_code) == (INCOMPLETE, 3)


def test_the_report_lists_what_was_understood() -> None:
    lines = [Launch(f"run.sh:{number}", "torchrun", span(line=number)) for number in (1, 2, 3)]
    worlds = [
        claim("world_size", 8, scope=Scope("run.sh:1")),
        claim("world_size", Unresolved("$N is not set"), scope=Scope("run.sh:2")),
    ]
    unread = Note(NoteKind.MISSING, "`train.py` is not in the tree", span("train.py"))
    found = judged(
        make_recording(job(*worlds, launches=tuple(lines), notes=(unread,)), job(name="other.yaml", launches=())),
        [FINE, NEEDED],
    ).understood
    assert (found.launches, found.worlds_known, found.worlds_symbolic, found.worlds_unknown) == (3, 1, 1, 1)
    assert (found.jobs_without_launch, found.files_read, found.unread) == (1, 2, 1)
    assert [one.path for one in found.files_unread] == ["train.py"]
    assert (found.rules_judged, found.rules_undecided) == (1, ("TST002",))


BROKEN = (Broken("preflight.rules", "site-rules 2", "site.rules:late", "ImportError: no module named 'site'"),)


def test_a_plugin_that_cannot_be_loaded_makes_the_verdict_incomplete() -> None:
    assert judged(make_recording(job()), [FINE], broken=BROKEN).exit_code == ExitCode.INCOMPLETE
    assert judged(make_recording(), [FINE], broken=BROKEN).exit_code == ExitCode.INCOMPLETE
    assert judged(make_recording(job()), [ERROR], broken=BROKEN).exit_code == ExitCode.NO_GO


@pytest.mark.parametrize("exit_code", [130, 143])
def test_an_interrupted_run_is_never_go(exit_code: int) -> None:
    report = judged(make_recording(job(), verb="check", interrupted=exit_code), [FINE])
    assert (report.verdict, report.exit_code) == (INCOMPLETE, exit_code)
    assert judged(make_recording(job(), verb="check", interrupted=exit_code), [ERROR]).verdict is NO_GO


def test_a_silent_node_makes_the_verdict_incomplete_for_any_selection() -> None:
    recording = make_recording(job(), verb="check", nodes=reached("a", silent=["b"]), stages=("node",))
    assert judged(recording, [FINE]).verdict is INCOMPLETE


@pytest.mark.parametrize("kind", [NoteKind.UNREADABLE, NoteKind.TOO_LARGE, NoteKind.CRASHED])
def test_an_unreadable_selected_input_makes_the_verdict_incomplete(kind: NoteKind) -> None:
    selected = job(notes=(Note(kind, "denied", span(), required=True),))
    followed = job(notes=(Note(kind, "denied", span()),))
    assert judged(make_recording(selected), [FINE]).verdict is INCOMPLETE
    assert judged(make_recording(followed), [FINE]).verdict is GO


def test_unknown_outcomes_are_listed_required_ones_first() -> None:
    late = make_rule(lambda _: [unknown("x", "?", required=True)], "TST009")
    report = judged(make_recording(job()), [FINE, OPTIONAL, late, ERROR])
    assert [outcome.id for outcome in report.coverage.unknown_outcomes] == ["TST009", "TST002"]
    counts = report.coverage
    assert (counts.passed, counts.failed, counts.unknown, counts.not_applicable) == (1, 1, 2, 0)
    assert [outcome.status for outcome in report.outcomes if outcome.finding] == [Status.FAIL]


def test_inputs_are_listed_once_with_their_digest() -> None:
    report = judged(make_recording(job(name="b.sh"), job(name="a.sh"), job(name="b.sh")))
    assert [(file.path, len(file.sha256)) for file in report.inputs] == [("a.sh", 64), ("b.sh", 64)]


def test_a_bug_has_a_report_too() -> None:
    try:
        raise RuntimeError("out of\ncheese")
    except RuntimeError as error:
        report = crashed(error, verb="lint", created="2026-01-02T03:04:05+00:00", version="0.1.0")
    document = assert_follows_schema(to_json(report))
    assert (document["verdict"], document["exit_code"]) == ("incomplete", 5)
    assert document["coverage"]["broken"][0]["why"] == "RuntimeError: out of\ncheese"


# --- schemas ---


@pytest.mark.parametrize(
    ("name", "schema"),
    [("report", reports.schema), ("recording", recording_io.schema), ("config", settings.schema)],
)
def test_the_committed_schema_is_the_generated_one(name: str, schema: object) -> None:
    committed = (DOCS / f"{name}.schema.json").read_text()
    assert callable(schema)
    generated = json.dumps(schema(), indent=2, sort_keys=True) + "\n"
    assert committed == generated, "the schema changed: run `make schema`, and look whether it only grew"


def test_the_same_recording_gives_the_same_bytes() -> None:
    recording = make_recording(job(), verb="check", nodes=reached("a"), stages=("node",))
    assert to_json(judged(recording, [ERROR, NEEDED])) == to_json(judged(recording, [NEEDED, ERROR]))


# Suppression comments exclude the finding of their line from the verdict, and idle ones are reported.


def comment(*names: str, line: int = 3, path: str = "run.sh", reason: str = "tried, works here") -> Suppression:
    """`# preflight: ignore[names] reason` about a line."""
    return Suppression(path, line, names, reason, span(path, line))


def with_comments(*comments: Suppression, jobs: int = 1) -> Report:
    """The report on a job with a fault in line 3 and these comments."""
    rule = make_rule(lambda subject: [failed("run.sh:3", "wrong", at=span(line=3), also=[span(line=7)], remedy="-")])
    return judged(make_recording(*[job(suppressions=comments)] * jobs), [rule])


@pytest.mark.parametrize("name", ["TST001", "tst001", "fault-tst001", "Fault-TST001"])
def test_a_finding_is_suppressed_by_id_or_name(name: str) -> None:
    report = with_comments(comment(name))
    assert report.findings == ()
    (finding,) = report.suppressed
    assert finding.suppression == "tried, works here"
    assert report.verdict is VerdictKind.GO
    assert report.coverage.unused_suppressions == ()


@pytest.mark.parametrize(
    "idle",
    [
        comment("TST002"),
        comment("TST001", line=4),
        comment("TST001", line=7),
        comment("TST001", path="other.sh"),
        comment(),
        comment("TST"),
    ],
    ids=["other-rule", "other-line", "second-place", "other-file", "no-name", "whole-area"],
)
def test_a_comment_that_does_not_match_is_reported(idle: Suppression) -> None:
    report = with_comments(idle)
    assert len(report.findings) == 1
    assert report.suppressed == ()
    assert report.coverage.unused_suppressions == (idle,)
    assert report.verdict is VerdictKind.NO_GO


def test_two_comments_on_one_finding_are_both_used() -> None:
    report = with_comments(comment("TST001", reason=""), comment("fault-tst001"))
    assert report.coverage.unused_suppressions == ()
    assert report.suppressed[0].suppression == "tried, works here"


def test_a_comment_without_a_reason_is_marked() -> None:
    assert with_comments(comment("TST001", reason="")).suppressed[0].suppression == "no reason given"


def test_a_file_of_several_jobs_has_its_comments_counted_once() -> None:
    report = with_comments(comment("TST002"), jobs=2)
    assert len(report.coverage.unused_suppressions) == 1


def test_a_comment_cannot_suppress_a_fault_without_a_location() -> None:
    rule = make_rule(lambda subject: [failed("a", "no GPU", at=seen("a"), nodes=["a"], remedy="-")])
    assert len(judged(make_recording(job(suppressions=(comment("TST001"),))), [rule]).findings) == 1


def test_a_comment_on_several_lines_is_idle_only_if_unused_on_all() -> None:
    here = span(line=2)
    lines = [Suppression("run.sh", line, ("TST001",), "", here) for line in (2, 3, 4)]
    assert with_comments(*lines).coverage.unused_suppressions == ()
    assert with_comments(lines[0], lines[2]).coverage.unused_suppressions == (lines[0],)


# --- waivers ---


def waiver(**more: object) -> Waiver:
    """A waiver of TST001 in line 4 of the configuration."""
    values: dict[str, object] = {"rule": "TST001", "reason": "known", "at": span("preflight.toml", 4), **more}
    return Waiver(**values)  # type: ignore[arg-type]


def waived(*waivers: Waiver, comments: tuple[Suppression, ...] = (), **more: object) -> Report:
    """The report on a job with a fault in line 3 and this configuration."""
    rule = make_rule(lambda subject: [failed("run.sh:3", "wrong", at=span(line=3), remedy="-")])
    configuration = Configuration(waivers=waivers, file="preflight.toml", **more)  # type: ignore[arg-type]
    return judged(make_recording(job(suppressions=comments), configuration=configuration), [rule])


@pytest.mark.parametrize(
    "fitting",
    [
        waiver(),
        waiver(rule="fault-tst001"),
        waiver(paths=("run.*",)),
        waiver(paths=("other", "/run.sh")),
        waiver(expires="2026-01-02"),
        waiver(expires="2027-01-01", owner="infra"),
    ],
    ids=["id", "name", "pattern", "one-of-patterns", "last-day", "owner"],
)
def test_a_waiver_takes_the_finding_out_of_the_verdict(fitting: Waiver) -> None:
    report = waived(fitting)
    assert report.verdict is VerdictKind.GO
    (finding,) = report.suppressed
    assert finding.suppressed_by == "waiver"
    assert finding.suppression.startswith("known")
    assert fitting.owner in finding.suppression and fitting.expires in finding.suppression
    assert report.coverage.suppression_notes == ()


@pytest.mark.parametrize(
    ("idle", "kind"),
    [
        (waiver(rule="TST002"), ""),
        (waiver(paths=("other.sh",)), ""),
        (waiver(hosts=("node1",)), ""),
        (waiver(expires="2026-01-01"), "waiver-expired"),
        (waiver(expires="2020-12-31", owner="infra"), "waiver-expired"),
    ],
    ids=["rule-not-asked", "file-not-read", "host-not-there", "ended-yesterday", "long-ended"],
)
def test_an_unrelated_or_expired_waiver_suppresses_nothing(idle: Waiver, kind: str) -> None:
    report = waived(idle)
    assert report.verdict is VerdictKind.NO_GO
    assert [note.kind for note in report.coverage.suppression_notes] == [kind] * bool(kind)
    if kind:
        (note,) = report.coverage.suppression_notes
        assert idle.expires in note.message and idle.owner in note.message
        assert note.location is not None and note.location.line == 4


def test_an_unused_waiver_is_reported() -> None:
    fine = make_rule(lambda subject: [passed("run.sh:3")])
    configuration = Configuration(waivers=(waiver(), waiver(paths=("run.sh",)), waiver(paths=("other.sh",))))
    report = judged(make_recording(job(), configuration=configuration), [fine])
    assert [note.kind for note in report.coverage.suppression_notes] == ["waiver-unused"] * 2


def test_a_waiver_of_some_nodes_leaves_the_others() -> None:
    nodes = ["node1", "node2", "node3"]
    rule = make_rule(
        lambda subject: [failed("job", "slow", at=seen("node1"), also=[seen("node3")], nodes=nodes, remedy="-")]
    )
    configuration = Configuration(waivers=(waiver(hosts=("node[3-9]",)),))
    report = judged(make_recording(job(), configuration=configuration), [rule])
    assert [finding.nodes for finding in report.findings] == [("node1", "node2")]
    assert [finding.nodes for finding in report.suppressed] == [("node3",)]
    assert [item.node for item in report.suppressed[0].evidence] == ["node3"]
    assert report.verdict is VerdictKind.NO_GO


def test_mandatory_findings_cannot_be_suppressed() -> None:
    everything = {
        "comments": (comment("TST001"),),
        "file_ignores": (FileIgnores("*", ("TST",)),),
        "mandatory": ("tst001",),
    }
    report = waived(waiver(), **everything)  # type: ignore[arg-type]
    assert report.suppressed == ()
    assert report.verdict is VerdictKind.NO_GO
    assert [note.kind for note in report.coverage.suppression_notes] == ["mandatory"]


def test_files_that_the_configuration_excludes() -> None:
    report = waived(file_ignores=(FileIgnores("*.py", ("TST001",)), FileIgnores("run.sh", ("TST",))))
    assert [finding.suppressed_by for finding in report.suppressed] == ["per-file-ignores"]
    assert "run.sh" in report.suppressed[0].suppression


def test_findings_about_nodes_are_not_in_a_baseline() -> None:
    check = make_check(lambda job, fleet, facts: [failed("a", "no GPU", at=seen("a"), nodes=["a"], remedy="-")])
    bare = make_recording(job(), verb="check", nodes=reached("a"), stages=("node",))
    (finding,) = judged(bare, [], [check]).findings
    accepted = (Accepted(finding.fingerprint, finding.id),)
    report = judged(replace(bare, configuration=Configuration(baseline=accepted)), [], [check])
    assert report.verdict is VerdictKind.NO_GO


# The cost that a no-go avoided: only for faults that make all ranks wait, and only with documented numbers.


def waits(
    at: str,
    id: str = "RDV001",
    *,
    severity: Severity = Severity.ERROR,
    subject: str = "run.sh:3",
    path: str = "run.sh",
) -> Finding:
    """A fault that makes all ranks wait there."""
    place = Location.at(span(path))
    return Finding(id, "name", severity, Confidence.HIGH, "-", subject, locations=(place,), waits_at=at)


def launched(*claims: Claim, launcher: str = "torchrun") -> Job:
    """A job with one launch."""
    launch = Launch("run.sh:3", launcher, span())
    return job(*claims, launches=(launch,))


def of_launch(quantity: str, value: object, **more: object) -> Claim:
    """A claim about that launch."""
    return claim(quantity, value, scope=Scope(launch="run.sh:3"), **more)  # type: ignore[arg-type]


NODES, GPUS = of_launch("nodes", 4), of_launch("gpus_per_node", 8)


def test_the_cost_is_nodes_times_gpus_times_the_timeout() -> None:
    found = avoided_cost([waits("rendezvous")], [launched(NODES, GPUS)])
    assert found == AvoidedCost(
        job="run.sh",
        findings=("RDV001",),
        nodes=4,
        nodes_from="`--nodes=4` (run.sh:3)",
        timeout_s=900,
        timeout_from="torchrun's default for a static rendezvous",
        node_hours=1.0,
        gpus_per_node=8,
        gpus_from="`--gpus_per_node=8` (run.sh:3)",
        gpu_hours=8.0,
    )


@pytest.mark.parametrize(
    ("claims", "launcher", "at", "timeout_s"),
    [
        ([], "torchrun", "rendezvous", 900),
        ([of_launch("rendezvous_backend", "c10d")], "torchrun", "rendezvous", 600),
        ([of_launch("rendezvous_conf", "timeout=120")], "torchrun", "rendezvous", 120),
        ([of_launch("standalone", True)], "torchrun", "rendezvous", 600),
        (
            [
                of_launch("rendezvous_backend", "c10d"),
                of_launch("rendezvous_conf", "last_call_timeout=5,join_timeout=77"),
            ],
            "torchrun",
            "rendezvous",
            77,
        ),
        ([of_launch("backend", "nccl")], "torchrun", "collective", 600),
        ([of_launch("backend", "gloo")], "torchrun", "collective", 1800),
        ([of_launch("backend", "gloo"), of_launch("process_group_timeout_s", 60)], "torchrun", "collective", 60),
        ([of_launch("backend", "nccl")], "srun", "rendezvous", 600),
        ([], "deepspeed", "rendezvous", 600),
    ],
)
def test_how_long_ranks_wait(claims: list[Claim], launcher: str, at: str, timeout_s: int) -> None:
    found = avoided_cost([waits(at)], [launched(NODES, *claims, launcher=launcher)])
    assert found is not None
    assert found.timeout_s == timeout_s


@pytest.mark.parametrize(
    ("claims", "launcher", "at"),
    [
        ([], "torchrun", "collective"),
        ([of_launch("backend", "mpi")], "srun", "collective"),
        ([of_launch("rendezvous_backend", Unresolved("set by the caller"))], "torchrun", "rendezvous"),
        ([of_launch("process_group_timeout_s", Unresolved("set by the caller"))], "torchrun", "collective"),
        ([], "paddle", "rendezvous"),
    ],
)
def test_an_unknown_timeout_gives_no_cost(claims: list[Claim], launcher: str, at: str) -> None:
    assert avoided_cost([waits(at)], [launched(NODES, *claims, launcher=launcher)]) is None


def test_an_unknown_number_of_nodes_gives_no_cost() -> None:
    assert avoided_cost([waits("rendezvous")], [launched()]) is None
    assert avoided_cost([waits("rendezvous")], [launched(of_launch("nodes", Unresolved("$NNODES")))]) is None
    assert avoided_cost([waits("rendezvous")], [launched(of_launch("nodes", 1))]) is None


def test_observed_nodes_count_before_the_files() -> None:
    found = avoided_cost([waits("rendezvous")], [launched(NODES)], nodes=("a", "b", "c"))
    assert found is not None
    assert (found.nodes, found.nodes_from) == (3, "nodes of this run")


def test_without_gpus_there_are_hours_of_nodes_and_no_price() -> None:
    found = avoided_cost([waits("rendezvous")], [launched(NODES)])
    assert found is not None
    assert (found.node_hours, found.gpu_hours) == (1.0, None)
    assert with_price(found, 2.5) == found


def test_each_nccl_rank_counts_one_gpu() -> None:
    ranks = of_launch("processes_per_node", 2)
    with_nccl = avoided_cost([waits("rendezvous")], [launched(NODES, ranks, of_launch("backend", "nccl"))])
    with_gloo = avoided_cost([waits("rendezvous")], [launched(NODES, ranks, of_launch("backend", "gloo"))])
    assert with_nccl is not None and with_gloo is not None
    assert (with_nccl.gpu_hours, with_gloo.gpu_hours) == (2.0, None)


def test_many_faults_are_one_wait_and_the_first_counts() -> None:
    found = avoided_cost(
        [waits("collective", "LNK001"), waits("rendezvous"), waits("rendezvous", "WLD001")],
        [launched(NODES, of_launch("backend", "gloo"))],
    )
    assert found is not None
    assert (found.findings, found.timeout_s) == (("RDV001", "WLD001"), 900)


@pytest.mark.parametrize("findings", [[], [waits("")], [waits("rendezvous", severity=Severity.WARNING)]])
def test_a_fault_without_waiting_avoids_no_cost(findings: list[Finding]) -> None:
    assert avoided_cost(findings, [launched(NODES, GPUS)]) is None


def test_a_price_gives_a_cost() -> None:
    found = with_price(avoided_cost([waits("rendezvous")], [launched(NODES, GPUS)]), 2.5)
    assert found is not None
    assert (found.cost, found.price_per_gpu_hour) == (20.0, 2.5)


def test_only_the_job_of_the_finding_counts() -> None:
    other = Job("other.sh", launches=(Launch("other.sh:1", "torchrun", span("other.sh", 1)),))
    found = avoided_cost([waits("rendezvous")], [other, launched(NODES)])
    assert found is not None
    assert found.job == "run.sh"
    assert avoided_cost([waits("rendezvous", subject="elsewhere", path="elsewhere")], [other, other]) is None


def test_the_job_with_the_highest_cost_counts() -> None:
    launch = Launch("big.sh:1", "torchrun", span("big.sh", 1))
    nodes = claim("nodes", 64, scope=Scope(launch="big.sh:1"))
    big = job(nodes, name="big.sh", launches=(launch,))
    both = [waits("rendezvous"), waits("rendezvous", "WLD001", subject="big.sh:1", path="big.sh")]
    found = avoided_cost(both, [launched(NODES), big])
    assert found is not None
    assert (found.job, found.findings, found.node_hours) == ("big.sh", ("WLD001",), 16.0)


def test_every_default_has_a_source() -> None:
    assert all(row.seconds > 0 and row.words and row.source[-10:-6] == "2026" for row in DEFAULTS.values())


def test_a_default_claim_is_not_the_jobs_own_setting() -> None:
    table = of_launch("process_group_timeout_s", 1800, strength=Strength.DEFAULT)
    found = avoided_cost([waits("collective")], [launched(NODES, table, of_launch("backend", "nccl"))])
    assert found is not None
    assert found.timeout_s == 600


@pytest.mark.parametrize(
    ("nodes", "gpus", "words"),
    [
        (4, None, "1 node-hour of waiting (4 nodes x 15 min, RDV001)"),
        (4, 8, "8 GPU-hours of waiting (4 nodes x 8 GPUs x 15 min, RDV001)"),
        (2048, 8, "4,096 GPU-hours of waiting (2048 nodes x 8 GPUs x 15 min, RDV001)"),
    ],
)
def test_the_cost_is_described(nodes: int, gpus: int | None, words: str) -> None:
    claims = [of_launch("nodes", nodes), *([of_launch("gpus_per_node", gpus)] if gpus else [])]
    found = avoided_cost([waits("rendezvous")], [launched(*claims)])
    assert found is not None
    assert groups.avoided_cost(found) == words
    assert groups.avoided_cost_sources(found)[0] == f"nodes: `--nodes={nodes}` (run.sh:3)"


def test_the_cost_is_shown_with_its_price() -> None:
    found = with_price(avoided_cost([waits("rendezvous")], [launched(NODES, GPUS)]), 2.5)
    assert found is not None
    expected = "8 GPU-hours of waiting worth 20.00 at 2.5 each (4 nodes x 8 GPUs x 15 min, RDV001)"
    assert groups.avoided_cost(found) == expected


# Charts of packs: they reach the report and its JSON, and a broken one does not affect the others.


TABLE = Table(
    "site.racks",
    "Racks",
    "Which rack each of 2 nodes is in.",
    (Column("rack"), Column("power", "W")),
    (Row("a", (Cell("r1"), Cell(350))), Row("b", (Cell("r2", odd=True), Cell(None, why="no meter")))),
)
ALL: tuple[Chart, ...] = (
    TABLE,
    Matrix("site.m", "m", "-", "ms", ("a", "b"), ("a", "b"), (Mark(0, 1, 0.25, "ok"), Mark(1, 0, None, "bad", "-"))),
    Timeline("site.t", "t", "-", (Lane("rank 0", "a", (Span(0.0, 1.5, "join"),)),)),
    Bars("site.b", "b", "-", "ms", (Bar("rank 0", "a", 1.0), Bar("rank 1", "b", None, why="-"))),
    Layout("site.l", "l", "-", "bytes", (Place("a", (Piece("server 0", "server", 12.0),)),)),
)


def chart_maker(make: MakeCharts, where: str = "site:racks") -> PackFunction:
    """`make` as a plugin's pack names it."""
    return PackFunction("site 1.0", where, make)


def always(*made: Any) -> PackFunction:
    """A function that makes the same chart for every job."""
    return chart_maker(lambda job, fleet, facts: made)


def looked_at(*jobs: str) -> Recording:
    """The recording of a check of two nodes without requests."""
    named = [job(name=name) for name in jobs or ("run.sh",)]
    return make_recording(*named, verb="check", nodes=reached("a", "b"), stages=("node",))


def build_charts(*chart_makers: PackFunction, recording: Recording | None = None) -> Report:
    """The report with these charts, validated against the schema."""
    report = report_on(recording or looked_at(), (), (), chart_makers=chart_makers)
    assert_follows_schema(to_json(report))
    return report


def test_every_kind_of_chart_is_in_the_report_and_follows_the_schema() -> None:
    report = build_charts(always(*ALL))
    assert report.charts == ALL
    written = json.loads(to_json(report))
    assert written == json.loads(adapter().dump_json(report))
    assert [one["kind"] for one in written["charts"]] == ["table", "matrix", "timeline", "bars", "layout"]
    assert adapter().validate_json(to_json(report)).charts == ALL


def crashes(job: object, fleet: object, facts: object) -> Iterable[Chart]:
    yield TABLE
    raise RuntimeError("no rack database")


def leaves(job: object, fleet: object, facts: object) -> Iterable[Chart]:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (chart_maker(crashes), "RuntimeError: no rack database"),
        (chart_maker(leaves), "SystemExit: 3"),
        (always("a picture"), "str is not a chart; expected one of Table"),
        (always(replace(TABLE, rows=("a",))), "the chart 'site.racks' is invalid"),
        (always(Bars("x", "x", "-", "ms", (Bar("r", "a", math.nan),))), "the chart 'x' is invalid"),
        (always(ALL[1]), "the id 'site.m' is already used"),
    ],
    ids=["raises", "exits", "text", "shape", "nan", "taken"],
)
def test_a_broken_chart_is_named_and_others_are_kept(bad: PackFunction, why: str) -> None:
    fine = build_charts(always(*ALL[1:]))
    report = build_charts(always(*ALL[1:]), bad)
    (broken,) = report.coverage.broken
    assert (broken.plugin, broken.where) == ("site 1.0", "site:racks")
    assert why in broken.why
    assert report.charts == ALL[1:]
    assert (report.verdict, report.exit_code) == (fine.verdict, fine.exit_code), "a chart is no part of the verdict"


def test_shared_charts_appear_once_and_different_ones_are_numbered() -> None:
    def sized(job: object, fleet: object, facts: object) -> Iterable[Chart]:
        yield TABLE
        yield Bars("site.b", "Names", "-", "letters", (Bar("job", "", float(len(job.name))),))  # type: ignore[attr-defined]

    report = build_charts(chart_maker(sized), recording=looked_at("b.sh", "a.sh", "long.sh"))
    assert [(one.id, one.title) for one in report.charts] == [
        ("site.racks", "Racks"),
        ("site.b", "Names (a.sh)"),
        ("site.b.2", "Names (long.sh)"),
    ]


def test_a_list_is_accepted_as_a_tuple() -> None:
    assert build_charts(always(replace(TABLE, rows=list(TABLE.rows)))).charts == (TABLE,)


def test_a_pack_names_them_beside_its_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    import preflight_checks

    names = (
        "tests.engine.test_report:racks",
        "tests.engine.test_report:missing",
        "tests.engine.test_report:TABLE",
        "nowhere.at_all:x",
    )
    monkeypatch.setattr(preflight_checks, "PACK", replace(preflight_checks.PACK, charts=names))
    found, broken = registry.chart_makers()
    assert [one.where for one in found] == ["tests.engine.test_report:racks"]
    assert [(one.where, one.why.partition(":")[0]) for one in broken] == [
        ("tests.engine.test_report:missing", "AttributeError"),
        ("tests.engine.test_report:TABLE", "TypeError"),
        ("nowhere.at_all:x", "ModuleNotFoundError"),
    ]
    report = api.judge(load(save(looked_at()), to_judge=True))
    assert [one.id for one in report.charts] == ["site.racks"]
    assert {one.where for one in report.coverage.broken} == set(names[1:])
    assert report.verdict is not VerdictKind.NO_GO
    assert api.judge(make_recording(job())).charts == (), "lint has none"


def racks(job: object, fleet: object, facts: object) -> Iterable[Chart]:
    yield TABLE


def test_a_pack_accepts_only_a_tuple_of_names() -> None:
    with pytest.raises(TypeError, match="`charts` of a pack is a str; expected a tuple"):
        Pack(charts="preflight_checks:x")  # type: ignore[arg-type]
