"""From a report to the page: every section in the order in which somebody with a job to submit needs it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from preflight.hosts import hosts_of
from preflight.report import Report
from preflight.reporters.clean import fold_nodes
from preflight.reporters.grouping import count
from preflight.reporters.html.coverage import coverage_view
from preflight.reporters.html.drawing.draw import drawings_of
from preflight.reporters.html.drawing.numbers import told
from preflight.reporters.html.findings import by_rule, finding_view
from preflight.reporters.html.nodes import EXHIBIT, nodes_view
from preflight.reporters.html.verdict import first_steps, verdict_view
from preflight.reporters.html.view import Fact, FindingView, Page, Section, Stage

#: From so many findings on, they are counted by rule first.
_MANY_FINDINGS = 12
_SEVERITIES = ("error", "warning", "info")


def page_of(report: Report) -> Page:
    """The page of a report. Pure: the same report gives the same page."""
    verdict = verdict_view(report)
    steps, more_steps = first_steps(report)
    findings = _numbered(tuple(finding_view(finding) for finding in report.findings))
    nodes = nodes_view(report)
    of_nodes = nodes is not None
    drawings = drawings_of([e for e in report.exhibits if not (of_nodes and e.id == EXHIBIT)])
    job = _job(report)
    sections = [Section("findings", "Findings", str(len(findings)))]
    if nodes is not None:
        sections.append(Section("nodes", "Nodes", f"{len(hosts_of(report).passing)}/{len(report.nodes)}"))
    sections.extend(Section(_anchor(heading), heading) for heading, _ in drawings)
    sections.append(Section("coverage", "Coverage", ""))
    if report.suppressed:
        sections.append(Section("suppressed", "Suppressed", str(len(report.suppressed))))
    sections.append(Section("run", "This run", ""))
    return Page(
        title=f"{verdict.word}: {job}",
        job=job,
        verdict=verdict,
        about=tuple(_about(report)),
        steps=steps,
        more_steps=more_steps,
        findings=findings,
        severities=tuple((name, sum(f.severity == name for f in findings)) for name in _SEVERITIES),
        by_rule=by_rule(findings) if len(findings) > _MANY_FINDINGS else None,
        nodes=nodes,
        drawings=drawings,
        coverage=coverage_view(report),
        suppressed=_numbered(tuple(finding_view(finding) for finding in report.suppressed), "suppressed-"),
        notes=tuple(_notes(report)),
        files=tuple(Fact(file.path, f"{file.kind}, {told(file.size_bytes, 'bytes')}") for file in report.inputs),
        stages=tuple(
            Stage(stage.name, told(stage.finished_s - stage.started_s, "s"), stage.skipped)
            for stage in report.run.stages
        ),
        tool=f"{report.tool.name} {report.tool.version}",
        sections=tuple(sections),
    )


def _numbered(findings: Sequence[FindingView], before: str = "") -> tuple[FindingView, ...]:
    """The same with anchors that are all different: one line may stand twice in a file, and be wrong twice."""
    seen: Counter[str] = Counter()
    found = []
    for finding in findings:
        seen[finding.anchor] += 1
        again = f"-{seen[finding.anchor]}" if seen[finding.anchor] > 1 else ""
        found.append(replace(finding, anchor=f"{before}{finding.anchor}{again}"))
    return tuple(found)


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def _job(report: Report) -> str:
    names = [job.name for job in report.jobs]
    if not names:
        return "no job"
    return names[0] if len(names) == 1 else f"{names[0]} and {count(len(names) - 1, 'other job')}"


def _about(report: Report) -> list[Fact]:
    """What was looked at, over which way and when: below the verdict, so that nobody reads another job's report."""
    run = report.run
    found = [Fact("Job", _job(report)), Fact("Asked for", f"preflight {run.verb}")]
    if report.nodes:
        answered = tuple(record.node.name for record in report.nodes if not record.problem)
        silent = tuple(record.node.name for record in report.nodes if record.problem)
        over = f" over {run.executor}" if run.executor else ""
        text = f"{len(answered):,} of {len(report.nodes):,} answered{over}"
        if silent:
            text += f"; silent: {fold_nodes(silent)}"
        found.append(Fact("Nodes", text))
    if run.origin is not None:
        because = f"; {run.executor} because {run.origin.because}" if run.origin.because else ""
        found.append(Fact("Nodes from", run.origin.problem or f"{run.origin.words}{because}"))
    if run.context:
        found.append(Fact("Ranks run in", run.context))
    found.append(Fact("Files", f"{count(len(report.inputs), 'file')} in {count(len(report.jobs), 'job')}"))
    if run.created:
        found.append(Fact("Recorded", run.created.replace("T", " ").replace("+00:00", " UTC")))
    return found


def _notes(report: Report) -> list[str]:
    """What a reader should know of the grounds of the verdict."""
    found = list(report.run.origin.notes) if report.run.origin is not None else []
    if report.inputs and not report.findings and not any(job.launches for job in report.jobs):
        found.append(
            "No launch was recognised in these files, so there was little to judge; name the script that starts the "
            "ranks (torchrun, srun, mpirun, deepspeed, accelerate ...) with them."
        )
    faulty = {place.path for finding in report.findings for place in finding.locations}
    for job in report.jobs:
        if job.probable and any(file.path in faulty for file in job.files):
            found.append(
                f"{job.name} were taken for one job by guess, so what is wrong between them counts as a warning; name "
                "the files together to have them judged as one job."
            )
    return found
