"""What a person reads below the findings: what was suppressed, what could not be told, what was looked at and is fine.

The more is asked for, the more of it is named: by default only how much there is and what it was about, with -v each
rule or check, with -vv each of their answers.
"""

from __future__ import annotations

from collections import Counter

from preflight.outcome import Status
from preflight.report import ExitCode, Report
from preflight.reporters.clean import fold_nodes
from preflight.reporters.grouping import by_area, by_reason, count, numbered, why_idle
from preflight.reporters.sheet import Sheet
from preflight.suppress import BASELINE, FILE_IGNORES

#: So many things that could not be told are listed one by one before the rest is counted.
_MOST_LISTED = 12
#: What suppresses many findings at once.
_IN_BULK = (BASELINE, FILE_IGNORES)
#: How a stage is called of which nothing applies to the job.
_WITHOUT = {"link": "nothing to look at between nodes", "smoke": "no smoke run"}
#: Where something passed, in the order of the run.
PASSED = {"lint": "in the files", "node": "on the nodes", "link": "between nodes", "smoke": "in the smoke run"}


def print_coverage(sheet: Sheet, report: Report) -> None:
    """Everything below the findings but the verdict."""
    _suppressed(sheet, report)
    _not_told(sheet, report)
    if sheet.style.verbosity > 1:
        _each(sheet, report)
    _passed(sheet, report)


def _suppressed(sheet: Sheet, report: Report) -> None:
    # What was decided for one place or for a reason is listed; what was swept aside in bulk is counted.
    everything = sheet.style.verbosity > 0
    single = [finding for finding in report.suppressed if finding.suppressed_by not in _IN_BULK]
    listed = report.suppressed if everything else single[:_MOST_LISTED]
    for finding in listed:
        where = "".join(f" at {place.path}:{place.line}" for place in finding.locations[:1])
        on = f" on {fold_nodes(finding.nodes)}" if finding.nodes else ""
        sheet.wrapped(f"suppressed {finding.id}{where}{on}: {finding.suppression}", indent=0, hanging=2)
    bulk = Counter(f.suppression for f in report.suppressed if f.suppressed_by in _IN_BULK and not everything)
    if not everything and len(single) > _MOST_LISTED:
        bulk["more suppressed by comments or waivers"] = len(single) - _MOST_LISTED
    for why, number in bulk.items():
        sheet.wrapped(f"{count(number, 'finding')} {why} (-v lists them)", indent=0, hanging=2)
    for remark in report.coverage.remarks:
        place = f"{remark.location.path}:{remark.location.line}: " if remark.location else ""
        sheet.note(f"{place}{remark.message}")
    for idle in report.coverage.idle_suppressions:
        why = why_idle(idle.names, report)
        if why:
            sheet.note(f"{idle.path}:{idle.span.line} suppresses {why}")
    for broken in report.coverage.broken:
        sheet.note(f"{broken.where} of {broken.plugin} cannot be used: {broken.why}")


def _not_told(sheet: Sheet, report: Report) -> None:
    not_told = report.coverage.not_told
    if not not_told:
        return
    required = [outcome for outcome in not_told if outcome.required]
    # Where there was nothing to do, why that is so is all there is to say.
    short = not_told if report.exit_code == ExitCode.NOTHING_TO_DO else required
    listed = not_told if sheet.style.verbosity > 0 else short[:_MOST_LISTED]
    if listed:
        sheet.line("could not be told:", style="bold")
        for same in by_reason(listed):
            names = ", ".join(dict.fromkeys(f"{o.id} {o.name}" for o in same))
            subjects = tuple(dict.fromkeys(o.subject for o in same))
            sheet.wrapped(f"{names} ({fold_nodes(subjects)}): {same[0].reason}", hanging=2)
            for location in dict.fromkeys(place for o in same for place in o.locations[:1]):
                sheet.line(f"  --> {location.path}:{location.line}:{location.column}", style="blue")
    rest = len(not_told) - len(listed)
    if rest:
        more = " more" if listed else ""
        them = "it" if rest == 1 else "them"
        sheet.wrapped(f"{rest}{more} could not be told and did not have to be (-v lists {them})", indent=0)
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
    _left_out(sheet, report)


def _left_out(sheet: Sheet, report: Report) -> None:
    """A whole stage that does not apply to the job is said, because a reader would take it for granted."""
    if not any(outcome.status is Status.PASS for outcome in report.outcomes):
        return
    for stage, what in _WITHOUT.items():
        here = [outcome for outcome in report.outcomes if outcome.stage == stage]
        if here and all(outcome.status is Status.NOT_APPLICABLE for outcome in here):
            reasons = "; ".join(dict.fromkeys(outcome.reason for outcome in here if outcome.reason))
            sheet.wrapped(f"{what}: {reasons}", indent=0, hanging=2)


def _each(sheet: Sheet, report: Report) -> None:
    """Every answer that was no finding; those of one rule for one reason together."""
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
