"""`preflight diff` as a command: reports and recordings, with faults inserted into a real recording."""

from __future__ import annotations

import itertools
import json
import os
import platform
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from preflight._util.json_output import to_bytes
from preflight.cli import main
from preflight.commands.diff import difference
from preflight.commands.diff.compare import (
    Limits,
    compare,
    compare_measurements,
    compare_tables,
    match_findings,
    noise_of,
)
from preflight.commands.diff.difference import Answer, Difference, Measured
from preflight.commands.diff.difference_text import page
from preflight.engine.report import Report, to_json
from preflight.model.charts import Bar, Bars, Cell, Column, Lane, Mark, Matrix, Row, Span, Table, Timeline
from preflight.model.configuration import RunOptions
from preflight.model.findings import Confidence, Evidence, Finding, Location, Severity
from preflight.model.recording import Configuration, Recording, Unavailable
from preflight.model.recording_io import load, save
from preflight.plugins.authoring import Check, Rule, Verdict, failed, passed, unknown
from preflight.reporters.base import Style
from tests.builders import (
    DOCS,
    assert_follows_schema,
    judged,
    make_check,
    make_recording,
    make_rule,
    reached,
    seen,
    span,
)
from tests.builders import job as findings_job
from tests.checks.check_builders import fleet, job
from tests.checks.links.test_slow_links import GOOD, measured

JOB = """\
#!/usr/bin/env bash
torchrun --nnodes=2 --nproc_per_node=1 --node_rank="$NODE_RANK" --master_addr=node1 --master_port=29500 train.py
"""
SCRIPT = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real check of two processes of this machine."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "run.sh").write_text(JOB)
    (folder / "train.py").write_text(SCRIPT)
    options = RunOptions(executor="local", hosts="node1,node2", until="node", open_deadline=30)
    made, _ = api.check([folder / "run.sh"], options, root=folder)
    (folder / "old.json").write_bytes(save(made))
    return folder / "old.json"


def changed(recording: Path, target: Path, change: Callable[[Recording], Recording]) -> Path:
    """The same recording with a change."""
    target.write_bytes(save(change(load(recording.read_bytes())), compressed=target.suffix == ".gz"))
    return target


def wrong_clock(recording: Recording) -> Recording:
    """The second node's clock is a minute off."""
    first, second = recording.nodes
    return replace(recording, nodes=(first, replace(second, clock_offset_s=60.0)))


def silent(recording: Recording) -> Recording:
    """The second node did not answer."""
    first, second = recording.nodes
    facts = tuple(fact for fact in recording.facts if fact.request.node == "node1")
    return replace(recording, nodes=(first, replace(second, problem="no answer within 8 s")), facts=facts)


def slow_to_answer(recording: Recording) -> Recording:
    """The second node was too slow for its requests."""
    late = Unavailable("timeout", "no answer within 10 s")
    facts = [
        replace(fact, value=None, unavailable=late) if fact.request.node == "node2" else fact
        for fact in recording.facts
    ]
    return replace(recording, facts=tuple(facts))


def another_kernel(recording: Recording) -> Recording:
    """The second node runs another kernel."""
    facts = []
    for fact in recording.facts:
        if fact.request.node == "node2" and fact.value is not None:
            said = json.dumps(fact.value).replace(platform.release(), "5.15.0-old")
            fact = replace(fact, value=json.loads(said))
        facts.append(fact)
    return replace(recording, facts=tuple(facts))


def measured_links(several_mbps: float) -> Recording:
    """A check of eight nodes, in which node3 sends at this rate over several streams."""
    slow = replace(GOOD, single_mbps=min(several_mbps, GOOD.single_mbps or 0), several_mbps=several_mbps)
    seen = measured(lambda source, peer, look: slow if source == "node3" else GOOD, 8, looks=1)
    told = job(backend="gloo", master_addr="node0", master_port=29500)
    stages = ("node", "link")
    return make_recording(told, verb="check", nodes=fleet(8).records, stages=stages, facts=tuple(seen.records))


def run_command(*arguments: str | Path) -> int:
    return main.run(["diff", *map(str, arguments)])


def test_a_fault_added_to_a_recording_is_new(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new = changed(recording, tmp_path / "new.json.gz", wrong_clock)
    assert run_command(recording, new, "-o", "text", "-o", f"json:{tmp_path / 'diff.json'}") == 1
    said = capfd.readouterr().out
    assert "new     error CLK001" in said and "node2" in said
    assert said.splitlines()[-1].startswith("WORSE  1 new, 0 fixed")
    document = assert_follows_schema((tmp_path / "diff.json").read_bytes(), "difference")
    assert [item["finding"]["id"] for item in document["appeared"]] == ["CLK001"]
    assert run_command(new, recording) == 0
    said = capfd.readouterr().out
    assert "fixed   error CLK001" in said and said.splitlines()[-1].startswith("BETTER")


def test_a_different_kernel_on_one_node_is_only_drift(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new = changed(recording, tmp_path / "new.json", another_kernel)
    run_command(recording, new)
    assert f"drift: nodes, kernel: {platform.release()} -> 5.15.0-old on node2" in capfd.readouterr().out


def test_a_slower_link_is_reported_before_a_check_fails() -> None:
    good, slower = measured_links(9400.0), measured_links(4000.0)
    found = api.diff(good, slower)
    bandwidth = next(item for item in found.measured if item.id == "links.bandwidth")
    (worse,) = bandwidth.worse
    assert (worse.where, worse.nodes) == ("from node3", ("node3",)) and worse.factor > 2
    assert bandwidth.noise.allowed == 1.25 and not found.appeared
    assert (found.answer, found.exit_code) == (Answer.SAME, 0), "a warning, and only errors count"
    assert api.diff(good, slower, fail_on="warning").exit_code == 1
    said = page(found, Style())
    assert "slower  Bandwidth  from node3" in said
    assert said.splitlines()[-1].startswith("NOTHING WORSE THAT COUNTS  0 new")
    assert not any(item.worse for item in api.diff(slower, good).measured)


def test_a_silent_node_is_worse_and_its_faults_are_not_fixed(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_command(recording, changed(recording, tmp_path / "new.json", silent)) == 1
    said = capfd.readouterr().out
    assert "new     error NOD001" in said
    assert "node node2: could be checked before, but not now: no answer within 8 s" in said
    assert "not checked now: node2" in said and "fixed" not in said.replace(" 0 fixed", "")


def test_a_missing_fact_is_not_a_pass(recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    new = changed(recording, tmp_path / "new.json", slow_to_answer)
    assert run_command(recording, new) == 3
    said = capfd.readouterr().out
    assert "became unknown:" in said and "(required)" in said
    assert said.splitlines()[-1].startswith("INCOMPLETE")
    assert "not checked now: node2" in said and "no longer on" not in said
    assert run_command(recording, new, "--allow-incomplete", "-q") == 0


def test_a_report_and_the_recording_it_was_made_from_are_the_same(recording: Path, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_bytes(to_json(api.judge(recording)))
    compact = json.dumps(json.loads((tmp_path / "report.json").read_bytes()))
    (tmp_path / "compact.json").write_text(compact)
    for one, other in ((recording, "report.json"), ("report.json", recording), ("compact.json", "report.json")):
        found = api.diff(tmp_path / one, tmp_path / other)
        assert found.answer is Answer.SAME and not found.changed
        assert not found.became_unknown and not found.became_known and not found.nodes
    assert api.diff(api.judge(recording), load(recording.read_bytes())).old.name == "old"


def test_the_same_pair_gives_the_same_bytes(recording: Path, tmp_path: Path) -> None:
    new = changed(recording, tmp_path / "new.json", wrong_clock)
    first, second = (to_bytes(api.diff(recording, new), indent=2) for _ in range(2))
    assert first == second


def test_the_committed_schema_is_the_generated_one() -> None:
    committed = (DOCS / "difference.schema.json").read_text()
    assert committed == json.dumps(difference.schema(), indent=2, sort_keys=True) + "\n", "run `make schema`"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "cannot be read"),
        ("", "is neither a report"),
        ("[1]", "is neither a report"),
        ('{"coverage": 1', "is neither a report"),
        ('{"$schema": "x", "runs": []}', "is a SARIF log"),
        ('{"schema_version": 1, "findings": []}', "is a baseline"),
        ('{"answer": "cause", "logs": []}', "is a diagnosis"),
        ('{"coverage": {}, "outcomes": [], "schema_version": 9}', "schema version 9; this preflight reads version 2"),
        (
            '{"coverage": {}, "outcomes": [], "schema_version": 2}',
            "is not a report that this version of preflight can read",
        ),
    ],
    ids=["absent", "empty", "list", "torn", "sarif", "baseline", "diagnosis", "later", "hollow"],
)
def test_a_file_that_is_neither_is_named(
    content: str | None, expected: str, recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "other.json").write_text(content)
    assert run_command(recording, tmp_path / "other.json") == 2
    said = capfd.readouterr().err
    assert expected in said and "Traceback" not in said


def test_mistakes_get_a_suggestion(recording: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in (
        ([str(recording), str(recording), "--fail-no", "error"], "--fail-on"),
        ([str(recording), str(recording), "-o", "jsn"], "did you mean 'json'? choose from text, json"),
        ([str(recording)], "Missing argument 'NEW'"),
    ):
        assert run_command(*arguments) == 2
        assert expected in capfd.readouterr().err
    assert main.run(["dif"]) == 2
    assert "Did you mean 'diff'?" in capfd.readouterr().err


def test_control_characters_of_a_report_never_reach_the_terminal(
    recording: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    new = changed(recording, tmp_path / "new.json", wrong_clock)
    document = to_json(api.judge(new)).decode().replace("node2", "node2\\u001b]0;x\\u0007\\u202e")
    (tmp_path / "hostile.json").write_text(document)
    assert run_command(recording, tmp_path / "hostile.json", "-v", "--color") in (1, 3)
    said = capfd.readouterr().out
    assert "\x1b]" not in said and not set("\x07\x9b\u202e") & set(said)


def test_an_unwritable_folder_is_reported_first(recording: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(recording, recording, "-o", f"json:no{os.sep}such.json") == 2
    assert "the folder no does not exist" in capfd.readouterr().err


# Findings of two reports: matched by fingerprint, and never called fixed if they were not checked.


NAMES = ("old.json", "new.json")


def rule_returning(*verdicts: Verdict, id: str = "TST001", **more: Any) -> Rule:
    """A rule with these verdicts."""
    return make_rule(lambda job: iter(verdicts), id, **more)


def at(line: int = 3, snippet: str = "srun --nodes=2", **more: Any) -> Verdict:
    """A fault at a line."""
    return failed("run.sh", more.pop("message", "two nodes"), at=span(line=line, snippet=snippet), remedy="", **more)


def lint_report(*rules: Rule, **configured: Any) -> Report:
    return judged(make_recording(findings_job(), configuration=Configuration(**configured)), rules)


def on(*nodes: str, severity: Severity | None = None) -> Verdict:
    """A fault of nodes."""
    return failed("the port", "refused", at=seen(nodes[0]), nodes=nodes, remedy="", severity=severity)


def checked(*checks: Check, silent: tuple[str, ...] = (), nodes: tuple[str, ...] = ("a", "b", "c")) -> Report:
    answering = [name for name in nodes if name not in silent]
    return judged(
        make_recording(findings_job(), verb="check", nodes=reached(*answering, silent=silent), stages=("node",)),
        (),
        checks,
    )


def rule_with(*verdicts: Verdict, id: str = "TST501") -> Check:
    return make_check(lambda job, fleet, facts: iter(verdicts), id)


def diff(old: Report, new: Report, **more: Any) -> Difference:
    return compare(old, new, names=NAMES, **more)


def test_the_same_report_is_not_worse() -> None:
    report = lint_report(rule_returning(at()))
    found = diff(report, report)
    assert (found.answer, found.exit_code, found.unchanged) == (Answer.SAME, 0, 1)
    assert not found.appeared and not found.gone and not found.changed and not found.drift


def test_a_new_error_is_worse_and_a_fixed_one_better() -> None:
    good, bad = lint_report(rule_returning(passed("run.sh"))), lint_report(rule_returning(at()))
    found = diff(good, bad)
    assert (found.answer, found.exit_code, [item.finding.id for item in found.appeared]) == (
        Answer.WORSE,
        1,
        ["TST001"],
    )
    assert found.appeared[0].counts and not found.appeared[0].unseen_before
    back = diff(bad, good)
    assert (back.answer, back.exit_code, [item.id for item in back.fixed]) == (Answer.BETTER, 0, ["TST001"])


@pytest.mark.parametrize(("fail_on", "code"), [("", 0), ("error", 0), ("warning", 1), ("info", 1)])
def test_fail_on_decides_which_findings_count(fail_on: str, code: int) -> None:
    good = lint_report(rule_returning(passed("run.sh")))
    warned = lint_report(rule_returning(at(), severity=Severity.WARNING))
    assert diff(good, warned, fail_on=fail_on).exit_code == code


def test_the_newer_report_gives_the_default_of_fail_on() -> None:
    good = lint_report(rule_returning(passed("run.sh")))
    warned = lint_report(rule_returning(at(), severity=Severity.WARNING), fail_on="warning")
    assert (diff(good, warned).exit_code, diff(good, warned).fail_on) == (1, "warning")


def test_a_moved_line_is_the_same_finding_at_a_new_location() -> None:
    found = diff(lint_report(rule_returning(at(3))), lint_report(rule_returning(at(9))))
    (change,) = found.changed
    assert (change.what, change.worse, found.exit_code) == (("place",), False, 0)


def test_severity_and_message_changes_are_reported_and_only_severity_is_worse() -> None:
    warned = lint_report(rule_returning(at(), severity=Severity.WARNING))
    failing = lint_report(rule_returning(at(message="three nodes")))
    (change,) = diff(warned, failing).changed
    assert (change.what, change.worse, change.counts) == (("severity", "message"), True, True)
    (back,) = diff(failing, warned).changed
    assert not back.worse and diff(failing, warned).answer is Answer.BETTER


def test_equal_lines_are_paired_at_the_same_position_first() -> None:
    found = diff(lint_report(rule_returning(at(3), at(9))), lint_report(rule_returning(at(9))))
    assert [item.locations[0].line for item in found.fixed] == [3]
    assert not found.changed and found.unchanged == 1


def test_a_fault_that_spreads_is_one_finding_that_got_worse() -> None:
    found = diff(checked(rule_with(on("a"))), checked(rule_with(on("a", "b"))))
    (change,) = found.changed
    assert (change.what, change.worse, found.exit_code) == (("nodes",), True, 1)
    back = diff(checked(rule_with(on("a", "b"))), checked(rule_with(on("a"))))
    assert [(change.worse, change.unseen) for change in back.changed] == [(False, ())] and back.exit_code == 0
    (lost,) = diff(checked(rule_with(on("a", "b"))), checked(rule_with(on("a")), silent=("b",))).changed
    assert lost.unseen == ("b",)


def test_the_same_fault_on_another_node_is_new_and_the_old_one_fixed() -> None:
    found = diff(checked(rule_with(on("a"))), checked(rule_with(on("b"))))
    assert [item.finding.nodes for item in found.appeared] == [("b",)]
    assert [item.nodes for item in found.fixed] == [("a",)]


def test_a_finding_that_is_no_longer_suppressed_is_worse() -> None:
    report = lint_report(rule_returning(at()))
    (finding,) = report.findings
    quiet = replace(report, findings=(), suppressed=(replace(finding, suppression="known", suppressed_by="waiver"),))
    (change,) = diff(quiet, report).changed
    assert (change.what, change.worse, change.counts) == (("suppression",), True, True)
    (back,) = diff(report, quiet).changed
    assert not back.worse and not diff(report, quiet).gone
    assert not diff(quiet, quiet).changed


# --- absent is not fixed ---


def test_a_rule_that_did_not_run_fixed_nothing() -> None:
    bad = lint_report(rule_returning(at()))
    for other, words in (
        (lint_report(rule_returning(at()), ignore=("TST",)), "did not check this"),
        (lint_report(rule_returning(passed("x"), id="TST002"), select=("TST002",)), "did not check this"),
        (lint_report(rule_returning(unknown("run.sh", "$N is open"))), "could not decide this: $N is open"),
        (replace(lint_report(rule_returning(passed("run.sh"))), inputs=()), "did not read run.sh"),
    ):
        (gone,) = diff(bad, other).gone
        assert words in gone.unknown_because
        assert diff(bad, other).fixed == ()
        (new,) = diff(other, bad).appeared
        assert words in new.unseen_before and new.counts


def test_a_rule_that_ran_without_findings_fixed_them() -> None:
    assert [item.id for item in diff(lint_report(rule_returning(at())), lint_report(rule_returning())).fixed] == [
        "TST001"
    ]


def test_a_removed_or_silent_node_is_not_fixed() -> None:
    bad = checked(rule_with(on("a")))
    for other, words in (
        (checked(rule_with(passed("x")), silent=("a",)), "could not check a: it did not answer"),
        (checked(rule_with(passed("x")), nodes=("b", "c")), "does not have node a"),
        (checked(rule_with(unknown("GPUs of a", "timeout"), passed("b"))), "could not decide this: timeout"),
        (
            judged(make_recording(findings_job(), verb="check", nodes=reached("a"), skipped=[("node", "no")]), (), []),
            "did not check",
        ),
        (judged(make_recording(findings_job())), "did not check this"),
    ):
        (gone,) = diff(bad, other).gone
        assert words in gone.unknown_because


def test_pairs_do_not_depend_on_the_order() -> None:
    def finding(line: int, snippet: str) -> Finding:
        place = Location("run.sh", line, 1, line, 9, snippet)
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", "s", (place,))

    old = [finding(line, "same") for line in (1, 5, 9)]
    new = [finding(line, "same") for line in (9, 7)]
    pairs, left, right = match_findings(old, new)
    assert [(a.locations[0].line, b.locations[0].line) for a, b in pairs] == [(9, 9), (1, 7)]
    assert [item.locations[0].line for item in left] == [5] and right == []


def test_faults_without_nodes_are_not_confused() -> None:
    def finding(subject: str) -> Finding:
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", subject, evidence=(Evidence("f", "o"),))

    pairs, left, right = match_findings([finding("a")], [finding("b")])
    assert not pairs and len(left) == len(right) == 1


@pytest.mark.timeout(60)
def test_thousands_of_unmatched_findings_are_compared_quickly() -> None:
    def finding(path: str, number: int) -> Finding:
        place = Location(path, number, 1, number, 9, f"line {number}")
        return Finding("TST001", "x", Severity.ERROR, Confidence.HIGH, "m", "s", (place,))

    pairs, left, right = match_findings([finding("a", n) for n in range(4000)], [finding("b", n) for n in range(4000)])
    assert (len(pairs), len(left), len(right)) == (0, 4000, 4000)


# --- outcomes and nodes ---


def test_a_newly_undecided_check_is_neither_worse_nor_better() -> None:
    told = checked(rule_with(passed("a"), passed("b")))
    required = checked(rule_with(passed("a"), unknown("b", "no answer", required=True)))
    found = diff(told, required)
    (change,) = found.became_unknown
    assert (change.id, change.subjects, change.reason, change.required) == ("TST501", ("b",), "no answer", True)
    assert (found.answer, found.exit_code) == (Answer.UNKNOWN, 3)
    assert diff(told, required, allow_incomplete=True).exit_code == 0
    assert [change.subjects for change in diff(required, told).became_known] == [("b",)]
    optional = checked(rule_with(passed("a"), unknown("b", "no answer")))
    assert diff(told, optional).exit_code == 0 and diff(told, optional).became_unknown


def test_a_moved_launch_stays_undecided() -> None:
    old, new = (lint_report(rule_returning(passed("x"), unknown(f"run.sh:{line}", "open"))) for line in (3, 5))
    assert not diff(old, new).became_unknown and not diff(old, new).became_known


def test_nodes_that_came_went_fell_silent_and_answer_again() -> None:
    old = checked(rule_with(), nodes=("a", "b", "c"), silent=("c",))
    new = checked(rule_with(), nodes=("b", "c", "d"), silent=("b",))
    found = diff(old, new)
    assert [(change.node, change.move.value) for change in found.nodes] == [
        ("a", "went"),
        ("b", "silent"),
        ("c", "answers"),
        ("d", "came"),
    ]
    assert found.answer is Answer.UNKNOWN
    # A lint has no nodes, so none were removed.
    assert not diff(old, lint_report(rule_returning())).nodes


def test_reasons_for_limited_comparability_are_reported() -> None:
    notes = diff(lint_report(rule_returning()), checked(rule_with())).notes
    assert any("`lint`" in note and "`check`" in note for note in notes)
    (note,) = diff(lint_report(rule_returning()), lint_report(rule_returning(), profile="pedantic")).notes
    assert note == "the profile differs: default before, pedantic now"


def test_a_different_version_of_preflight_or_a_pack_is_drift() -> None:
    report = lint_report(rule_returning())
    newer = replace(report, tool=replace(report.tool, version="0.2.0", plugins=("site-pack 1.1",)))
    older = replace(report, tool=replace(report.tool, plugins=("site-pack 1.0",)))
    assert [(d.what, d.before, d.after) for d in diff(older, newer).drift] == [
        ("preflight", "0.1.0", "0.2.0"),
        ("site-pack", "1.0", "1.1"),
    ]


# Links and steps that got worse: beyond the noise of the fleet's own ratios, and grouped by their explanation.


LIMITS = Limits(1.25, 2.0)


def matrix(
    value: Callable[[str, str], float | None], count: int = 8, *, id: str = "links.bandwidth", unit: str = "Mbit/s"
) -> Matrix:
    """The measurements of every node to every other one."""
    names = tuple(f"node{number}" for number in range(count))
    marks = [
        Mark(row, column, value(names[row], names[column]), "ok")
        for row, column in itertools.permutations(range(count), 2)
    ]
    return Matrix(id, "bandwidth", "", unit, names, names, tuple(marks))


def noisy(spread: float, seed: int, base: float = 9400.0) -> Callable[[str, str], float]:
    """About the same value everywhere, with noise."""
    chance = random.Random(seed)
    return lambda source, peer: base * (1 + chance.uniform(-spread, spread))


def only_series(old: Matrix | Bars, new: Matrix | Bars) -> Measured:
    (found,) = compare_measurements([old], [new])
    return found


def test_two_measurements_of_a_quiet_network_are_the_same() -> None:
    for seed in range(20):
        found = only_series(matrix(noisy(0.05, seed)), matrix(noisy(0.05, seed + 100)))
        assert found.worse == () and found.compared == 56
        assert found.noise.allowed == 1.25 and "is never reported" in found.noise.because


def test_a_noisy_network_widens_the_reported_limit() -> None:
    found = only_series(matrix(noisy(0.2, 1)), matrix(noisy(0.2, 2)))
    assert found.worse == () and 1.25 < found.noise.allowed <= 2
    assert found.noise.spread is not None and "median absolute deviation of 56" in found.noise.because


@pytest.mark.parametrize(
    ("bad", "where", "nodes"),
    [
        (lambda a, b: a == "node3", "from node3", ("node3",)),
        (lambda a, b: b == "node3", "to node3", ("node3",)),
        (lambda a, b: "node3" in (a, b), "from and to node3", ("node3",)),
        (lambda a, b: (a, b) == ("node1", "node2"), "node1 to node2", ("node1", "node2")),
        (lambda a, b: {a, b} == {"node1", "node2"}, "node1 and node2", ("node1", "node2")),
    ],
    ids=["row", "column", "both", "pair", "mutual"],
)
def test_slow_links_are_grouped_by_their_explanation(
    bad: Callable[[str, str], bool], where: str, nodes: tuple[str, ...]
) -> None:
    normal, before = noisy(0.05, 3), matrix(noisy(0.05, 4))
    after = matrix(lambda a, b: normal(a, b) / (4 if bad(a, b) else 1))
    found = only_series(before, after)
    (worse,) = found.worse
    assert (worse.where, worse.nodes) == (where, nodes)
    assert 3 < worse.factor < 5 and worse.before > worse.after
    assert only_series(after, before).worse == () and only_series(after, before).better > 0


def test_a_slower_fleet_and_slower_nodes_are_reported_separately() -> None:
    normal = noisy(0.05, 5)
    after = matrix(lambda a, b: normal(a, b) / (20 if a == "node2" else 2))
    found = only_series(matrix(noisy(0.05, 6)), after)
    assert [item.where for item in found.worse] == ["all 56", "from node2"]
    assert found.change > 1.8


def test_few_links_need_a_factor_of_two() -> None:
    before = matrix(lambda a, b: 9000.0, 2)
    assert only_series(before, matrix(lambda a, b: 5000.0, 2)).worse == ()
    found = only_series(before, matrix(lambda a, b: 4000.0, 2))
    assert [item.where for item in found.worse] == ["node0 and node1"]
    assert found.noise.spread is None and "too few" in found.noise.because


def test_pairs_that_only_one_report_measured_are_counted_and_not_compared() -> None:
    before = matrix(lambda a, b: None if a == "node7" else 9000.0)
    after = matrix(lambda a, b: 100.0 if a == "node7" else None if a == "node6" else 9000.0)
    found = only_series(before, after)
    assert (found.compared, found.missing, found.added, found.worse) == (42, 7, 7, ())
    assert compare_measurements([before], []) == () == compare_measurements([], [before])
    doubtful = replace(before, marks=tuple(replace(mark, state="unknown") for mark in before.marks))
    assert compare_measurements([doubtful], [after]) == (), "what is inconclusive is no measurement"
    other = matrix(lambda a, b: 9.0, unit="Gbit/s")
    assert compare_measurements([before], [other]) == (), "other units are not compared"


def test_latency_is_worse_only_if_it_grows_noticeably() -> None:
    def late(factor: float, base: float) -> Matrix:
        return matrix(lambda a, b: base * (factor if b == "node1" else 1), id="links.latency", unit="us")

    assert [item.where for item in only_series(late(1, 100), late(5, 100)).worse] == ["to node1"]
    assert only_series(late(5, 100), late(1, 100)).worse == ()
    assert only_series(late(1, 5), late(5, 5)).worse == (), "20 us more are nothing"


def bars(times: Mapping[str, float]) -> Bars:
    """Steps of ranks, two on each node."""
    named = [Bar(f"rank {n}", node, value) for n, (node, value) in enumerate(times.items())]
    return Bars("smoke.step_times", "steps", "", "ms", tuple(named))


def test_slow_steps_are_named_by_their_node() -> None:
    normal = {f"node{number}": 100.0 for number in range(10)}
    found = only_series(bars(normal), bars({**normal, "node4": 180.0}))
    (worse,) = found.worse
    assert (worse.where, worse.nodes, worse.factor) == ("rank 4 on node4", ("node4",), 1.8)


def timeline(training_s: Mapping[str, float], importing_s: float = 4.0) -> Timeline:
    """The phases of ranks, one on each node."""
    lanes = tuple(
        Lane(
            f"rank {n}", node, (Span(0.0, importing_s, "importing"), Span(importing_s, importing_s + lasts, "training"))
        )
        for n, (node, lasts) in enumerate(training_s.items())
    )
    return Timeline("smoke.steps", "the run", "", lanes)


def test_every_phase_of_a_run_is_compared_separately() -> None:
    normal = {f"node{number}": 2.0 for number in range(10)}
    importing, training = compare_measurements([timeline(normal)], [timeline({**normal, "node7": 6.0}, 4.1)])
    assert importing.worse == () and importing.title == "the run: importing"
    (worse,) = training.worse
    assert (worse.where, worse.before, worse.after) == ("rank 7 on node7", 2.0, 6.0)
    (slow, _) = compare_measurements([timeline(normal)], [timeline(normal, 40.0)])
    assert [item.where for item in slow.worse] == ["all 10"]
    short = dict.fromkeys(normal, 0.01)
    assert not any(item.worse for item in compare_measurements([timeline(short)], [timeline({**short, "node7": 0.2})]))


def test_noise_is_the_scatter_of_the_ratios_between_floor_and_ceiling() -> None:
    assert noise_of([1.0] * 20, LIMITS).allowed == 1.25
    assert noise_of([1.0, 3.0] * 10, LIMITS).allowed == 2.0
    assert noise_of([1.0] * 7, LIMITS).allowed == 2.0
    # A quarter of faults changes nothing.
    assert noise_of([1.0] * 15 + [50.0] * 5, LIMITS).allowed == 1.25


# --- tables ---


def table(nccl: Mapping[str, str | None], memory: float = 512.0, id: str = "versions") -> Table:
    rows = tuple(Row(node, (Cell(value), Cell(memory))) for node, value in nccl.items())
    return Table(id, "versions", "", (Column("NCCL"), Column("memory", "GiB")), rows)


def test_drift_is_reported_once_for_all_nodes_with_the_same_change() -> None:
    before = table({"a": "2.18", "b": "2.18", "c": "2.18", "d": None, "gone": "1"})
    after = table({"a": "2.20", "b": "2.20", "c": "2.18", "d": "2.20", "came": "3"})
    found = compare_tables([before], [after])
    assert [(item.what, item.before, item.after, item.subjects) for item in found] == [
        ("NCCL", "2.18", "2.20", ("a", "b")),
        ("NCCL", "", "2.20", ("d",)),
    ]


def test_tables_of_several_jobs_are_compared_by_job() -> None:
    def of_job(number: str, nccl: str) -> Table:
        return replace(table({"a": nccl}, id=f"versions{number}"), title=f"versions (job{number})")

    before, after = [of_job("", "1"), of_job(".2", "1")], [of_job("", "1"), of_job(".2", "2")]
    assert [(item.table, item.before, item.after) for item in compare_tables(before, after)] == [("versions", "1", "2")]
    assert compare_tables(before, [replace(one, title="another job") for one in after]) == ()


def test_sizes_that_differ_a_little_have_not_drifted() -> None:
    assert compare_tables([table({"a": "1"}, 503.5)], [table({"a": "1"}, 503.1)]) == ()
    (found,) = compare_tables([table({"a": "1"}, 503.5)], [table({"a": "1"}, 251.0)])
    assert (found.before, found.after) == ("503.5 GiB", "251 GiB")
    assert compare_tables([table({"a": "1"}, id="smoke.other")], [table({"a": "2"}, id="smoke.other")]) == ()
