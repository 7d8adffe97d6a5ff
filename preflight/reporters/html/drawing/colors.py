"""Colours of rasters, for a light page and a dark one; the same names are classes in the style sheet.

Levels of a scale run from quiet to strong, so that they can be told apart without seeing hue.
"""

from __future__ import annotations

from preflight.reporters.html.drawing.png import Color

#: What was not tried shows the page itself.
NOTHING: Color = (0, 0, 0, 0)
#: Classes of squares: a cell without a value that is well, one that is not known, a bad one, and levels of a value.
OK, UNKNOWN, BAD = "ok", "unknown", "bad"
#: What was not tried, in a row or column of which most is bad.
BAND = "band"
LEVELS = ("level-1", "level-2", "level-3", "level-4", "level-5")
#: Phases of a timeline, in the order in which they first appear.
PHASES = tuple(f"phase-{number}" for number in range(1, 11))

LIGHT: dict[str, Color] = {
    OK: (0xBF, 0xDE, 0xD6, 255),
    UNKNOWN: (0xB4, 0xB7, 0xC4, 255),
    BAD: (0xC6, 0x28, 0x28, 255),
    BAND: (0xF0, 0xB4, 0xAE, 255),
    "level-1": (0xE3, 0xEE, 0xF7, 255),
    "level-2": (0xBD, 0xD8, 0xEC, 255),
    "level-3": (0x8D, 0xBB, 0xDD, 255),
    "level-4": (0x56, 0x97, 0xC6, 255),
    "level-5": (0x23, 0x6F, 0xA8, 255),
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
    "level-1": (0x1B, 0x2B, 0x3D, 255),
    "level-2": (0x22, 0x45, 0x66, 255),
    "level-3": (0x2B, 0x64, 0x94, 255),
    "level-4": (0x4C, 0x92, 0xC9, 255),
    "level-5": (0x9A, 0xCC, 0xF2, 255),
}
