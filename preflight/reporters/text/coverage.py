"""The part below the findings: what was suppressed, what could not be decided, and what passed.

By default it gives only counts and subjects, with -v each rule or check, with -vv each of their outcomes.
"""

from __future__ import annotations

from collections import Counter

from preflight._util.sanitize import clean, fold_nodes
from preflight.engine.report import ExitCode, Report
from preflight.engine.suppress import BASELINE, FILE_IGNORES, SINCE
from preflight.model.findings import Status
from preflight.model.job import LeftOut
from preflight.reporters.text.groups import by_area, by_reason, count, numbered, unread_inputs, unused_comment_reasons
from preflight.reporters.text.sheet import Sheet

#: Number of undecided checks that are listed before the rest is counted.
_MAX_LISTED = 12
#: Number of folders with left-out files that are named.
_MAX_FOLDERS = 3
#: Suppressions that apply to many findings at once.
_IN_BULK = (BASELINE, SINCE, FILE_IGNORES)
#: What to print for a stage that does not apply to the job.
_NOT_APPLICABLE = {"link": "no links to check", "smoke": "no smoke run"}
#: Titles of the stages in which something passed, in the order of the run.
PASSED = {"lint": "in the files", "node": "on the nodes", "link": "between nodes", "smoke": "in the smoke run"}


def print_coverage(sheet: Sheet, report: Report) -> None:
    """Print everything between the findings and the verdict."""
    _suppressed(sheet, report)
    _undecided(sheet, report)
    if sheet.style.verbosity > 1:
        _other_outcomes(sheet, report)
    _passed(sheet, report)
    _left_out_files(sheet, report)


def _left_out_files(sheet: Sheet, report: Report) -> None:
    """Print the files that were skipped: one line per reason, with -v all folders."""
    by_reason: dict[str, list[LeftOut]] = {}
    for item in report.coverage.left_out:
        by_reason.setdefault(item.reason, []).append(item)
    for reason, same in by_reason.items():
        files = sum(item.files for item in same)
        least = "at least " if any(item.more for item in same) else ""
        shown = same if sheet.style.verbosity > 0 else same[:_MAX_FOLDERS]
        folders = ", ".join("." if item.path == "." else f"{item.path}/" for item in shown)
        rest = f" and {count(len(same) - len(shown), 'other folder')}" if len(same) > len(shown) else ""
        sheet.wrapped(f"left out: {least}{count(files, 'file')} in {folders}{rest} ({reason})", indent=0, hanging=2)


def _suppressed(sheet: Sheet, report: Report) -> None:
    # Individual suppressions are listed; bulk ones are counted.
    everything = sheet.style.verbosity > 0
    single = [finding for finding in report.suppressed if finding.suppressed_by not in _IN_BULK]
    listed = report.suppressed if everything else single[:_MAX_LISTED]
    for finding in listed:
        where = "".join(f" at {place.path}:{place.line}" for place in finding.locations[:1])
        on = f" on {fold_nodes(finding.nodes)}" if finding.nodes else ""
        sheet.wrapped(f"suppressed {finding.id}{where}{on}: {finding.suppression}", indent=0, hanging=2)
    bulk = Counter(f.suppression for f in report.suppressed if f.suppressed_by in _IN_BULK and not everything)
    if not everything and len(single) > _MAX_LISTED:
        bulk["more suppressed by comments or waivers"] = len(single) - _MAX_LISTED
    for why, number in bulk.items():
        sheet.wrapped(f"{count(number, 'finding')} {why} (-v lists them)", indent=0, hanging=2)
    for note in report.coverage.suppression_notes:
        place = f"{note.location.path}:{note.location.line}: " if note.location else ""
        sheet.note(f"{place}{note.message}")
    for idle, why in unused_comment_reasons(report):
        sheet.note(f"{idle.path}:{idle.span.line} suppresses {why}")
    for broken in report.coverage.broken:
        sheet.note(f"{broken.where} of {broken.plugin} cannot be used: {broken.why}")


def _undecided(sheet: Sheet, report: Report) -> None:
    for note in unread_inputs(report)[:_MAX_LISTED]:
        sheet.wrapped(f"not judged: {clean(note.message)}", indent=0, hanging=2)
    unknown_outcomes = report.coverage.unknown_outcomes
    if not unknown_outcomes:
        return
    required = [outcome for outcome in unknown_outcomes if outcome.required]
    # If nothing was judged, the reason for that is the only content.
    short = unknown_outcomes if report.exit_code == ExitCode.NOT_JUDGED else required
    listed = unknown_outcomes if sheet.style.verbosity > 0 else short[:_MAX_LISTED]
    if listed:
        sheet.line("could not be decided:", style="bold")
        for same in by_reason(listed):
            names = ", ".join(dict.fromkeys(f"{o.id} {o.name}" for o in same))
            subjects = tuple(dict.fromkeys(o.subject for o in same))
            sheet.wrapped(f"{names} ({fold_nodes(subjects)}): {same[0].reason}", hanging=2)
            for location in dict.fromkeys(place for o in same for place in o.locations[:1]):
                sheet.line(f"  --> {location.path}:{location.line}:{location.column}", style="blue")
    rest = len(unknown_outcomes) - len(listed)
    if rest:
        more = "more " if listed else ""
        them = "it" if rest == 1 else "them"
        sheet.wrapped(
            f"{rest} {more}optional {'check' if rest == 1 else 'checks'} could not be decided (-v lists {them})",
            indent=0,
        )
    sheet.line()


def _passed(sheet: Sheet, report: Report) -> None:
    for stage, title in PASSED.items():
        here = [o for o in report.outcomes if o.stage == stage and o.status is Status.PASS]
        if not here:
            continue
        if sheet.style.verbosity > 0:
            sheet.line(f"passed {title}:", style="bold")
            for area, same in by_area(here):
                sheet.wrapped(f"{area}: {', '.join(numbered(same))}", hanging=2)
        else:
            rules = count(len({outcome.id for outcome in here}), "rule" if stage == "lint" else "check")
            about = ", ".join(area for area, _ in by_area(here))
            sheet.wrapped(f"passed {title}: {rules} on {about}", indent=0, hanging=2)
        if stage in ("link", "smoke"):
            for subject in dict.fromkeys(outcome.subject for outcome in here):
                sheet.wrapped(subject)
    _skipped_stages(sheet, report)


def _skipped_stages(sheet: Sheet, report: Report) -> None:
    """Print that a whole stage does not apply, because readers expect it."""
    if not any(outcome.status is Status.PASS for outcome in report.outcomes):
        return
    for stage, what in _NOT_APPLICABLE.items():
        here = [outcome for outcome in report.outcomes if outcome.stage == stage]
        if here and all(outcome.status is Status.NOT_APPLICABLE for outcome in here):
            reasons = "; ".join(dict.fromkeys(outcome.reason for outcome in here if outcome.reason))
            sheet.wrapped(f"{what}: {reasons}", indent=0, hanging=2)


def _other_outcomes(sheet: Sheet, report: Report) -> None:
    """Print every outcome that is not a finding; outcomes of one rule with one reason share a line."""
    same: dict[tuple[str, str, str, str], list[str]] = {}
    for outcome in report.outcomes:
        if outcome.status in (Status.PASS, Status.NOT_APPLICABLE):
            key = (outcome.id, outcome.name, outcome.status.value, outcome.reason)
            same.setdefault(key, []).append(outcome.subject)
    for (id, name, status, reason), subjects in same.items():
        about = fold_nodes(tuple(dict.fromkeys(subjects)))
        sheet.wrapped(f"{status} {id} {name} ({about})" + (f": {reason}" if reason else ""), indent=0, hanging=2)
    if same:
        sheet.line()
