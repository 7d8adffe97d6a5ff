"""The content of the page: the verdict first, then what to do, both sides of a contradiction, and what was not
checked.
"""

from __future__ import annotations

from dataclasses import replace

from preflight.engine.report import Report, crashed
from preflight.model.charts import Cell, Column, Row, Table
from preflight.model.configuration import InjectedFault
from preflight.model.findings import Edit, Fix, Location, Severity
from preflight.model.recording import SmokeOptions
from preflight.plugins.authoring import Rule, Verdict, failed, passed, unknown
from preflight.plugins.registry import Broken
from preflight.reporters.html.page import page_of
from preflight.reporters.html.view import finding_view, place_of
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span
from tests.reporters.html.stories import SCRIPT, story


def of_nodes(*names: str, silent: tuple[str, ...] = (), bad: tuple[str, ...] = ()) -> Report:
    checks = [
        make_check(
            lambda *_: [failed(name, f"{name} is bad", at=seen(name), nodes=[name], remedy="Mend it.") for name in bad]
        )
    ]
    return judged(
        make_recording(job(), verb="check", nodes=reached(*names, silent=silent), stages=("node",)), checks=checks
    )


# --- the verdict ---


def test_the_verdict_is_one_line_and_the_first_steps_carry_commands() -> None:
    page = page_of(story())
    assert (page.verdict.kind, page.verdict.word, page.verdict.sentence) == (
        "no-go",
        "No-go",
        "Do not submit this job yet.",
    )
    assert page.verdict.counts == "2 errors, 1 warning, 1 info; 3 of 4 nodes fit; smoke did not run"
    assert [[command.line for command in step.commands] for step in page.steps] == [
        ["sudo ufw allow from 10.0.0.0/16 to any port 29500:29600 proto tcp"],
        ["preflight lint --fix train.sbatch"],
        [],
    ]
    assert page.steps[0].commands[0].where == "node3"
    assert [step.where for step in page.steps] == ["", "train.sbatch:5", ""]
    assert page.steps[1].target == page.findings[1].anchor
    assert page.steps[2].title == "Or start without the failing nodes: node3"


def test_the_avoided_cost_has_the_source_of_each_number() -> None:
    verdict = page_of(story()).verdict
    assert verdict.avoided.startswith("8 GPU-hours of waiting (4 nodes x 8 GPUs x 15 min, ")
    assert verdict.avoided_sources[1] == "GPUs: `--nproc_per_node=8` in train.sbatch:5"
    assert page_of(judged(make_recording(job()))).verdict.avoided == ""


def test_a_go_has_no_first_steps() -> None:
    page = page_of(judged(make_recording(job()), [make_rule(lambda _: [passed("run.sh")])]))
    assert (page.verdict.kind, page.verdict.sentence) == ("go", "Nothing found that would stop this job.")
    assert page.steps == ()


def test_a_missing_answer_is_the_first_step() -> None:
    looked = make_recording(job(), verb="check", nodes=reached("node1"), stages=("node",))
    lacking = [unknown("node1", "no torch in /usr/bin/python3", required=True)]
    page = page_of(judged(looked, checks=[make_check(lambda *_: lacking, name="torch-missing")]))
    assert page.verdict.kind == "incomplete"
    assert page.verdict.counts == "nothing found; 1 required check could not be decided; 0 of 1 node fit"
    assert [(step.title, step.text, step.target) for step in page.steps] == [
        ("Make it possible to decide torch-missing (node1)", "no torch in /usr/bin/python3", "not-looked-at")
    ]
    assert page.coverage.not_looked_at[0].open


def test_three_of_many_errors_are_steps_and_the_others_are_counted() -> None:
    def at(line: int) -> Verdict:
        return failed(f"n{line}", f"fault {line}", at=span(line=line), remedy="Mend it.")

    rules = [make_rule(lambda _, n=n: [at(n), at(n + 10)], f"TST00{n}") for n in range(1, 6)]
    page = page_of(judged(make_recording(job()), rules))
    assert [(step.title, step.same_count) for step in page.steps] == [("fault 1", 1), ("fault 2", 1), ("fault 3", 1)]
    assert page.more_steps == 4


def test_a_warning_is_a_step_only_if_it_stops_the_job() -> None:
    found = make_rule(lambda _: [failed("x", "waste", at=span(), remedy="Mend it.")], severity=Severity.WARNING)
    report = judged(make_recording(job()), [found])
    assert page_of(report).steps == ()
    strict = replace(report.configuration, fail_on="warning")
    assert len(page_of(replace(report, configuration=strict)).steps) == 1


def test_a_bug_an_injected_fault_and_an_interruption_are_at_the_top() -> None:
    page = page_of(crashed(ValueError("x"), verb="lint", created="", version="0.1.0"))
    assert "bug in preflight" in page.verdict.sentence
    report = story()
    faulty = replace(
        report, run=replace(report.run, smoke_options=SmokeOptions(injected_fault=InjectedFault("kill", "rank", 1)))
    )
    assert page_of(faulty).verdict.word == "Fault injected: No-go"
    assert "not a verdict about the nodes" in page_of(faulty).verdict.warnings[0]
    assert "interrupted" in page_of(replace(report, exit_code=130)).verdict.warnings[0]
    nothing = judged(make_recording())
    assert page_of(nothing).verdict.word == "Not judged"


# --- findings ---


def test_many_findings_are_counted_by_rule_with_a_link_to_the_first_of_each() -> None:
    def found(count: int, id: str) -> Rule:
        return make_rule(
            lambda _: [failed(f"n{n}", "m", at=span(line=n), remedy="Mend it.") for n in range(1, count)], id
        )

    page = page_of(judged(make_recording(job()), [found(4, "TST001"), found(20, "TST002")]))
    assert page.by_rule is not None
    assert [(row.subject, row.cells[2].text) for row in page.by_rule.rows] == [("TST001", "3"), ("TST002", "19")]
    assert page.by_rule.rows[1].cells[0].links[0][0] == page.findings[3].anchor
    assert page_of(story()).by_rule is None


def test_both_sides_of_a_contradiction_are_shown_with_their_marks() -> None:
    finding = page_of(story()).findings[1]
    assert [(side.path, side.line, side.marked, side.note) for side in finding.sides] == [
        ("train.sbatch", 5, "--nnodes=8", ""),
        ("train.sbatch", 2, "--nodes=4", "4 nodes are granted here"),
    ]
    assert finding.sides[1].before == "#SBATCH "


def test_a_fix_shows_the_line_before_and_after() -> None:
    fix = page_of(story()).findings[1].fix
    assert fix is not None
    (change,) = fix.changes
    assert change.before + change.old + change.after == SCRIPT.splitlines()[4]
    assert (change.where, change.new) == ("train.sbatch:5", "--nnodes=4")


def test_a_fix_of_an_unknown_line_shows_its_pieces() -> None:
    report = story()
    edit = Edit("-x.sh", 9, 1, "a b", "c")
    found = replace(report.findings[1], fix=Fix("say c", (edit,), safe=False))
    fix = finding_view(found).fix
    assert fix is not None
    assert (fix.changes[0].before, fix.changes[0].old, fix.changes[0].new) == ("", "a b", "c")
    assert fix.command == "preflight lint --fix --unsafe-fixes ./-x.sh"


def test_a_mark_is_clipped_to_its_line() -> None:
    assert place_of(Location("a", 1, 90, 1, 99, "short")).marked == ""
    assert place_of(Location("a", 1, 3, 4, 1, "  two lines")).marked == "two lines"
    assert place_of(Location("a", 1, 201, 1, 204, "x" * 200 + "abc")).before == "…" + "x" * 80
    assert not place_of(Location("a", 1, 1, 1, 1)).has_text


def test_the_anchor_of_a_finding_survives_a_moved_line() -> None:
    def anchor(line: int) -> str:
        report = judged(
            make_recording(job()), [make_rule(lambda _: [failed("x", "m", at=span(line=line), remedy="Mend it.")])]
        )
        return page_of(report).findings[0].anchor

    assert anchor(3) == anchor(30)


def test_two_findings_on_equal_lines_have_different_anchors() -> None:
    twice = [failed("x", "m", at=span(line=line), remedy="Mend it.") for line in (3, 9)]
    report = judged(make_recording(job()), [make_rule(lambda _: twice)])
    page = page_of(replace(report, suppressed=report.findings))
    anchors = [finding.anchor for finding in (*page.findings, *page.suppressed)]
    assert len(set(anchors)) == 4
    assert page.steps[0].target in anchors


# --- nodes and coverage ---


def test_nodes_are_listed_by_state_with_links_to_findings() -> None:
    page = page_of(of_nodes("n1", "n2", silent=("n3",), bad=("n2",)))
    assert page.nodes is not None
    assert [(fact.name, fact.value) for fact in page.nodes.summary] == [("2 not fit", "n[2-3]"), ("1 fit", "n1")]
    rows = {row.subject: row for row in page.nodes.table.rows}
    assert (rows["n2"].cells[0].text, rows["n2"].cells[0].state) == ("not fit", "bad")
    assert rows["n2"].cells[1].links == ((page.findings[0].anchor, "TST501"),)
    assert rows["n3"].cells[2].text == "it did not answer within 15 s"
    assert rows["n1"].cells[0].state == "good"


def test_a_thousand_equal_nodes_are_one_row() -> None:
    page = page_of(of_nodes(*(f"n{n:04d}" for n in range(1000)), bad=("n0500",)))
    assert page.nodes is not None
    assert [(row.subject, row.count) for row in page.nodes.table.rows] == [
        ("n0500", 1),
        ("n[0000-0499,0501-0999]", 999),
    ]
    assert len(page.nodes.table.all_rows) == 1000


def test_the_node_chart_is_merged_into_the_node_table() -> None:
    columns = (Column("agent"), Column("memory", "bytes"))
    chart = Table("nodes", "Nodes", "Asked of 1 of 2.", columns, (Row("n1", (Cell("answered"), Cell(2**30))),))
    page = page_of(replace(of_nodes("n1", "n2"), charts=(chart,)))
    assert page.nodes is not None and page.drawings == ()
    assert [row.cells[-1].text for row in page.nodes.table.rows] == ["1.00 GiB", "not known"]
    assert page.nodes.table.note == "Asked of 1 of 2."
    assert [column.name for column in page.nodes.table.columns] == ["state", "findings", "reached", "memory"]


def test_a_report_on_files_has_no_nodes() -> None:
    assert page_of(judged(make_recording(job()))).nodes is None


def test_coverage_lists_what_was_not_checked() -> None:
    report = story()
    broken = Broken("plugin", "site", "rules:one", "ImportError")
    report = replace(report, coverage=replace(report.coverage, broken=(broken,)))
    page = page_of(report)
    groups = {group.title: group for group in page.coverage.not_looked_at}
    assert [entry.what for entry in groups["Stages that did not run (1)"].entries] == ["smoke"]
    assert [entry.what for entry in groups["Optional checks that could not be decided (2)"].entries] == [
        "RDM001 rdma-down",
        "RDV001 port-in-use",
    ]
    assert groups["Plugins that failed (1)"].entries[0].why == "ImportError"
    assert groups["Not applicable to this job (1)"].entries[0].what == "PSV001 servers"
    assert page.coverage.looked_at[0].title.startswith("In the files")


def test_suppressed_findings_are_shown_but_do_not_count() -> None:
    report = story()
    waived = replace(report.findings[2], suppression="known until May", suppressed_by="waiver")
    page = page_of(replace(report, findings=(), suppressed=(waived,)))
    assert [finding.suppression for finding in page.suppressed] == ["known until May"]
    assert "Suppressed" in [section.title for section in page.sections]
