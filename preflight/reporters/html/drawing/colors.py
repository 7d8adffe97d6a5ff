"""Colours of rasters, for light and dark pages; the style sheet has classes of the same names.

The levels of a scale go from pale to strong so that they can be distinguished without seeing hue.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

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
