"""Numbers for people, and the colours that stand for them on light and dark pages.

The levels of a scale go from pale to strong so that they can be distinguished without seeing hue.
"""

from __future__ import annotations

import base64
import math
import struct
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
#: Units of time below one second: from which value on, factor, name.
_SECONDS = ((1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs"))


def format_number(value: float, unit: str = "") -> str:
    """Format `value` with its unit: `1.5 GiB`, `12 ms`, `98.4 Gbit/s`, `1,024`."""
    if unit in ("bytes", "B"):
        return _bytes(value)
    if unit == "s":
        return _seconds(value)
    number = digits(value)
    return f"{number} {unit}" if unit else number


def format_range(values: Sequence[float], unit: str = "") -> str:
    """Format a range: `1.2 to 1.4 s`, or one number if both ends look the same."""
    first, last = format_number(min(values), unit), format_number(max(values), unit)
    if first == last:
        return first
    number, _, own = first.partition(" ")
    return f"{number} to {last}" if last.endswith(f" {own}") and own else f"{first} to {last}"


def digits(value: float) -> str:
    """Format a number with three significant digits; a count with all its digits."""
    if value != value or value in (float("inf"), float("-inf")):
        return "not a number" if value != value else ("endless" if value > 0 else "minus infinity")
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(value)
    if size >= 100:
        return f"{value:,.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if size >= 1 else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """Format `part` as a percentage of `whole` with up to two decimals, enough to draw a length."""
    if not whole > 0 or part != part:
        return "0"
    return f"{max(0.0, min(100.0, 100.0 * part / whole)):.2f}".rstrip("0").rstrip(".")


def _bytes(value: float) -> str:
    size, index = abs(value), 0
    while size >= 1024 and index < len(_BINARY) - 1:
        size, index = size / 1024, index + 1
    sign = "-" if value < 0 else ""
    number = digits(size) if index else f"{size:.0f}"
    return f"{sign}{number} {_BINARY[index]}"


def _seconds(value: float) -> str:
    if value == 0:
        return "0 s"
    for least, factor, unit in _SECONDS:
        if abs(value) >= least:
            return f"{digits(value * factor)} {unit}"
    return f"{digits(value)} s"


#: From this ratio of largest to smallest value on, levels are equal factors instead of equal steps.
_WIDE = 8.0
#: The highest level begins below this share of all values and contains everything above.
_USUAL = 0.98
#: The smallest width of a level, as a share of the median.
_MIN_STEP = 0.05


@dataclass(frozen=True, slots=True)
class Scale:
    """The bounds between levels, lowest first; there is one more level than bounds."""

    bounds: tuple[float, ...]
    minimum: float
    maximum: float

    def level(self, value: float) -> int:
        """Return the level of the value, from 0."""
        return bisect_left(self.bounds, value)

    def style(self, value: float) -> str:
        """Return the class of the value's level."""
        return LEVELS[self.level(value)]

    def labels(self, unit: str) -> tuple[tuple[str, str], ...]:
        """Return class and range of every level, lowest first."""
        if not self.bounds:
            return ((LEVELS[0], format_range((self.minimum, self.maximum), unit)),)
        edges = (self.minimum, *self.bounds, self.maximum)
        return tuple((LEVELS[n], format_range((edges[n], edges[n + 1]), unit)) for n in range(len(edges) - 1))


def scale_of(values: Sequence[float]) -> Scale:
    """Return the scale of these values, of which there is at least one. Equal values give one level."""
    ordered = sorted(values)
    minimum, maximum = ordered[0], ordered[-1]
    if not maximum > minimum:
        return Scale((), minimum, maximum)
    count = len(LEVELS)
    usual = ordered[int((len(ordered) - 1) * _USUAL)]
    top = usual if usual > minimum else maximum
    if minimum > 0 and top / minimum >= _WIDE:
        step = math.log(top / minimum) / count
        return Scale(tuple(minimum * math.exp(step * n) for n in range(1, count)), minimum, maximum)
    # Values that hardly differ must not look different.
    step = max((top - minimum) / count, _MIN_STEP * abs(ordered[len(ordered) // 2]))
    bounds = (minimum + step * n for n in range(1, count))
    return Scale(tuple(bound for bound in bounds if bound < maximum), minimum, maximum)


#: Cells that were not tried are transparent.
NOTHING: Color = (0, 0, 0, 0)
#: Classes of cells: good without a value, unknown, bad, and the levels of a value.
OK, UNKNOWN, BAD = "ok", "unknown", "bad"
#: Not tried, in a row or column that is mostly bad.
BAND = "band"
LEVELS = ("level-1", "level-2", "level-3", "level-4", "level-5")
#: Phases of a timeline, in order of first appearance.
PHASES = tuple(f"phase-{number}" for number in range(1, 11))

LIGHT: dict[str, Color] = {
    OK: (0xBF, 0xDE, 0xD6, 255),
    UNKNOWN: (0xB4, 0xB7, 0xC4, 255),
    BAD: (0xC6, 0x28, 0x28, 255),
    BAND: (0xF0, 0xB4, 0xAE, 255),
    "level-1": (0xCF, 0xE2, 0xF2, 255),
    "level-2": (0xA9, 0xCB, 0xE6, 255),
    "level-3": (0x7F, 0xB0, 0xD8, 255),
    "level-4": (0x4F, 0x91, 0xC4, 255),
    "level-5": (0x1F, 0x65, 0x9C, 255),
    "phase-1": (0x9A, 0xA8, 0xBC, 255),
    "phase-2": (0x3F, 0x7F, 0xBF, 255),
    "phase-3": (0x3C, 0x9D, 0x8B, 255),
    "phase-4": (0xD9, 0x9A, 0x2B, 255),
    "phase-5": (0x8B, 0x6F, 0xC4, 255),
    "phase-6": (0xC2, 0x5E, 0x8F, 255),
    "phase-7": (0x6E, 0x8F, 0x3A, 255),
    "phase-8": (0xA5, 0x6B, 0x4A, 255),
    "phase-9": (0x5F, 0xA8, 0xD3, 255),
    "phase-10": (0xC9, 0x7B, 0x7B, 255),
}
DARK: dict[str, Color] = {
    **LIGHT,
    OK: (0x1F, 0x4A, 0x42, 255),
    UNKNOWN: (0x5A, 0x60, 0x72, 255),
    BAD: (0xFF, 0x6B, 0x62, 255),
    BAND: (0x7A, 0x30, 0x2D, 255),
    "level-1": (0x24, 0x41, 0x5F, 255),
    "level-2": (0x2D, 0x5A, 0x86, 255),
    "level-3": (0x3D, 0x77, 0xAD, 255),
    "level-4": (0x62, 0xA0, 0xD6, 255),
    "level-5": (0xA6, 0xD3, 0xF5, 255),
}


#: Red, green, blue and opacity, 0 to 255 each.
Color = tuple[int, int, int, int]


def data_address(rows: Sequence[bytes], palette: Sequence[Color]) -> str:
    """Return a `data:` URL of the picture. A row holds one palette index per pixel; all rows have the same length."""
    return "data:image/png;base64," + base64.b64encode(png(rows, palette)).decode("ascii")


def png(rows: Sequence[bytes], palette: Sequence[Color]) -> bytes:
    """Return the content of the PNG file."""
    if len(palette) > 256:
        raise ValueError("a picture has at most 256 colours")
    width = len(rows[0]) if rows else 0
    head = struct.pack(">IIBBBBB", width, len(rows), 8, 3, 0, 0, 0)
    raw = b"".join(b"\x00" + row for row in rows)
    return b"".join(
        (
            b"\x89PNG\r\n\x1a\n",
            _chunk(b"IHDR", head),
            _chunk(b"PLTE", b"".join(bytes(color[:3]) for color in palette)),
            _chunk(b"tRNS", bytes(color[3] for color in palette)),
            _chunk(b"IDAT", zlib.compress(raw, 9)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
