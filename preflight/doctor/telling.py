"""An examination as a person reads it: what can be done, and of the rest what is lost and how to get it."""

from __future__ import annotations

from rich.text import Text

from preflight.doctor.model import Examination
from preflight.examination import Can, Look
from preflight.reporters.base import Style
from preflight.reporters.clean import clean
from preflight.reporters.grouping import count
from preflight.reporters.sheet import Sheet

_WORDS = {
    Can.YES: ("yes", "green"),
    Can.PARTLY: ("partly", "yellow"),
    Can.NO: ("no", "red"),
    Can.UNKNOWN: ("unknown", "yellow"),
}


def page(examination: Examination, style: Style) -> str:
    """The examination as text, with ANSI colours when `style` asks for them."""
    sheet = Sheet(style)
    widest = min(24, max((len(look.about) for look in examination.looks), default=0))
    for look in examination.looks:
        if style.verbosity >= 0 or look.can is not Can.YES:
            _look(sheet, look, widest)
    sheet.line()
    sheet.line(_last(examination))
    return sheet.text()


def _look(sheet: Sheet, look: Look, widest: int) -> None:
    word, color = _WORDS[look.can]
    label = f"{word:<8}{clean(look.about):<{widest}}  "
    sheet.wrapped(look.said, indent=0, label=label, style=color)
    for what, text in (("lost: ", look.lost), ("do:   ", look.remedy)):
        if text:
            sheet.wrapped(text, indent=10, label=what, style="bold")


def _last(examination: Examination) -> Text:
    verbs = (("lint", examination.lint), ("check", examination.check), ("smoke", examination.smoke))
    can = [verb for verb, held in verbs if held]
    missing = sum(look.can is Can.NO for look in examination.looks)
    line = Text(f"CAN {', '.join(can).upper()}" if can else "CAN DO NOTHING", style="bold green" if can else "bold red")
    ways = f" over {', '.join(examination.ways)}" if examination.ways and examination.check else ""
    line.append(f"{ways}; {count(len(examination.looks), 'thing')} looked at, {missing} not there", style="none")
    return line
