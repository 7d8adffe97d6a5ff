"""A minimal PNG encoder for pictures with few colours: one byte per pixel, and repeated cells compress well."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

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
