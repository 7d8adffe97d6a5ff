"""Builds the page from the report, with its sections in the order in which a person needs them."""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from preflight._util.sanitize import clean, fold_nodes
from preflight._util.sequences import grouped
from preflight.engine.report import ExitCode, Report, hosts_of
from preflight.model.findings import Finding, Severity, Status, VerdictKind
from preflight.reporters.html.drawing.draw import drawings_of
from preflight.reporters.html.drawing.shapes import format_number
from preflight.reporters.html.view import (
    NODE_CHART,
    CommandView,
    Fact,
    FindingView,
    Page,
    Section,
    Stage,
    Step,
    VerdictView,
    anchor_of,
    by_rule,
    checked_groups,
    finding_view,
    first_commands,
    nodes_view,
    starts_of,
    unchecked_groups,
)
from preflight.reporters.text.groups import avoided_cost, avoided_cost_sources, by_reason, count, counted, undecided

if TYPE_CHECKING:
    from jinja2 import Environment, Template


#: From this many findings on, a table counts them by rule first.
_MANY_FINDINGS = 12
_SEVERITIES = ("error", "warning", "info")


def page_of(report: Report) -> Page:
    """Build the page of a report. Pure: the same report gives the same page."""
    verdict = verdict_view(report)
    steps, more_steps = first_steps(report)
    findings = _unique_anchors(tuple(finding_view(finding) for finding in report.findings))
    nodes = nodes_view(report)
    of_nodes = nodes is not None
    drawings = drawings_of([e for e in report.charts if not (of_nodes and e.id == NODE_CHART)])
    job = _job(report)
    sections = [Section("findings", "Findings", str(len(findings)))]
    if nodes is not None:
        sections.append(Section("nodes", "Nodes", f"{len(hosts_of(report).passing)}/{len(report.nodes)}"))
    sections.extend(Section(heading.lower().replace(" ", "-"), heading) for heading, _ in drawings)
    sections.append(Section("coverage", "Coverage", ""))
    if report.suppressed:
        sections.append(Section("suppressed", "Suppressed", str(len(report.suppressed))))
    sections.append(Section("run", "This run", ""))
    return Page(
        title=f"{verdict.word}: {_faulty_job(report) or job}",
        job=job,
        verdict=verdict,
        about=tuple(_run_facts(report)),
        steps=steps,
        more_steps=more_steps,
        findings=findings,
        severities=tuple((name, sum(f.finding.severity.value == name for f in findings)) for name in _SEVERITIES),
        by_rule=by_rule(findings) if len(findings) > _MANY_FINDINGS else None,
        nodes=nodes,
        drawings=drawings,
        coverage=report.coverage,
        unchecked=tuple(group for group in unchecked_groups(report) if group.entries),
        checked=tuple(group for group in checked_groups(report) if group.entries),
        suppressed=_unique_anchors(tuple(finding_view(finding) for finding in report.suppressed), "suppressed-"),
        notes=tuple(_notes(report)),
        files=tuple(
            Fact(file.path, f"{file.kind}, {format_number(file.size_bytes, 'bytes')}") for file in report.inputs
        ),
        stages=tuple(
            Stage(stage.name, format_number(stage.finished_s - stage.started_s, "s"), stage.skipped)
            for stage in report.run.stages
        ),
        tool=f"{report.tool.name} {report.tool.version}",
        sections=tuple(sections),
    )


def _unique_anchors(findings: Sequence[FindingView], before: str = "") -> tuple[FindingView, ...]:
    """Return the findings with unique anchors: a file may contain the same faulty line twice."""
    seen: Counter[str] = Counter()
    found = []
    for finding in findings:
        seen[finding.anchor] += 1
        again = f"-{seen[finding.anchor]}" if seen[finding.anchor] > 1 else ""
        found.append(replace(finding, anchor=f"{before}{finding.anchor}{again}"))
    return tuple(found)


def _job(report: Report) -> str:
    names = [job.name for job in report.jobs]
    if not names:
        return "no job"
    return names[0] if len(names) == 1 else f"{names[0]} and {count(len(names) - 1, 'other job')}"


def _faulty_job(report: Report) -> str:
    """Return the job with the worst finding and how many others there are; empty for one job or no match."""
    first = next((place.path for finding in report.findings for place in finding.locations[:1]), "")
    names = [job.name for job in report.jobs if any(file.path == first for file in job.files)]
    if not names or len(report.jobs) < 2:
        return ""
    return f"{names[0]} and {count(len(report.jobs) - 1, 'other job')}"


def _run_facts(report: Report) -> list[Fact]:
    """Return what was checked, how and when, so that the page is not mistaken for the report of another job."""
    run = report.run
    run_facts = [Fact("Job", _job(report)), Fact("Options", f"preflight {run.verb}")]
    if report.nodes:
        answered = tuple(record.node.name for record in report.nodes if not record.problem)
        silent = tuple(record.node.name for record in report.nodes if record.problem)
        over = f" over {run.executor}" if run.executor else ""
        text = f"{len(answered):,} of {len(report.nodes):,} answered{over}"
        if silent:
            text += f"; silent: {fold_nodes(silent)}"
        run_facts.append(Fact("Nodes", text))
    if run.origin is not None:
        because = f"; {run.executor} because {run.origin.because}" if run.origin.because else ""
        run_facts.append(Fact("Nodes from", run.origin.problem or f"{run.origin.words}{because}"))
    if run.context:
        run_facts.append(Fact("Ranks run in", run.context))
    run_facts.append(Fact("Files", f"{count(len(report.inputs), 'file')} in {count(len(report.jobs), 'job')}"))
    if run.created:
        run_facts.append(Fact("Recorded", run.created.replace("T", " ").replace("+00:00", " UTC")))
    return run_facts


def _notes(report: Report) -> list[str]:
    """Return what a reader should know about the basis of the verdict."""
    notes = list(report.run.origin.notes) if report.run.origin is not None else []
    if report.inputs and not report.findings and not any(job.launches for job in report.jobs):
        notes.append(
            "These files contain no known launch command, so there was little to check; add the script that starts the "
            "ranks (torchrun, srun, mpirun, deepspeed, accelerate ...)."
        )
    faulty = {place.path for finding in report.findings for place in finding.locations}
    for job in report.jobs:
        if job.probable and any(file.path in faulty for file in job.files):
            notes.append(
                f"{job.name} were assumed to be one job, so contradictions between them are warnings; pass the files "
                "together to check them as one job."
            )
    return notes


_WORDS = {
    VerdictKind.GO: "Go",
    VerdictKind.NO_GO: "No-go",
    VerdictKind.INCOMPLETE: "Incomplete",
    VerdictKind.NOT_JUDGED: "Not judged",
}
_SENTENCES = {
    VerdictKind.GO: "Nothing was found that would stop this job.",
    VerdictKind.NO_GO: "Do not submit this job yet.",
    VerdictKind.INCOMPLETE: "Too little could be checked for a go.",
    VerdictKind.NOT_JUDGED: "No launch was recognized, so the behaviour of the ranks is unknown.",
}
#: Largest number of steps shown.
_MAX_STEPS = 3
#: Lists of names longer than this are counted.
_MAX_NAMES_LENGTH = 80


def verdict_view(report: Report) -> VerdictView:
    warnings = tuple(_warnings(report))
    if report.exit_code == ExitCode.BUG:
        sentence = "A bug in preflight ended the run; its results up to then are below."
        return VerdictView("incomplete", "Incomplete", sentence, _counts(report), warnings)
    word = _WORDS[report.verdict]
    fault = report.run.smoke_options.injected_fault is not None
    return VerdictView(
        report.verdict.value,
        f"Fault injected: {word}" if fault else word,
        _SENTENCES[report.verdict],
        _counts(report),
        warnings,
        avoided_cost(report.avoided_cost) if report.avoided_cost is not None else "",
        avoided_cost_sources(report.avoided_cost) if report.avoided_cost is not None else (),
    )


def _warnings(report: Report) -> list[str]:
    warnings = []
    fault = report.run.smoke_options.injected_fault
    if fault is not None:
        warnings.append(
            f"Fault injected ({fault.option_text}): the options of this run requested it. The report shows how and "
            "how soon the fault was found; it is not a verdict on the nodes."
        )
        warnings.extend(
            outcome.subject
            for outcome in report.outcomes
            if outcome.status is Status.PASS and outcome.subject.startswith("injected fault: ")
        )
    if report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        warnings.append("The run was interrupted, so this report is not complete.")
    return warnings


def _counts(report: Report) -> str:
    parts = [counted(report.findings)] if report.findings else ["nothing found"]
    required = sum(outcome.required for outcome in report.coverage.unknown_outcomes)
    if required:
        parts.append(undecided(required))
    hosts = hosts_of(report)
    if report.nodes:
        parts.append(f"{len(hosts.passing)} of {count(len(report.nodes), 'node')} fit")
    skipped = [stage.name for stage in report.run.stages if stage.skipped]
    if skipped:
        parts.append(f"{' and '.join(skipped)} did not run")
    return "; ".join(parts)


def first_steps(report: Report) -> tuple[tuple[Step, ...], int]:
    """Return the first steps, one per rule, and the number of further findings of the same severity."""
    least = Severity(report.configuration.fail_on).rank
    stopping = grouped((finding.id, finding) for finding in report.findings if finding.severity.rank >= least)
    chosen = list(stopping.values())[:_MAX_STEPS]
    steps = [_step(same) for same in chosen]
    hosts = hosts_of(report)
    starts = starts_of(report, hosts)
    if starts:
        names = fold_nodes(hosts.failing)
        if len(names) > _MAX_NAMES_LENGTH:
            names = count(len(hosts.failing), "node")
        commands = tuple(CommandView(start.text) for start in starts if start.is_command)[:1]
        text = "" if commands else starts[0].text
        steps.append(Step(f"Or start without the failing nodes: {names}", text, commands))
    if not stopping:
        steps.extend(_open_questions(report))
    return tuple(steps), sum(map(len, stopping.values())) - sum(map(len, chosen))


def _step(findings: Sequence[Finding]) -> Step:
    first = findings[0]
    where = f"{first.locations[0].path}:{first.locations[0].line}" if first.locations else ""
    return Step(
        first.message, first.remedy, first_commands(first), anchor_of(first), same_count=len(findings) - 1, where=where
    )


def _open_questions(report: Report) -> list[Step]:
    """Return what to do about each required check that could not be decided."""
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    found = []
    for same in by_reason(required)[:_MAX_STEPS]:
        subjects = fold_nodes(tuple(dict.fromkeys(outcome.subject for outcome in same)))
        names = ", ".join(dict.fromkeys(outcome.name for outcome in same))
        found.append(Step(f"Make {names} ({subjects}) decidable", same[0].reason, target="not-looked-at"))
    return found


# Renders the page: templates that escape everything, with style and script inside the page and nothing external.
# The content security policy of the page forbids all requests, and all scripts and styles other than its own, which
# it names by hash. So even unescaped text would not run.


#: Number of characters of a list of nodes that a sentence shows.
_WRITE_MAX_NAMES_LENGTH = 60
#: Text of up to this length is never broken.
_SHORT = 30
#: The name of an option, up to a length that fits on a phone.
_OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]{0,30}")
_STYLE, _SCRIPT = "report.css", "report.js"


def page_bytes(page: Page) -> bytes:
    """Return the page as the bytes of one UTF-8 file."""
    return render_template("page.html", page=page)


def render_template(template: str, **values: Any) -> bytes:
    """Render a template with our style, script and policy, as UTF-8."""
    style, script = static_text(_STYLE), static_text(_SCRIPT)
    # Our own files: the only content that is not escaped.
    own = {"style": Markup(style), "script": Markup(script), "policy": _policy(style, script)}
    text: str = environment().get_template(template).render(**values, **own)
    return text.encode("utf-8", "replace")


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_sum(style)}'",
            f"script-src '{_sum(script)}'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )


def _sum(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@functools.cache
def static_text(name: str, package: str = __package__) -> str:
    """Return the text of a file in the folder `static` of a package."""
    return (resources.files(package) / "static" / name).read_text(encoding="utf-8")


def stylesheet() -> str:
    """Return the style of the page, for pages with the same look."""
    return static_text(_STYLE)


@functools.cache
def environment(*packages: str) -> Environment:
    """Return the Jinja environment that escapes every value; templates of `packages` come before ours."""
    environment = _environment((*packages, str(__package__)), autoescape=True, finalize=_strip_values)
    environment.filters["prose"] = prose
    environment.filters["breakable"] = breakable
    environment.filters["whole_options"] = whole_options
    environment.filters["shortened"] = shortened
    environment.filters["anchor"] = lambda text: text.lower().replace(" ", "-").replace(".", "-")
    return environment


@functools.cache
def text_templates(package: str, name: str) -> Template:
    """Return a plain-text template from the folder `templates` of a package, without escaping."""
    return _environment((package,)).get_template(name)


def _environment(packages: Sequence[str], **options: Any) -> Environment:
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    return Environment(
        loader=FunctionLoader(functools.partial(_template, packages)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        auto_reload=False,
        **options,
    )


def _strip_values(value: Any) -> Any:
    """Remove control characters from every text, whatever a file, a node or a recording contains."""
    if isinstance(value, (Markup, int, float)) or value is None:
        return value
    # This includes values that are not text: a location is shown by its path.
    return clean(str(value), keep_newlines=True)


def prose(text: str) -> Markup:
    """Show text between backticks as code. Text with an odd number of backticks is unchanged."""
    pieces = clean(text, keep_newlines=True).split("`")
    if len(pieces) % 2 == 0:
        return escape("`".join(pieces))
    joined = Markup("")
    for number, piece in enumerate(pieces):
        # Two adjacent backticks mark nothing.
        joined += Markup("<code>{}</code>").format(whole_options(piece)) if number % 2 and piece else escape(piece)
    return joined


def whole_options(text: str) -> Markup:
    """Keep the names of options on one line: browsers break lines after each hyphen of `--master-addr`."""
    text, joined, end = clean(text, keep_newlines=True), Markup(""), 0
    for match in _OPTION.finditer(text):
        joined += escape(text[end : match.start()]) + Markup('<span class="option">{}</span>').format(match[0])
        end = match.end()
    return joined + escape(text[end:])


def breakable(text: str) -> Markup:
    """Allow line breaks after commas: folded node names contain no spaces."""
    if len(text) <= _SHORT:
        return escape(clean(text, keep_newlines=True))
    return Markup(",<wbr>").join(clean(text, keep_newlines=True).split(","))


def shortened(text: str) -> str:
    """Return text cut to a length if its beginning is enough."""
    return text if len(text) <= _WRITE_MAX_NAMES_LENGTH else f"{text[:_WRITE_MAX_NAMES_LENGTH]}…"


def _template(packages: Sequence[str], name: str) -> str | None:
    for package in packages:
        found = resources.files(package) / "templates" / name
        if found.is_file():
            return found.read_text(encoding="utf-8")
    return None
