"""A diagnosis as text: which process failed first, the decisive line, its meaning, the remedy, and the consequences."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from preflight._util.sanitize import clean
from preflight.commands.diagnose.diagnosis import Answer, Cause, Certainty, Diagnosis, Effect, Line, LogProcess, Pointer
from preflight.commands.diagnose.hangs import format_ranks
from preflight.reporters.base import Style
from preflight.reporters.text.full_report import Sheet
from preflight.reporters.text.groups import count

_MAX_EFFECTS = 8
_MAX_LOGS = 12
_HOW_SURE = {Certainty.NAMED: "", Certainty.LIKELY: "most likely: ", Certainty.OPEN: ""}


def page(diagnosis: Diagnosis, style: Style) -> str:
    """Return the diagnosis as text, with ANSI colours if `style` requests them."""
    sheet = Sheet(style)
    if diagnosis.cause is not None:
        _print_cause(sheet, diagnosis.cause)
        for other in diagnosis.others:
            _print_other_cause(sheet, other)
    elif diagnosis.answer is Answer.COMPLETED and diagnosis.completion is not None:
        sheet.line(Text("the run reports that it completed", style="bold green"))
        _print_line(sheet, diagnosis.completion)
        sheet.line()
    elif diagnosis.answer is not Answer.COMPLETED:
        _print_unknown(sheet, diagnosis)
    if diagnosis.answer is Answer.NO_RUN:
        for effect in diagnosis.effects:
            what = effect.meaning if effect.is_foreign else f"{effect.symptom}, if it were a training run"
            sheet.wrapped(f"{count(effect.count, 'line')}: {what}", indent=2, hanging=4)
            _print_line(sheet, effect.line)
    elif diagnosis.effects:
        culprits = diagnosis.cause.members if diagnosis.cause is not None else ()
        _print_effects(sheet, diagnosis.effects, culprits)
    if diagnosis.survived:
        _print_survived(sheet, diagnosis.survived)
    for note in diagnosis.notes:
        sheet.note(note)
    if style.verbosity > 0:
        _print_logs(sheet, diagnosis)
    sheet.line(_last_line(diagnosis))
    return sheet.text()


def _print_cause(sheet: Sheet, cause: Cause) -> None:
    head = Text()
    verb = "is out of step" if cause.is_hang else "failed first"
    head.append(f"{format_members(cause.members[:1])} {verb}" if cause.members else "the run failed", style="bold red")
    head.append(f": {cause.symptom}", style="bold")
    if cause.line.time:
        head.append(f"  ({clean(cause.line.time)})")
    sheet.line(head)
    if len(cause.members) > 1:
        sheet.wrapped(f"the same happened on {format_members(cause.members[1:])}", indent=2)
    _print_line(sheet, cause.line)
    if cause.frame:
        sheet.wrapped(f"{'at' if cause.is_hang else 'raised at'} {clean(cause.frame)}", indent=6)
    for text in cause.evidence:
        sheet.wrapped(clean(text), indent=6)
    sheet.wrapped(f"{_HOW_SURE[cause.certainty]}{cause.meaning}", label="means:  ", style="yellow")
    sheet.wrapped(cause.remedy, label="do:     ", style="green")
    _print_pointers(sheet, cause.found_by, cause.beyond)
    sheet.line()


def _print_other_cause(sheet: Sheet, cause: Cause) -> None:
    who = f" {format_members(cause.members)}" if cause.members else ""
    sheet.wrapped(f"also{who}: {cause.symptom}. {cause.meaning}", indent=0, hanging=2)
    _print_line(sheet, cause.line)
    _print_pointers(sheet, cause.found_by, "")
    sheet.line()


_WITHOUT_CAUSE = {
    Answer.UNKNOWN: "the run failed, but no line of these logs gives a reason",
    Answer.NO_END: "no line shows that the run failed or completed: it may still be running, have stopped without a "
    "message, or have more logs than these",
    Answer.NO_RUN: "no sign of a training run: these logs name no launcher, framework or rank",
    Answer.UNREADABLE: "these logs are empty, binary or truncated, so nothing is known about the run",
}


def _print_survived(sheet: Sheet, effects: Sequence[Effect]) -> None:
    sheet.line(Text("errors after which the run continued", style="bold"))
    for effect in effects if sheet.style.verbosity > 0 else effects[:_MAX_EFFECTS]:
        who = format_members(effect.members)
        sheet.wrapped(
            f"{effect.symptom}{f' ({who})' if who else ''}: {effect.line.path}:{effect.line.line}",
            hanging=2,
        )
    sheet.line()


def _print_unknown(sheet: Sheet, diagnosis: Diagnosis) -> None:
    suspect = diagnosis.suspect
    if suspect is None:
        sheet.line(Text(_WITHOUT_CAUSE[diagnosis.answer], style="bold yellow"))
    else:
        head = Text()
        who = format_members((suspect.member, *suspect.others))
        head.append(f"no log gives the reason; check {who} first", style="bold yellow")
        sheet.line(head)
        sheet.wrapped(f"because {suspect.because}")
        if suspect.line is not None:
            sheet.wrapped("its last line, or the last line about it:")
            _print_line(sheet, suspect.line)
    if diagnosis.last_words:
        sheet.wrapped("the last lines that look like errors:")
        for line in diagnosis.last_words:
            _print_line(sheet, line)
    sheet.line()


def _print_line(sheet: Sheet, line: Line) -> None:
    where = Text("  --> ", style="blue")
    where.append(f"{clean(line.path)}:{line.line}", style="none")
    sheet.line(where)
    sheet.line(Text(f"      {_cut(clean(line.text).strip(), 3 * sheet.style.width)}"))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _print_pointers(sheet: Sheet, pointers: Sequence[Pointer], beyond: str) -> None:
    lint = [pointer for pointer in pointers if pointer.stage == "lint"]
    live = [pointer for pointer in pointers if pointer.stage != "lint"]
    parts = [
        f"preflight {verb} ({', '.join(f'{item.id} {item.name}' for item in items)})"
        for verb, items in (("lint", lint), ("check", live))
        if items
    ]
    if parts:
        sheet.wrapped(f"found before the run by {' and '.join(parts)}", label="before: ", style="cyan")
    elif beyond:
        sheet.wrapped(f"preflight does not check this: {beyond}", label="before: ", style="cyan")


def _print_effects(sheet: Sheet, effects: Sequence[Effect], culprits: Sequence[LogProcess]) -> None:
    """Print which processes failed as a consequence, then one line per symptom; its meaning only with -v."""
    own = {member.rank for member in culprits}
    victims = [member for effect in effects for member in effect.members if member.rank not in own]
    head = Text("what followed", style="bold")
    if culprits and (who := format_members([member for member in victims if member.rank is not None])):
        head = Text(f"{who} failed as a consequence", style="bold")
    sheet.line(head)
    shown = effects if sheet.style.verbosity > 0 else effects[:_MAX_EFFECTS]
    for effect in shown:
        who = format_members(effect.members)
        times = f", {count(effect.count, 'line')}" if effect.count > 1 else ""
        parts = f"{effect.symptom}{f' ({who})' if who else ''}: {effect.line.path}:{effect.line.line}{times}"
        sheet.wrapped(parts, hanging=2)
        if sheet.style.verbosity > 0:
            sheet.wrapped(effect.meaning, indent=4)
    if len(effects) > len(shown):
        sheet.wrapped(f"and {count(len(effects) - len(shown), 'other symptom')} (-v lists them)")
    sheet.line()


def _print_logs(sheet: Sheet, diagnosis: Diagnosis) -> None:
    for log in diagnosis.logs[:_MAX_LOGS] if sheet.style.verbosity < 2 else diagnosis.logs:
        member_text = format_members((log.member,)) if log.member else "several or unknown"
        last = f", last {log.last_time}" if log.last_time else ""
        sheet.wrapped(f"{log.path}: {member_text}, {count(log.lines, 'line')}{last}", hanging=2)


def _last_line(diagnosis: Diagnosis) -> Text:
    words = {
        Answer.CAUSE: ("CAUSE NAMED", "bold red"),
        Answer.SUSPECTED: ("CAUSE SUSPECTED", "bold yellow"),
        Answer.UNKNOWN: ("DON'T KNOW", "bold yellow"),
        Answer.NO_END: ("NO END SEEN", "bold yellow"),
        Answer.COMPLETED: ("COMPLETED", "bold green"),
        Answer.NO_RUN: ("NO TRAINING RUN", "bold yellow"),
        Answer.UNREADABLE: ("UNREADABLE", "bold yellow"),
    }
    word, color = words[diagnosis.answer]
    line = Text(word, style=color)
    cause = diagnosis.cause
    if cause is not None:
        who = f" of {format_members(cause.members[:1])}" if cause.members else ""
        line.append(f"  {cause.symptom}{who}", style="none")
    read = sum(log.size_bytes > 0 for log in diagnosis.logs)
    line.append(f"; {count(read, 'log')}, {count(sum(log.lines for log in diagnosis.logs), 'line')}", style="none")
    return line


def format_members(members: Sequence[LogProcess]) -> str:
    """Return `rank 3 on node-b`, `ranks 0-2, 4-7` or `server 1`."""
    ranks = {member.rank for member in members if member.rank is not None}
    parts: list[str] = []
    if ranks:
        hosts = {member.host for member in members if member.rank is not None and member.host}
        where = f" on {clean(next(iter(hosts)))}" if len(hosts) == 1 else ""
        parts.append(f"{format_ranks(ranks)}{where}")
    others = [_other_name(member) for member in members if member.rank is None and member]
    shown = list(dict.fromkeys(others))
    parts.extend(shown[:8])
    if len(shown) > 8:
        parts.append(f"{len(shown) - 8} more")
    return ", ".join(parts)


def _other_name(member: LogProcess) -> str:
    words = []
    if member.role:
        words.append(clean(member.role))
    if member.local_rank is not None:
        words.append(f"local rank {member.local_rank}")
    if member.host:
        words.append(f"on {clean(member.host)}" if words else f"a process on {clean(member.host)}")
    return " ".join(words)
