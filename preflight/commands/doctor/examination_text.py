"""An examination as text: the usable commands, the missing items and their remedies."""

from __future__ import annotations

from rich.text import Text

from preflight._util.sanitize import clean
from preflight.commands.doctor.examination import Examination
from preflight.model.doctor_items import Capability, DoctorItem
from preflight.reporters.base import Style
from preflight.reporters.text.full_report import Sheet
from preflight.reporters.text.groups import count

_WORDS = {
    Capability.YES: ("yes", "green"),
    Capability.PARTLY: ("partly", "yellow"),
    Capability.NO: ("no", "red"),
    Capability.UNKNOWN: ("unknown", "yellow"),
}


def page(examination: Examination, style: Style) -> str:
    """Return the examination as text, with ANSI colours if `style` asks for them."""
    sheet = Sheet(style)
    widest = min(24, max((len(item.about) for item in examination.items), default=0))
    for item in examination.items:
        if style.verbosity >= 0 or item.capability is not Capability.YES:
            _print_item(sheet, item, widest)
    sheet.line()
    sheet.line(_last(examination))
    return sheet.text()


def _print_item(sheet: Sheet, item: DoctorItem, widest: int) -> None:
    word, color = _WORDS[item.capability]
    label = f"{word:<8}{clean(item.about):<{widest}}  "
    sheet.wrapped(item.observed, indent=0, label=label, style=color)
    for what, text in (("lost: ", item.lost), ("do:   ", item.remedy)):
        if text:
            sheet.wrapped(text, indent=10, label=what, style="bold")


def _last(examination: Examination) -> Text:
    verbs = (("lint", examination.lint), ("check", examination.check), ("smoke", examination.smoke))
    capability = [verb for verb, held in verbs if held]
    missing = sum(item.capability is Capability.NO for item in examination.items)
    line = Text(
        f"CAN {', '.join(capability).upper()}" if capability else "NOTHING CAN BE CHECKED",
        style="bold green" if capability else "bold red",
    )
    executors = f" over {', '.join(examination.executors)}" if examination.executors and examination.check else ""
    line.append(f"{executors}; {count(len(examination.items), 'item')} checked, {missing} missing", style="none")
    return line
