"""Counts and groups for reports: evidence that many nodes share, outcomes by reason or area, numbers of findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence

from preflight._util.sanitize import clean, fold_nodes
from preflight._util.sequences import grouped
from preflight.config.resolve import unknown_names
from preflight.engine.report import AvoidedCost, Report
from preflight.model.findings import Evidence, Finding, Outcome, Severity, VerdictKind
from preflight.model.job import Note, Suppression
from preflight.plugins import registry
from preflight.plugins.installed import declared_by

#: Number of observations shown per finding.
_MAX_EVIDENCE = 8
#: Largest number of unused comments that are listed, and of rules listed for each.
_MAX_UNUSED = 50
_MAX_NAMES = 20
#: Smallest number of findings with the same message about different nodes that are shown as one.
_MIN_ALIKE = 3
_NUMBER = re.compile(r"\d[\d.,]*")


def count(number: int, what: str) -> str:
    """Return `1 finding` or `3 findings`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def counted(findings: Sequence[Finding]) -> str:
    """Return `2 errors, 1 warning, 3 info`."""
    counts = Counter(finding.severity for finding in findings)
    parts = [count(counts[s], s.value) for s in (Severity.ERROR, Severity.WARNING) if counts[s]]
    return ", ".join([*parts, f"{counts[Severity.INFO]} info"] if counts[Severity.INFO] else parts)


def fixable(safe: int, unsafe: int) -> str:
    """Return `2 fixable with --fix, 1 more with --fix --unsafe-fixes`."""
    parts = [f"{safe} fixable with --fix"] if safe else []
    if unsafe:
        parts.append(f"{unsafe} {'more' if safe else 'fixable'} with --fix --unsafe-fixes")
    return ", ".join(parts)


def undecided(required: int) -> str:
    """Return `1 required check could not be decided`."""
    return f"{count(required, 'required check')} could not be decided"


def avoided_cost(saved: AvoidedCost) -> str:
    """Return `16 GPU-hours of waiting (4 nodes x 8 GPUs x 30 min, WLD001)`."""
    gpus = f" x {saved.gpus_per_node} GPUs" if saved.gpus_per_node else ""
    hours = _hours(saved.gpu_hours, "GPU-hour") if saved.gpu_hours else _hours(saved.node_hours, "node-hour")
    money = f" worth {saved.cost:,.2f} at {saved.price_per_gpu_hour:g} each" if saved.cost is not None else ""
    product = f"{saved.nodes} nodes{gpus} x {_minutes(saved.timeout_s)}"
    return f"{hours} of waiting{money} ({product}, {', '.join(saved.findings)})"


def avoided_cost_sources(saved: AvoidedCost) -> tuple[str, ...]:
    """Return the source of each number of the avoided cost, one line each."""
    gpus = (f"GPUs: {saved.gpus_from}",) if saved.gpus_from else ()
    return (f"nodes: {saved.nodes_from}", *gpus, f"{_minutes(saved.timeout_s)}: {saved.timeout_from}")


def _hours(number: float, what: str) -> str:
    """Return `5.33 GPU-hours`, `1 node-hour` or `1,024 GPU-hours`."""
    digits = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{digits} {what}{'' if digits == '1' else 's'}"


def _minutes(seconds: int) -> str:
    """Return `15 min` or `90 s`."""
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds} s"


def fold_evidence(evidence: Sequence[Evidence]) -> Sequence[Evidence]:
    """Fold evidence that several nodes share into one item each."""
    seen = grouped(((item.observed, item.expected), item) for item in evidence)
    folded: list[Evidence] = []
    for items in seen.values():
        first = items[0]
        nodes = tuple(dict.fromkeys(item.node for item in items if item.node))
        folded.append(
            Evidence(first.fact, first.observed, first.expected, first.command, fold_nodes(nodes), first.at_s)
        )
    return folded[:_MAX_EVIDENCE]


def group_alike(findings: Sequence[Finding]) -> list[list[Finding]]:
    """Group findings that differ only in nodes and perhaps numbers; small groups are split again."""
    groups = grouped(
        (number if len(finding.nodes) != 1 else _without_node(finding, _NUMBER), finding)
        for number, finding in enumerate(findings)
    )
    found: list[list[Finding]] = []
    for group in groups.values():
        found.extend([group] if len(group) >= _MIN_ALIKE else [[finding] for finding in group])
    order = {id(finding): number for number, finding in enumerate(findings)}
    return sorted(found, key=lambda group: order[id(group[0])])


def differs_only_in_node(one: Finding, other: Finding) -> bool:
    """Return whether two findings about one node each differ only in the node."""
    return _without_node(one) == _without_node(other)


def _without_node(finding: Finding, numbers: re.Pattern[str] | None = None) -> tuple[object, ...]:
    """Return a comparison key of a finding, with placeholders for its node and for matches of `numbers`."""
    node = re.compile(rf"(?<![\w-]){re.escape(finding.nodes[0])}(?![\w-])")

    def plain(text: str) -> str:
        text = node.sub("<node>", text)
        return numbers.sub("<number>", text) if numbers is not None else text

    return (finding.id, finding.severity, plain(finding.message), plain(finding.remedy), finding.locations)


def unused_comment_reasons(report: Report) -> Iterator[tuple[Suppression, str]]:
    """Yield the comments that suppressed nothing, and why, if their rules ran; limited for hostile files."""
    judged = {word for outcome in report.outcomes for word in (outcome.id, outcome.name)}
    reasons: dict[tuple[str, ...], str] = {}
    total = 0
    for idle in report.coverage.unused_suppressions:
        names = idle.names[:_MAX_NAMES]
        if names not in reasons:
            if len(reasons) == _MAX_UNUSED:
                return
            reasons[names] = _why_unused(names, judged, report)
        if reasons[names]:
            yield idle, reasons[names]
            total += 1
        if total == _MAX_UNUSED:
            return


def _why_unused(names: Sequence[str], judged: Container[str], report: Report) -> str:
    """Return the reason why a comment suppressed nothing; empty if its rule did not run."""
    if not names:
        return "nothing, because it names no rule; write `# preflight: ignore[ID] reason`"
    if any(name.upper() in judged or name.lower() in judged for name in names):
        return f"{', '.join(names)}, which found nothing"
    missing = unknown_names((*names,), declared_by(report.configuration.site))
    return "; ".join(f"{name}, which is not a rule or check{hint}" for name, hint in missing.items())


def by_reason(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Group undecided outcomes with the same reason and subject, or of the same rule."""
    ordered = sorted(outcomes, key=lambda o: (not o.required, o.id, o.reason))
    by_rule = grouped(((outcome.required, outcome.id, outcome.reason), outcome) for outcome in ordered)
    found: dict[tuple[object, ...], list[Outcome]] = {}
    for same in by_rule.values():
        about = tuple(dict.fromkeys(outcome.subject for outcome in same))
        found.setdefault((same[0].required, same[0].reason, about), []).extend(same)
    return list(found.values())


def by_area(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    """Group outcomes by area. Each group starts with the area's title if its pack defines one."""
    # Lint has no checks, so their pack need not be imported.
    has_checks = any(outcome.stage != "lint" for outcome in outcomes)
    titles = registry.areas() if has_checks else registry.areas(registry.RULES)
    ordered = sorted(outcomes, key=lambda o: o.id)
    found = grouped((titles.get(outcome.id[:3], outcome.id[:3]), outcome) for outcome in ordered)
    return sorted(found.items(), key=lambda pair: pair[0].lower())


def numbered(outcomes: Sequence[Outcome]) -> list[str]:
    """Return `BAT001 deepspeed-batch-product-mismatch (3)`: each rule with the number of subjects that passed."""
    numbers = Counter((outcome.id, outcome.name) for outcome in outcomes)
    return [f"{id} {name}" + (f" ({number})" if number > 1 else "") for (id, name), number in numbers.items()]


def why_not_judged(report: Report) -> str:
    """Return the reason why the job was not judged, and the findings in its files."""
    since = report.configuration.since
    if since is not None and since.unchanged_jobs and not report.jobs:
        return f"the change since {clean(since.revision)} touches none of {count(since.unchanged_jobs, 'job')}"
    if not report.inputs:
        return "no launch script or configuration found in the given paths"
    found = counted(report.findings) or "nothing"
    return (
        f"no command that starts ranks was recognized; rules about single files found {found} in "
        f"{count(len(report.inputs), 'file')}. If another file starts the ranks, pass it too"
    )


def unknown_sizes(report: Report) -> str:
    """Return the part of the headline about launches with an unknown number of ranks; empty if there are none."""
    understood = report.understood
    number = understood.worlds_symbolic + understood.worlds_unknown
    if not number:
        return ""
    if number == understood.launches == 1:
        return "; the number of ranks is unknown"
    return f"; the number of ranks is unknown for {number} of {understood.launches} launches"


def launched_by_documents(report: Report) -> str:
    """Return the part of the headline about Markdown documents that the launches come from; empty if there are none."""
    paths = {launch.span.path for job in report.jobs for launch in job.launches}
    documents = sorted(path for path in paths if path.lower().endswith((".md", ".markdown")))
    if not documents:
        return ""
    others = f" and {count(len(documents) - 1, 'other document')}" if len(documents) > 1 else ""
    return f"; launched as in {clean(documents[0])}{others}"


def compared_with(report: Report) -> str:
    """Return the part of the headline about the version that the report is compared with; empty if there is none."""
    since = report.configuration.since
    if since is None or not report.jobs:
        return ""
    unchanged = f", {count(since.unchanged_jobs, 'unchanged job')} not judged" if since.unchanged_jobs else ""
    return f"; only findings that are new since {clean(since.revision)} ({since.commit[:12]}){unchanged}"


def unread_inputs(report: Report) -> tuple[Note, ...]:
    """Return notes about selected inputs that were not read and that no outcome mentions (as with `--select`)."""
    if report.verdict is not VerdictKind.INCOMPLETE:
        return ()
    reasons = {outcome.reason for outcome in report.coverage.unknown_outcomes if outcome.required}
    notes = (note for job in report.jobs for note in job.notes if note.required and note.message not in reasons)
    return tuple(dict.fromkeys(notes))


def why_incomplete(report: Report) -> list[str]:
    """Return one line per reason, files first: the location, and what was not read or could not be decided."""
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    lines = [f"{note.span.path}:{note.span.line}: {note.message}" for note in unread_inputs(report)]
    lines += [f"{item.where} of {item.plugin} cannot be used: {item.why}" for item in report.coverage.broken]
    lines += [f"{record.node.name}: {record.problem}" for record in report.nodes if record.problem and not required]
    for outcome in sorted(required, key=lambda outcome: not outcome.id.startswith("FIL")):
        lines.append(f"{outcome.id} {outcome.subject}: {outcome.reason.splitlines()[0] if outcome.reason else ''}")
    return list(dict.fromkeys(lines))
