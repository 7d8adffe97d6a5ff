"""What was looked at and what was not: a page full of green says nothing without it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from preflight.job import Span
from preflight.outcome import Location, Outcome, Status
from preflight.report import Report
from preflight.reporters.clean import fold_nodes
from preflight.reporters.grouping import by_area, by_reason, count, numbered, why_idle
from preflight.reporters.html.view import CoverageView, Entry, Group

#: Where something passed, in the order of the run.
_STAGES = {"lint": "In the files", "node": "On the nodes", "link": "Between nodes", "smoke": "In the smoke run"}
#: Of one list so many are shown.
_MOST_ENTRIES = 400


def coverage_view(report: Report) -> CoverageView:
    """The section about coverage."""
    coverage = report.coverage
    return CoverageView(
        coverage.passed,
        coverage.failed,
        coverage.unknown,
        coverage.not_applicable,
        tuple(group for group in _not_looked_at(report) if group.entries),
        tuple(group for group in _looked_at(report) if group.entries),
    )


def _not_looked_at(report: Report) -> Iterator[Group]:
    required = [outcome for outcome in report.coverage.not_told if outcome.required]
    others = [outcome for outcome in report.coverage.not_told if not outcome.required]
    note = "The verdict is not go until these can be told."
    yield _group("Had to be told and could not", _unknown(required), note, is_open=True)
    skipped = (Entry(stage.name, why=stage.skipped) for stage in report.run.stages if stage.skipped)
    yield _group("Stages that did not take place", skipped, is_open=True)
    note = "Nothing in the job made an answer necessary; they are here so that nobody takes them for passed."
    yield _group("Could not be told and did not have to be", _unknown(others), note)
    broken = (Entry(f"{item.where} of {item.plugin}", why=item.why) for item in report.coverage.broken)
    yield _group("Could not be loaded or broke", broken, is_open=True)
    notes = (Entry(note.span.path, why=note.message, where=_at(note.span)) for job in report.jobs for note in job.notes)
    yield _group("Files of which less is known", dict.fromkeys(notes))
    yield _group("Remarks on waivers and comments", _remarks(report))
    skipped_rules = [outcome for outcome in report.outcomes if outcome.status is Status.NOT_APPLICABLE]
    yield replace(_group("Do not apply to this job", _by_rule(skipped_rules)), bulk=True)


def _looked_at(report: Report) -> Iterator[Group]:
    for stage, title in _STAGES.items():
        here = [o for o in report.outcomes if o.stage == stage and o.status is Status.PASS]
        what = "rule" if stage == "lint" else "check"
        title = f"{title}: {count(len({o.id for o in here}), what)}"
        entries: list[Entry] = [Entry(area, why=", ".join(numbered(same))) for area, same in by_area(here)]
        if stage in ("link", "smoke"):
            entries += [Entry(subject) for subject in dict.fromkeys(outcome.subject for outcome in here)]
        yield Group(title, tuple(entries))


def _group(
    title: str, entries: Sequence[Entry] | Iterator[Entry] | dict[Entry, None], note: str = "", *, is_open: bool = False
) -> Group:
    listed = tuple(entries)
    if len(listed) > _MOST_ENTRIES:
        note = f"{note} The first {_MOST_ENTRIES} of {len(listed):,}.".strip()
    return Group(f"{title} ({len(listed):,})", listed[:_MOST_ENTRIES], note, is_open)


def _unknown(outcomes: Sequence[Outcome]) -> Iterator[Entry]:
    for same in by_reason(outcomes):
        names = ", ".join(dict.fromkeys(f"{outcome.id} {outcome.name}" for outcome in same))
        subjects = fold_nodes(tuple(dict.fromkeys(outcome.subject for outcome in same)))
        places = dict.fromkeys(_at(place) for outcome in same for place in outcome.locations[:1])
        yield Entry(names, subjects, same[0].reason, ", ".join(places), subjects)


def _by_rule(outcomes: Sequence[Outcome]) -> Iterator[Entry]:
    same: dict[tuple[str, str, str], list[str]] = {}
    for outcome in sorted(outcomes, key=lambda outcome: outcome.id):
        same.setdefault((outcome.id, outcome.name, outcome.reason), []).append(outcome.subject)
    for (id, name, reason), subjects in same.items():
        yield Entry(f"{id} {name}", fold_nodes(tuple(dict.fromkeys(subjects))), reason)


def _remarks(report: Report) -> Iterator[Entry]:
    for remark in report.coverage.remarks:
        yield Entry(remark.message, where=_at(remark.location) if remark.location else "")
    for idle in report.coverage.idle_suppressions:
        why = why_idle(idle.names, report)
        if why:
            yield Entry(f"suppresses {why}", where=f"{idle.path}:{idle.span.line}")
    for gone in report.coverage.idle_baseline:
        yield Entry(f"{gone.id} of the baseline is gone", why=gone.message, where=gone.path)


def _at(place: Location | Span) -> str:
    return f"{place.path}:{place.line}"
