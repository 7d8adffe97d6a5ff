"""The coverage section: what was checked and what was not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from preflight._util.sanitize import fold_nodes
from preflight.engine.report import Report
from preflight.model.findings import Location, Outcome, Status
from preflight.model.job import Span
from preflight.reporters.html.view import CoverageView, Entry, Group
from preflight.reporters.text.groups import by_area, by_reason, count, numbered, unused_comment_reasons

#: Titles of the stages in which something passed, in the order of the run.
_STAGES = {"lint": "In the files", "node": "On the nodes", "link": "Between nodes", "smoke": "In the smoke run"}
#: Number of entries shown per list.
_MAX_ENTRIES = 400


def coverage_view(report: Report) -> CoverageView:
    """Build the coverage section."""
    coverage = report.coverage
    return CoverageView(
        coverage.passed,
        coverage.failed,
        coverage.unknown,
        coverage.not_applicable,
        tuple(group for group in _unchecked_groups(report) if group.entries),
        tuple(group for group in _checked_groups(report) if group.entries),
    )


def _unchecked_groups(report: Report) -> Iterator[Group]:
    required = [outcome for outcome in report.coverage.unknown_outcomes if outcome.required]
    others = [outcome for outcome in report.coverage.unknown_outcomes if not outcome.required]
    note = "The verdict cannot be go until these are decided."
    yield _group("Required checks that could not be decided", _unknown(required), note, is_open=True)
    skipped = (Entry(stage.name, why=stage.skipped) for stage in report.run.stages if stage.skipped)
    yield _group("Stages that did not run", skipped, is_open=True)
    note = "The job does not require them. They are listed because they did not pass either."
    yield _group("Optional checks that could not be decided", _unknown(others), note)
    broken = (Entry(f"{item.where} of {item.plugin}", why=item.why) for item in report.coverage.broken)
    yield _group("Plugins that failed", broken, is_open=True)
    notes = (Entry(note.span.path, why=note.message, where=_at(note.span)) for job in report.jobs for note in job.notes)
    yield _group("Files that were read only in part", dict.fromkeys(notes))
    yield _group("Notes on waivers and comments", _notes(report))
    skipped_rules = [outcome for outcome in report.outcomes if outcome.status is Status.NOT_APPLICABLE]
    yield replace(_group("Not applicable to this job", _by_rule(skipped_rules)), bulk=True)


def _checked_groups(report: Report) -> Iterator[Group]:
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
    if len(listed) > _MAX_ENTRIES:
        note = f"{note} The first {_MAX_ENTRIES} of {len(listed):,}.".strip()
    return Group(f"{title} ({len(listed):,})", listed[:_MAX_ENTRIES], note, is_open)


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


def _notes(report: Report) -> Iterator[Entry]:
    for note in report.coverage.suppression_notes:
        yield Entry(note.message, where=_at(note.location) if note.location else "")
    for idle, why in unused_comment_reasons(report):
        yield Entry(f"suppresses {why}", where=f"{idle.path}:{idle.span.line}")
    for gone in report.coverage.unused_baseline:
        yield Entry(f"{gone.id} of the baseline no longer occurs", why=gone.message, where=gone.path)


def _at(place: Location | Span) -> str:
    return f"{place.path}:{place.line}"
