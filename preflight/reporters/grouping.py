"""What is told together: evidence that many nodes share, outcomes of one reason or one area, and how many there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from preflight import catalog
from preflight.config_file import declared_by, unknown
from preflight.outcome import Evidence, Finding, Outcome, Severity
from preflight.report import Report
from preflight.reporters.clean import fold_nodes
from preflight.stakes import Saved

#: Of one finding so many things seen are shown.
_MOST_EVIDENCE = 8


def count(number: int, what: str) -> str:
    """`1 finding`, `3 findings`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def counted(findings: Sequence[Finding]) -> str:
    """`2 errors, 1 warning, 3 info`."""
    counts = Counter(finding.severity for finding in findings)
    said = [count(counts[s], s.value) for s in (Severity.ERROR, Severity.WARNING) if counts[s]]
    return ", ".join([*said, f"{counts[Severity.INFO]} info"] if counts[Severity.INFO] else said)


def mendable(safe: int, unsafe: int) -> str:
    """`2 can be mended by --fix, 1 by --fix --unsafe-fixes`."""
    said = [f"{safe} can be mended by --fix"] if safe else []
    if unsafe:
        said.append(f"{unsafe} {'' if safe else 'can be mended '}by --fix --unsafe-fixes")
    return ", ".join(said)


def saved_words(saved: Saved) -> str:
    """`4 nodes x 8 GPUs x 30 min = 16 GPU-hours, for which all would have waited because of WLD001`."""
    gpus = f" x {saved.gpus_per_node} GPUs" if saved.gpus_per_node else ""
    hours = _hours(saved.gpu_hours, "GPU-hour") if saved.gpu_hours else _hours(saved.node_hours, "node-hour")
    money = f", {saved.cost:,.2f} at {saved.price_per_gpu_hour:g} each" if saved.cost is not None else ""
    whole = f"{saved.nodes} nodes{gpus} x {_minutes(saved.timeout_s)} = {hours}{money}"
    return f"{whole}, for which all would have waited because of {', '.join(saved.findings)}"


def saved_whence(saved: Saved) -> tuple[str, ...]:
    """Where each number of that comes from, a line each."""
    gpus = (f"GPUs: {saved.gpus_from}",) if saved.gpus_from else ()
    return (f"nodes: {saved.nodes_from}", *gpus, f"{_minutes(saved.timeout_s)}: {saved.timeout_from}")


def _hours(number: float, what: str) -> str:
    """`5.33 GPU-hours`, `1 node-hour`, `1,024 GPU-hours`."""
    said = f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
    return f"{said} {what}{'' if said == '1' else 's'}"


def _minutes(seconds: int) -> str:
    """`15 min`, `90 s`."""
    return f"{seconds // 60} min" if seconds % 60 == 0 else f"{seconds} s"


def folded_evidence(evidence: Sequence[Evidence]) -> Sequence[Evidence]:
    """Evidence worth a line each; many nodes that saw the same are shown once."""
    seen: dict[tuple[str, str], list[Evidence]] = {}
    for item in evidence:
        seen.setdefault((item.observed, item.expected), []).append(item)
    folded: list[Evidence] = []
    for items in seen.values():
        first = items[0]
        nodes = tuple(dict.fromkeys(item.node for item in items if item.node))
        folded.append(
            Evidence(first.fact, first.observed, first.expected, first.command, fold_nodes(nodes), first.at_s)
        )
    return folded[:_MOST_EVIDENCE]


def why_idle(names: Sequence[str], report: Report) -> str:
    """Why a comment suppressed nothing; empty where its rule was simply not asked in this run."""
    if not names:
        return "nothing, because it names no rule; write `# preflight: ignore[ID] reason`"
    judged = {word for outcome in report.outcomes for word in (outcome.id, outcome.name)}
    if any(name.upper() in judged or name.lower() in judged for name in names):
        return f"{', '.join(names)}, which found nothing"
    missing = unknown((*names,), declared_by(report.configuration.site))
    return "; ".join(f"{name}, which is no rule or check{hint}" for name, hint in missing.items())


def by_reason(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """Outcomes that could not be told for one reason and of one thing, or by one rule, stand together."""
    by_rule: dict[tuple[object, ...], list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: (not o.required, o.id, o.reason)):
        by_rule.setdefault((outcome.required, outcome.id, outcome.reason), []).append(outcome)
    found: dict[tuple[object, ...], list[Outcome]] = {}
    for same in by_rule.values():
        about = tuple(dict.fromkeys(outcome.subject for outcome in same))
        found.setdefault((same[0].required, same[0].reason, about), []).extend(same)
    return list(found.values())


def by_area(outcomes: Sequence[Outcome]) -> list[tuple[str, list[Outcome]]]:
    """Outcomes by what their rules and checks are about, in words where the pack gives them."""
    # Lint knows nothing of checks, and need not wait until their pack is imported.
    has_checks = any(outcome.stage != "lint" for outcome in outcomes)
    titles = catalog.areas() if has_checks else catalog.areas(catalog.RULES)
    found: dict[str, list[Outcome]] = {}
    for outcome in sorted(outcomes, key=lambda o: o.id):
        found.setdefault(titles.get(outcome.id[:3], outcome.id[:3]), []).append(outcome)
    return sorted(found.items(), key=lambda pair: pair[0].lower())


def numbered(outcomes: Sequence[Outcome]) -> list[str]:
    """`BAT001 deepspeed-batch-product-mismatch (3)`: each rule, with how many subjects it passed."""
    numbers = Counter((outcome.id, outcome.name) for outcome in outcomes)
    return [f"{id} {name}" + (f" ({number})" if number > 1 else "") for (id, name), number in numbers.items()]
