"""Times, numbers and drawings of the page, in the words and classes of the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from preflight.model.measurements import Quantity
from preflight.reporters.html.drawing.numbers import format_number, share

#: Class, sign and word of each outcome. The signs are the ones of heat maps in reports.
OUTCOMES = {
    "passing": ("ok", "✓", "passing"),
    "failing": ("bad", "×", "failing"),
    "unknown": ("unknown", "?", "unknown"),
    "absent": ("nothing", "·", "not in this run"),
}
_SCALED = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_SYMBOLS = {"bits_per_second": "bit/s", "hertz": "Hz", "watts": "W", "bytes_per_second": "B/s"}
_PLAIN = {"seconds": "s", "celsius": "°C", "bytes": "bytes", "ratio": ""}


def day(began: int) -> str:
    """The day of a time in seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%d")


def moment(began: int) -> str:
    """Day and minute of a time in seconds since the epoch, in UTC."""
    return datetime.fromtimestamp(began, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def value_of(quantity: Quantity, value: float) -> str:
    """A value with its unit, as people write it: `9.2 Gbit/s`, `45 µs`, `46 °C`."""
    symbol = _SYMBOLS.get(quantity.unit)
    if symbol is not None:
        factor, prefix = next(((f, p) for f, p in _SCALED if abs(value) >= f), (1.0, ""))
        return format_number(value / factor, prefix + symbol)
    number: float = int(value) if float(value).is_integer() and quantity.unit == "" else value
    return format_number(number, _PLAIN.get(quantity.unit, quantity.unit.replace("_", " ")))


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a strip, as a percentage of its width: its class, sign and explanation."""

    at: str
    long: str
    style: str
    title: str


def strip(states: Sequence[str | None], times: Sequence[int]) -> tuple[Block, ...]:
    """The outcomes of a node from left to right, one block for each run; equal neighbours are one block."""
    found = []
    for first, last, state in stretches(states):
        style, _, word = OUTCOMES[state or "absent"]
        period = day(times[first]) if first == last else f"{day(times[first])} to {day(times[last])}"
        found.append(Block(share(first, len(states)), share(last - first + 1, len(states)), style, f"{period}: {word}"))
    return tuple(found)


def stretches(states: Sequence[str | None]) -> list[tuple[int, int, str | None]]:
    """Equal neighbours as first and last place and what they have."""
    found: list[tuple[int, int, str | None]] = []
    for place, state in enumerate(states):
        if found and found[-1][2] == state:
            found[-1] = (found[-1][0], place, state)
        else:
            found.append((place, place, state))
    return found


def curve(values: Sequence[float | None], low: float, high: float) -> str:
    """The path of a small curve in a box of 100 by 100, with gaps where there is no value."""
    if len(values) < 2:
        return ""
    pieces, pen = [], "M"
    for place, value in enumerate(values):
        if value is None:
            pen = "M"
            continue
        height = 50.0 if high <= low else 95 - 90 * (value - low) / (high - low)
        pieces.append(f"{pen}{100 * place / (len(values) - 1):.1f} {height:.1f}")
        # A value between two gaps is a point.
        if pen == "M":
            pieces.append("h.1")
        pen = "L"
    return "".join(pieces)
