"""The content of the page: the verdict first, then what to do, both sides of a contradiction, and what was not
checked."""

from __future__ import annotations

import base64
import enum
import hashlib
import itertools
import json
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from preflight.engine.report import Report, crashed
from preflight.model.charts import (
    Bar,
    Bars,
    Cell,
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
from preflight.model.configuration import Configuration, InjectedFault
from preflight.model.findings import Edit, Fix, Location, Severity
from preflight.model.recording import SmokeOptions
from preflight.plugins import registry
from preflight.plugins.authoring import Rule, Verdict, failed, passed, unknown
from preflight.plugins.registry import Broken
from preflight.reporters.base import Style
from preflight.reporters.html import REPORTER
from preflight.reporters.html.drawing.draw import bars_view, drawings_of, heat_view, layout_view, timeline_view
from preflight.reporters.html.drawing.shapes import (
    BAD,
    BAND,
    LEVELS,
    OK,
    PHASES,
    UNKNOWN,
    Picture,
    format_number,
    format_range,
    palettes,
    scale_of,
    share,
    table_view,
)
from preflight.reporters.html.page import page_of, prose
from preflight.reporters.html.view import finding_view, place_of
from tests.builders import job, judged, make_check, make_recording, make_rule, reached, seen, span
from tests.reporters.html.markup import Element, parsed
from tests.reporters.html.stories import SCRIPT, page, story
from tests.suite.measured import measured


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
    assert (page.verdict.kind, page.verdict.sentence) == ("go", "Nothing was found that would stop this job.")
    assert page.steps == ()


def test_a_missing_answer_is_the_first_step() -> None:
    looked = make_recording(job(), verb="check", nodes=reached("node1"), stages=("node",))
    lacking = [unknown("node1", "no torch in /usr/bin/python3", required=True)]
    page = page_of(judged(looked, checks=[make_check(lambda *_: lacking, name="torch-missing")]))
    assert page.verdict.kind == "incomplete"
    assert page.verdict.counts == "nothing found; 1 required check could not be decided; 0 of 1 node fit"
    assert [(step.title, step.text, step.target) for step in page.steps] == [
        ("Make torch-missing (node1) decidable", "no torch in /usr/bin/python3", "not-looked-at")
    ]
    assert page.unchecked[0].open


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
    assert "not a verdict on the nodes" in page_of(faulty).verdict.warnings[0]
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
    groups = {group.title: group for group in page.unchecked}
    assert [entry.what for entry in groups["Stages that did not run (1)"].entries] == ["smoke"]
    assert [entry.what for entry in groups["Optional checks that could not be decided (2)"].entries] == [
        "RDM001 rdma-down",
        "RDV001 port-in-use",
    ]
    assert groups["Plugins that failed (1)"].entries[0].why == "ImportError"
    assert groups["Not applicable to this job (1)"].entries[0].what == "PSV001 servers"
    assert page.checked[0].title.startswith("In the files")


def test_suppressed_findings_are_shown_but_do_not_count() -> None:
    report = story()
    waived = replace(report.findings[2], suppression="known until May", suppressed_by="waiver")
    page = page_of(replace(report, findings=(), suppressed=(waived,)))
    assert [view.finding.suppression for view in page.suppressed] == ["known until May"]
    assert "Suppressed" in [section.title for section in page.sections]


# The file: one, self-contained, the same for the same report, and safe for any content of a report.


ROOT = Path(__file__).resolve().parents[3]
#: Scripts, quotes, closing markup, template syntax, control characters, bidirectional marks.
HOSTILE = (
    "</script></style></title><script>window.owned=1</script><img src=x onerror=window.owned=1>"
    '"\' onmouseover=window.owned=1 x=" {{ 7*7 }} {% raw %} javascript:alert(1) `</code><b>` &lt; -->'
    "\x00\x1b[31m\x9b\x7f\u202e\u2066\ud800\u200f\ufeff"
)
MADE_HARMLESS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\ud800-\udfff]")


@pytest.fixture(scope="module")
def four() -> bytes:
    return page(story(4))


@pytest.fixture(scope="module")
def tree(four: bytes) -> Element:
    return parsed(four)


def test_it_is_a_registered_reporter() -> None:
    assert registry.load_named(registry.REPORTERS, "html") is REPORTER


def test_the_same_report_gives_the_same_bytes(four: bytes) -> None:
    assert page(story(4)) == four
    assert REPORTER.render(story(4), Style(width=40, color=True, verbosity=2)) == four


def test_the_template_engine_is_loaded_only_for_this_format() -> None:
    code = (
        "import sys; from preflight import api; from preflight.plugins import registry as catalog; from "
        "preflight.reporters.html import REPORTER; "
        "sys.exit('jinja2' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=300, check=False).returncode == 0


def test_a_run_without_results_has_a_page() -> None:
    bug = crashed(ValueError("<b>"), verb="check", created="2026-01-02T03:04:05+00:00", version="0.1.0")
    found = parsed(page(bug))
    assert "A bug in preflight ended the run" in found.all("h1")[0].text
    assert "ValueError: <b>" in found.text, "what broke is not folded away"
    assert "Not judged" in parsed(page(judged(make_recording()))).all("h1")[0].text


# --- nothing from outside ---


def test_the_page_makes_no_requests(four: bytes, tree: Element) -> None:
    assert not re.search(rb"(https?:)?//[a-z]", four), "an address of another machine"
    for name in ("src", "srcset", "href", "action", "poster", "data", "formaction", "background"):
        for element in tree.all():
            value = element.attributes.get(name, "#")
            assert value.startswith(("#", "data:image/png;base64,")), (element.name, value[:80])
    assert not [element for element in tree.all() if element.name in ("link", "iframe", "object", "embed", "base")]
    assert b"url(" not in four and b"@import" not in four


def test_the_policy_allows_only_the_style_and_script_of_the_page(tree: Element) -> None:
    (meta,) = tree.all("meta", http_equiv="Content-Security-Policy")
    policy = dict(part.split(" ", 1) for part in meta.attributes["content"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["form-action"] == policy["base-uri"] == "'none'"
    for kind in ("style", "script"):
        (element,) = tree.all(kind)
        text = "".join(child.texts[0] for child in element.children)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert policy[f"{kind}-src"] == f"'sha256-{digest}'"
    assert not [element for element in tree.all() if "style" in element.attributes], "the policy would forbid it"


# --- hostile reports ---


def poisoned(value: Any) -> Any:
    """The value with hostile text appended to, or instead of, every text in it."""
    if isinstance(value, Configuration) or value is None:
        return value
    if isinstance(value, str):
        return f"{value[:12]}{HOSTILE}"
    if isinstance(value, (bool, int, float, enum.Enum)):
        return value
    if isinstance(value, Mapping):
        return {poisoned(key): poisoned(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(poisoned(item) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        # Texts whose type allows only certain words are kept.
        kept = {"state", "kind"} if type(value).__module__ == "preflight.model.charts" else {"source"}
        changed = {
            field.name: poisoned(getattr(value, field.name))
            for field in fields(value)
            if field.init and (field.name not in kept or type(value).__name__ == "Piece")
        }
        return replace(value, **changed)
    return value


@pytest.fixture(scope="module", params=[4, 60])
def hostile(request: pytest.FixtureRequest) -> bytes:
    poisoned_report = poisoned(story(request.param))
    assert isinstance(poisoned_report, Report)
    return page(poisoned_report)


def test_text_of_a_report_never_becomes_markup(hostile: bytes, tree: Element) -> None:
    found = parsed(hostile)
    assert len(found.all("script")) == len(found.all("style")) == 1
    assert {element.name for element in found.all()} <= {element.name for element in tree.all()} | {
        "source",
        "picture",
        "img",
        "path",
        "wbr",
    }
    for element in found.all():
        assert not [name for name in element.attributes if name.startswith("on")], element.name
        assert set(element.attributes) <= ATTRIBUTES, element.attributes
        for name in ("href", "src", "srcset"):
            assert element.attributes.get(name, "#").startswith(("#", "data:image/png"))
    assert not [image for image in found.all("img") if image.attributes["src"] == "x"]
    assert "window.owned=1" in found.text, "it is shown, not dropped"
    assert "{{ 7*7 }}" in found.text and "49" not in found.all("h1")[0].text


#: Every attribute that a template writes.
ATTRIBUTES = frozenset(
    re.findall(
        r"\S+",
        """lang charset http-equiv content name class href id role tabindex aria-hidden aria-label
        aria-labelledby aria-describedby hidden for type autocomplete spellcheck placeholder value
        checked open scope title alt src srcset media width height x y d viewbox preserveaspectratio
        data-find data-names data-severity data-copy data-sort data-sortable data-rows data-columns""",
    )
)


def test_no_control_or_bidirectional_character_reaches_the_page(hostile: bytes) -> None:
    assert not MADE_HARMLESS.search(hostile.decode())
    assert "\\u202e" in hostile.decode(), "it is made visible"


def test_the_policy_of_a_hostile_page_is_that_of_any_other(hostile: bytes, tree: Element) -> None:
    ours, theirs = (t.all("meta", http_equiv="Content-Security-Policy") for t in (tree, parsed(hostile)))
    assert [m.attributes for m in ours] == [m.attributes for m in theirs]


def test_backticks_mark_code() -> None:
    assert str(prose("say `--n=<4>` & go")) == 'say <code><span class="option">--n</span>=&lt;4&gt;</code> &amp; go'
    assert str(prose("an odd ` <b>")) == "an odd ` &lt;b&gt;"
    assert str(prose("``")) == ""


# --- for everybody ---


def test_heading_levels_have_no_gap(tree: Element) -> None:
    levels = [int(element.name[1]) for element in tree.all() if re.fullmatch(r"h[1-6]", element.name)]
    assert levels.count(1) == 1 and levels[0] == 1
    assert all(later <= earlier + 1 for earlier, later in itertools.pairwise(levels))


def test_the_page_has_landmarks_a_language_and_a_skip_link(tree: Element) -> None:
    (html,) = tree.all("html")
    assert html.attributes["lang"] == "en"
    for name in ("header", "nav", "main", "footer"):
        assert len(tree.all(name)) == 1
    first = tree.all("a")[0]
    assert first.attributes["href"] == "#main"


def test_every_link_has_a_target_and_ids_are_unique(tree: Element) -> None:
    ids = [element.attributes["id"] for element in tree.all() if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    for link in tree.all("a"):
        assert link.attributes["href"][1:] in ids


def test_every_table_has_a_caption_and_heads_with_scopes(tree: Element) -> None:
    tables = tree.all("table")
    assert tables
    for table in tables:
        assert table.all("caption")
        assert table.all("th")
        assert all(th.attributes.get("scope") in ("col", "row") for th in table.all("th"))


def test_every_picture_has_a_description() -> None:
    for image in parsed(page(story(60))).all("img"):
        assert len(image.attributes["alt"]) > 40


def test_there_are_dark_and_print_styles(four: bytes) -> None:
    for query in (b"prefers-color-scheme: dark", b"@media print", b"forced-colors"):
        assert query in four


# --- size ---


@pytest.mark.thorough
@pytest.mark.timeout(700)
def test_the_page_of_a_thousand_nodes_is_quick_and_small() -> None:
    code = """
import json, time
from tests.reporters.html.stories import page, story
report = story(1000)
began = time.process_time()
written = page(report)
print(json.dumps([time.process_time() - began, len(written)]))
"""
    done = measured([sys.executable, "-c", code], cwd=ROOT, timeout_s=600)
    assert done.code == 0, str(done)
    seconds, size_bytes = json.loads(done.output)
    assert seconds < 5
    assert done.peak_bytes < 2**30, str(done)
    assert size_bytes < 10e6


# Charts as geometry and text: equal rows are folded, a bad row is visible, an unknown value never looks like a number.


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (0, "bytes", "0 B"),
        (1536, "bytes", "1.50 KiB"),
        (3 * 2**40, "bytes", "3.00 TiB"),
        (0.0000193, "s", "19.3 µs"),
        (0.5, "s", "500 ms"),
        (61.25, "s", "61.2 s"),
        (97.18, "Gbit/s", "97.2 Gbit/s"),
        (12345, "", "12,345"),
        (0.00123, "", "0.00123"),
        (float("nan"), "", "not a number"),
    ],
)
def test_numbers_have_few_digits_and_a_fitting_unit(value: float, unit: str, text: str) -> None:
    assert format_number(value, unit) == text


def test_a_range_has_its_unit_once_and_equal_ends_are_one_number() -> None:
    assert format_range([1.2, 1.4], "s") == "1.20 to 1.40 s"
    assert format_range([0.0004, 1.4], "s") == "400 µs to 1.40 s"
    assert format_range([2.0, 2.0], "s") == "2.00 s"
    assert share(1, 0) == "0"


def rows_of(count: int, **odd: str) -> tuple[Row, ...]:
    return tuple(
        Row(
            f"n{number:03d}",
            (Cell(odd.get(f"n{number:03d}", "2.5.1"), odd=f"n{number:03d}" in odd), Cell(number / 1000)),
        )
        for number in range(count)
    )


def a_table(rows: tuple[Row, ...]) -> Table:
    return Table("versions", "Versions", "", (Column("torch"), Column("took", "s")), rows)


def test_a_short_table_has_a_row_per_subject_odd_ones_first() -> None:
    view = table_view(a_table(rows_of(4, n002="2.1.0")))
    assert [row.subject for row in view.rows] == ["n002", "n000", "n001", "n003"]
    assert not view.folded
    assert view.columns[1].numeric


def test_equal_rows_are_folded_with_ranges_of_numbers() -> None:
    view = table_view(a_table(rows_of(300, n200="2.1.0")))
    assert [(row.subject, row.count) for row in view.rows] == [("n200", 1), ("n[000-199,201-299]", 299)]
    assert view.rows[1].cells[1].text == "0 s to 299 ms"
    assert len(view.all_rows) == 300


def test_unknown_values_show_their_reason_and_are_not_folded_with_known_ones() -> None:
    rows = (*rows_of(20), Row("n900", (Cell(None, why="denied"), Cell(float("nan")))))
    view = table_view(a_table(rows))
    assert [(row.subject, row.cells[0].text, row.cells[0].why) for row in view.rows][1] == (
        "n900",
        "not known",
        "denied",
    )
    assert view.rows[1].cells[1].missing


def test_an_outlier_does_not_flatten_the_scale() -> None:
    scale = scale_of([*(float(value) for value in range(100)), 1e6])
    assert len({scale.level(float(value)) for value in range(100)}) == len(LEVELS)
    assert scale.style(1e6) == LEVELS[-1]
    assert scale_of([3.0, 3.0]).labels("s") == ((LEVELS[0], "3.00 s"),)


def test_nearly_equal_values_look_equal() -> None:
    assert scale_of([19.7, 20.0, 20.3, 20.7]).labels("µs") == ((LEVELS[0], "19.7 to 20.7 µs"),)
    assert len(scale_of([10.0, 12.0, 20.0]).labels("µs")) == len(LEVELS)


# --- heat maps ---


def a_matrix(count: int, bad_row: int = -1, *, value: float | None = None, step: int = 1) -> Matrix:
    names = tuple(f"n{number:04d}" for number in range(count))
    marks = tuple(
        Mark(row, column, value, "bad" if row == bad_row else "ok", "refused" if row == bad_row else "")
        for row in range(count)
        for column in range(count)
        if row != column and (row - column) % step == 0
    )
    return Matrix("links.reach", "Reachability", "", "us" if value else "", names, names, marks)


def pixels(picture: Picture, address: str) -> list[bytes]:
    """The rows of a picture, as numbers of its palette, read back from the file."""
    data = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    at, packed, size = 8, b"", (0, 0)
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert zlib.crc32(kind + body) == struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0]
        size = struct.unpack(">II", body[:8]) if kind == b"IHDR" else size
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    assert size == (picture.columns, picture.rows)
    raw = zlib.decompress(packed)
    width = picture.columns + 1
    return [raw[start + 1 : start + width] for start in range(0, len(raw), width)]


def test_a_small_matrix_describes_each_pair_in_words() -> None:
    view = heat_view(a_matrix(4, bad_row=2))
    assert [square.text for square in view.squares[2]] == ["×", "×", "·", "×"]
    assert [square.word for square in view.squares[2]] == ["bad", "bad", "itself", "bad"]
    assert view.squares[2][0].title == "n0002 to n0000: bad (refused)"
    assert view.summary == "12 pairs drawn: 9 ok, 3 bad"
    assert "not tried" not in [swatch.label for swatch in view.legend]
    assert view.picture is None


def test_a_cell_shows_its_value() -> None:
    view = heat_view(a_matrix(3, value=21.0))
    assert view.squares[0][1].text == "21.0"
    assert view.squares[0][1].title == "n0000 to n0001: 21.0 us"
    assert view.summary == "6 pairs drawn: 6 ok. Median 21.0 us, 21.0 us"


def test_an_untried_pair_is_not_a_pass() -> None:
    view = heat_view(a_matrix(6, step=2))
    assert view.squares[0][1].word == "not tried"
    assert "not tried" in [swatch.label for swatch in view.legend]


def test_a_bad_row_of_a_large_matrix_spans_the_picture() -> None:
    view = heat_view(a_matrix(1000, bad_row=402, step=40))
    assert view.picture is not None
    assert (view.picture.columns, view.picture.rows) == (250, 250)
    for address in (view.picture.light, view.picture.dark):
        lines = pixels(view.picture, address)
        assert 0 not in lines[402 // 4], "also where no pair of it was tried"
        assert 0 in lines[403 // 4 + 1]
    (longest,) = [strip for strip in view.row_strips if strip.long == "100"]
    assert longest.title == "n0402: 100 % of its pairs bad"
    assert view.outliers is not None and view.bad is not None
    assert [row.subject for row in view.outliers.rows] == ["n0402", "999 others"]
    assert view.outliers.rows[0].cells[0].text == "24 of 24"
    assert view.bad.rows[0].cells[3].text == "refused"


def test_a_large_matrix_without_faults_names_its_extremes() -> None:
    names = tuple(f"n{number}" for number in range(60))
    marks = tuple(Mark(row, (row + 1) % 60, float(row + 1), "ok") for row in range(60))
    view = heat_view(Matrix("links.latency", "Latency", "", "us", names, names, marks))
    assert view.outliers is not None
    assert "n59" in [row.subject for row in view.outliers.rows]
    assert view.outliers.rows[-1].subject == "54 others"
    assert view.bad is None


def test_nothing_stands_out_without_faults_and_values() -> None:
    view = heat_view(a_matrix(60, step=2))
    assert view.outliers is None
    assert view.row_strips == () and view.strip_note == ""


def test_folded_names_are_shown_only_if_they_keep_the_order() -> None:
    assert heat_view(a_matrix(30)).row_names == "n[0000-0029]"
    turned = replace(a_matrix(30), rows=a_matrix(30).rows[::-1])
    assert heat_view(turned).row_names == ""
    assert heat_view(replace(turned, rows=tuple(f"rank {n}" for n in range(30)))).row_names == ""


def test_the_picture_of_a_thousand_nodes_is_small() -> None:
    view = heat_view(a_matrix(1000, value=20.0, step=21))
    assert view.picture is not None
    assert len(view.picture.light) < 100_000


def test_both_palettes_have_a_colour_for_every_class() -> None:
    light, dark = palettes()
    assert set(light) == set(dark) >= {OK, UNKNOWN, BAD, BAND, *LEVELS, *PHASES}


# --- timelines, bars, layouts ---


def lanes(count: int) -> Timeline:
    made = tuple(
        Lane(f"rank {n}", f"node{n}", (Span(0, 1, "start"), Span(1, 3 + (n == 7), "train"))) for n in range(count)
    )
    return Timeline("smoke.steps", "Steps", "", made)


def test_a_timeline_has_phase_durations_and_the_slowest_lane() -> None:
    view = timeline_view(lanes(10))
    assert [(row.subject, row.cells[1].text, row.cells[2].text, row.cells[3].text) for row in view.by_phase.rows] == [
        ("start", "1.00 s", "1.00 s", "rank 0"),
        ("train", "2.00 s", "2.00 to 3.00 s", "rank 7"),
    ]
    assert view.lanes[7].took.text == "4.00 s"
    assert (view.lanes[0].phases[1].at, view.lanes[0].phases[1].long) == ("25", "50")
    assert view.picture is None


def test_many_lanes_become_a_picture_with_the_last_ones_as_rows() -> None:
    view = timeline_view(lanes(1000))
    assert view.picture is not None and view.picture.rows == 1000
    assert view.lanes[0].subject == "rank 7"
    assert len(view.lanes) == 12
    ends = [bytes(row).rstrip(b"\0") for row in pixels(view.picture, view.picture.light)]
    assert [number for number, end in enumerate(ends) if len(end) == 960] == [7]


def test_an_empty_lane_is_marked() -> None:
    view = timeline_view(Timeline("smoke.steps", "Steps", "", (Lane("rank 0", "n", ()),)))
    assert view.lanes[0].took.missing and view.ticks == ()


def test_many_bars_list_odd_ones_and_extremes() -> None:
    many = tuple(Bar(f"rank {n}", f"node{n}", 1 + n / 1000, odd=n == 500) for n in range(900))
    view = bars_view(Bars("smoke.stragglers", "Stragglers", "", "s", (*many, Bar("rank 900", "x", None, why="silent"))))
    listed = [bar.label for bar in view.bars]
    assert {"rank 0", "rank 500", "rank 899", "rank 900"} <= set(listed)
    assert len(listed) == 14
    assert view.bars_note.endswith("887 are in between: 1.01 to 1.89 s.")
    assert view.bars[-1].value.text == "not known" and view.bars[-1].long == "0"
    assert view.profile.count("h1") == 901


def test_a_layout_folds_nodes_with_the_same_kinds_of_pieces() -> None:
    places = tuple(
        Place(f"n{n:03d}", (Piece(f"server {n}", "server", n * 2.0**20), Piece(f"worker {n}", "worker", None)))
        for n in range(1, 41)
    )
    view = layout_view(Layout("servers.placement", "Who is where", "", "bytes", places))
    (place,) = view.places
    assert (place.node, place.count, place.total) == ("n[001-040]", 40, "1.00 to 40.0 MiB")
    assert place.pieces[0].label == "server 1 to server 40"
    assert place.pieces[0].long == "100"
    assert place.pieces[1].value == "", "a worker holds nothing, which is no gap"


def test_a_server_with_unknown_content_is_named() -> None:
    layout = Layout("servers.placement", "", "", "bytes", (Place("n", (Piece("server 0", "server", None, "silent"),)),))
    (piece,) = layout_view(layout).places[0].pieces
    assert (piece.value, piece.missing, piece.why) == ("not known", True, "silent")


def test_headings_come_from_ids_and_empty_charts_are_left_out() -> None:
    own = Table("site.licences", "Licences", "", (Column("free"),), (Row("n1", (Cell(3),)),))
    empty = Timeline("smoke.steps", "Steps", "", ())
    found = drawings_of([own, empty, a_matrix(3)])
    assert [(heading, len(drawings)) for heading, drawings in found] == [("Links", 1), ("Measurements", 1)]
