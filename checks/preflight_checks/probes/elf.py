"""What the dynamic loader reads from a library: the libraries it needs, and where it looks for them.

Only 64-bit little-endian files, as on every machine with a data-centre GPU.
"""

from __future__ import annotations

import mmap
import os
import struct
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

# elf(5): program header types and tags of the dynamic section.
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRINGS, _RPATH, _RUNPATH = 1, 5, 15, 29
_MAX_ENTRIES = 4096


@dataclass(frozen=True)
class Dynamic:
    """The dynamic section. `rpath` is searched before LD_LIBRARY_PATH, `runpath` after it; with a runpath the rpath
    does not count (ld.so(8)).
    """

    needed: List[str] = field(default_factory=list)
    rpath: List[str] = field(default_factory=list)
    runpath: List[str] = field(default_factory=list)


def dynamic(path: str) -> Optional[Dynamic]:
    """The dynamic section of the library at `path`; None if there is none that can be read."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _parse(data, os.path.dirname(os.path.realpath(path)))
    except (OSError, ValueError, struct.error, IndexError):
        return None


def _parse(data: "mmap.mmap", origin: str) -> Optional[Dynamic]:
    # \x7fELF, 64-bit, little-endian.
    if data[:6] != b"\x7fELF\x02\x01":
        return None
    (start,) = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    loads: List[Tuple[int, int, int]] = []
    section: Optional[Tuple[int, int]] = None
    for number in range(count):
        kind, _, offset, address, _, length, _, _ = struct.unpack_from("<IIQQQQQQ", data, start + number * size)
        if kind == _LOAD:
            loads.append((address, offset, length))
        elif kind == _DYNAMIC:
            section = (offset, length)
    if section is None:
        return None
    entries: List[Tuple[int, int]] = []
    for number in range(min(section[1] // 16, _MAX_ENTRIES)):
        tag, value = struct.unpack_from("<QQ", data, section[0] + number * 16)
        if tag == 0:
            break
        entries.append((tag, value))
    table = next((value for tag, value in entries if tag == _STRINGS), None)
    if table is None:
        return None
    strings = next(
        (table - address + offset for address, offset, size in loads if address <= table < address + size), table
    )
    texts: Dict[int, List[str]] = {}
    for tag, value in entries:
        if tag in (_NEEDED, _RPATH, _RUNPATH):
            end = data.find(b"\0", strings + value)
            texts.setdefault(tag, []).append(data[strings + value : end].decode("utf-8", "replace"))
    return Dynamic(
        texts.get(_NEEDED, []), _folders(texts.get(_RPATH, []), origin), _folders(texts.get(_RUNPATH, []), origin)
    )


def _folders(paths: List[str], origin: str) -> List[str]:
    folders = [folder for path in paths for folder in path.split(":") if folder]
    expanded = (folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", origin) for folder in folders)
    return [os.path.normpath(folder) for folder in expanded]
