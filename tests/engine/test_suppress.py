"""Suppression comments exclude the finding of their line from the verdict, and idle ones are reported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from preflight.engine.report import Report
from preflight.model.configuration import Accepted, Configuration, FileIgnores, Waiver
from preflight.model.findings import VerdictKind
from preflight.model.job import Suppression
from preflight.plugins.authoring import failed, passed
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span


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
