"""A diagnosis as a person reads it: who was first, the line that decides, what it means, what to do, what followed."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from preflight.diagnosis.model import Answer, Cause, Certainty, Diagnosis, Effect, Line, Party, Pointer
from preflight.reporters.base import Style
from preflight.reporters.clean import clean
from preflight.reporters.grouping import count
from preflight.reporters.sheet import Sheet

_MOST_EFFECTS = 8
_MOST_LOGS = 12
_HOW_SURE = {
    Certainty.NAMED: "",
    Certainty.LIKELY: "most likely: ",
    Certainty.OPEN: "",
}


def page(diagnosis: Diagnosis, style: Style) -> str:
    """The diagnosis as text, with ANSI colours when `style` asks for them."""
    sheet = Sheet(style)
    if diagnosis.cause is not None:
        _cause(sheet, diagnosis.cause)
        for other in diagnosis.others:
            _other(sheet, other)
    elif diagnosis.answer is Answer.UNKNOWN:
        _unknown(sheet, diagnosis)
    if diagnosis.effects:
        culprits = diagnosis.cause.parties if diagnosis.cause is not None else ()
        _effects(sheet, diagnosis.effects, culprits)
    for note in diagnosis.notes:
        sheet.note(note)
    if style.verbosity > 0:
        _logs(sheet, diagnosis)
    sheet.line(_last(diagnosis))
    return sheet.text()


def _cause(sheet: Sheet, cause: Cause) -> None:
    head = Text()
    head.append(f"{named(cause.parties[:1])} failed first" if cause.parties else "the run failed", style="bold red")
    head.append(f": {cause.symptom}", style="bold")
    if cause.line.time:
        head.append(f"  ({clean(cause.line.time)})")
    sheet.line(head)
    if len(cause.parties) > 1:
        sheet.wrapped(f"the same befell {named(cause.parties[1:])}", indent=2)
    _line(sheet, cause.line)
    if cause.frame:
        sheet.wrapped(f"raised at {clean(cause.frame)}", indent=6)
    sheet.wrapped(f"{_HOW_SURE[cause.certainty]}{cause.meaning}", label="means:  ", style="yellow")
    sheet.wrapped(cause.remedy, label="do:     ", style="green")
    _before(sheet, cause.told_by, cause.beyond)
    sheet.line()


def _other(sheet: Sheet, cause: Cause) -> None:
    whom = f" {named(cause.parties)}" if cause.parties else ""
    sheet.wrapped(f"also{whom}: {cause.symptom}. {cause.meaning}", indent=0, hanging=2)
    _line(sheet, cause.line)
    _before(sheet, cause.told_by, "")
    sheet.line()


def _unknown(sheet: Sheet, diagnosis: Diagnosis) -> None:
    suspect = diagnosis.suspect
    if suspect is None:
        sheet.line(Text("the run failed, and no line of these logs says why", style="bold yellow"))
    else:
        head = Text()
        head.append(f"no log says why; look at {named((suspect.party,))} first", style="bold yellow")
        sheet.line(head)
        sheet.wrapped(f"because {suspect.because}")
        if suspect.line is not None:
            sheet.wrapped("its last word, or what is said of it:")
            _line(sheet, suspect.line)
    if diagnosis.last_words:
        sheet.wrapped("the last lines that look like errors:")
        for line in diagnosis.last_words:
            _line(sheet, line)
    sheet.line()


def _line(sheet: Sheet, line: Line) -> None:
    where = Text("  --> ", style="blue")
    where.append(f"{clean(line.path)}:{line.line}", style="none")
    sheet.line(where)
    sheet.line(Text(f"      {_cut(clean(line.text).strip(), 3 * sheet.style.width)}"))


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _before(sheet: Sheet, pointers: Sequence[Pointer], beyond: str) -> None:
    """Which verb of preflight would have told, and by which rule or check."""
    lint = [pointer for pointer in pointers if pointer.stage == "lint"]
    live = [pointer for pointer in pointers if pointer.stage != "lint"]
    said = [
        f"preflight {verb} ({', '.join(f'{item.id} {item.name}' for item in items)})"
        for verb, items in (("lint", lint), ("check", live))
        if items
    ]
    if said:
        sheet.wrapped(f"looked for by {' and '.join(said)}", label="before: ", style="cyan")
    elif beyond:
        sheet.wrapped(f"nothing that preflight looks at: {beyond}", label="before: ", style="cyan")


def _effects(sheet: Sheet, effects: Sequence[Effect], culprits: Sequence[Party]) -> None:
    """Who went down with it, then a line for each symptom; what it means only for those who ask."""
    own = {party.rank for party in culprits}
    victims = [party for effect in effects for party in effect.parties if party.rank not in own]
    head = Text("what followed", style="bold")
    if culprits and (whom := named([party for party in victims if party.rank is not None])):
        head = Text(f"{whom} went down because of it", style="bold")
    sheet.line(head)
    shown = effects if sheet.style.verbosity > 0 else effects[:_MOST_EFFECTS]
    for effect in shown:
        whom = named(effect.parties)
        times = f", {count(effect.count, 'line')}" if effect.count > 1 else ""
        said = f"{effect.symptom}{f' ({whom})' if whom else ''}: {effect.line.path}:{effect.line.line}{times}"
        sheet.wrapped(said, hanging=2)
        if sheet.style.verbosity > 0:
            sheet.wrapped(effect.meaning, indent=4)
    if len(effects) > len(shown):
        sheet.wrapped(f"and {count(len(effects) - len(shown), 'other symptom')} (-v lists them)")
    sheet.line()


def _logs(sheet: Sheet, diagnosis: Diagnosis) -> None:
    for log in diagnosis.logs[:_MOST_LOGS] if sheet.style.verbosity < 2 else diagnosis.logs:
        whose = named((log.party,)) if log.party else "several or unknown"
        last = f", last {log.last_time}" if log.last_time else ""
        sheet.wrapped(f"{log.path}: {whose}, {count(log.lines, 'line')}{last}", hanging=2)


def _last(diagnosis: Diagnosis) -> Text:
    words = {
        Answer.CAUSE: ("CAUSE NAMED", "bold red"),
        Answer.UNKNOWN: ("DON'T KNOW", "bold yellow"),
        Answer.NOTHING_WRONG: ("NOTHING FOUND WRONG", "bold green"),
        Answer.NOTHING_READ: ("NOTHING TO READ", "bold yellow"),
    }
    word, color = words[diagnosis.answer]
    line = Text(word, style=color)
    cause = diagnosis.cause
    if cause is not None:
        whom = f" of {named(cause.parties[:1])}" if cause.parties else ""
        line.append(f"  {cause.symptom}{whom}", style="none")
    read = sum(log.size_bytes > 0 for log in diagnosis.logs)
    line.append(f"; {count(read, 'log')}, {count(sum(log.lines for log in diagnosis.logs), 'line')}", style="none")
    return line


def named(parties: Sequence[Party]) -> str:
    """`rank 3 on node-b`, `ranks 0-2, 4-7`, `server 1`."""
    ranks = sorted({party.rank for party in parties if party.rank is not None})
    said: list[str] = []
    if ranks:
        hosts = {party.host for party in parties if party.rank is not None and party.host}
        where = f" on {clean(next(iter(hosts)))}" if len(hosts) == 1 else ""
        said.append(f"rank{'' if len(ranks) == 1 else 's'} {_folded(ranks)}{where}")
    others = [_other_name(party) for party in parties if party.rank is None and party]
    shown = list(dict.fromkeys(others))
    said.extend(shown[:8])
    if len(shown) > 8:
        said.append(f"{len(shown) - 8} more")
    return ", ".join(said)


def _other_name(party: Party) -> str:
    words = []
    if party.role:
        words.append(clean(party.role))
    if party.local_rank is not None:
        words.append(f"local rank {party.local_rank}")
    if party.host:
        words.append(f"on {clean(party.host)}" if words else f"a process on {clean(party.host)}")
    return " ".join(words)


def _folded(numbers: Sequence[int]) -> str:
    """`0-2, 4-7` for sorted numbers."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)
