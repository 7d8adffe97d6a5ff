"""Reads the package index: the wheels of a distribution, and the metadata in each of them."""

from __future__ import annotations

import io
import json
import re
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from email.message import Message
from email.parser import HeaderParser
from typing import NamedTuple

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

_DEADLINE_S = 60
#: Bytes at the end of a wheel, which hold its list of files and often its metadata.
_END = 200_000
_INDEX = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"


class Wheel(NamedTuple):
    """A wheel on the index.

    Args:
        platforms: its platform tags: `any`, `manylinux_2_28_x86_64`.
        newest_python: the minor version of Python 3 that it is for; none if it is for later ones as well.
    """

    name: str
    version: Version
    address: str
    platforms: tuple[str, ...]
    newest_python: int | None = None


def wheels(name: str) -> Iterator[Wheel]:
    """Yield the wheels of a distribution that were not withdrawn; none if the index does not know it."""
    try:
        listed = json.loads(_read(f"{_INDEX}/{name}/", _JSON))["files"]
    except urllib.error.HTTPError:
        return
    for file in listed:
        if file["filename"].endswith(".whl") and not file.get("yanked"):
            try:
                _, version, _, tags = parse_wheel_filename(file["filename"])
            except InvalidWheelFilename:
                continue
            platforms = tuple(sorted({tag.platform for tag in tags}))
            bound = [re.fullmatch(r"cp3(\d+)", tag.interpreter) for tag in tags if tag.abi != "abi3"]
            newest = max((int(match[1]) for match in bound if match is not None), default=None)
            yield Wheel(name, version, file["url"], platforms, newest)


def metadata(wheel: Wheel) -> Message:
    """Return the metadata of a wheel, without fetching the rest."""
    with zipfile.ZipFile(_Remote(wheel.address)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode(errors="replace"))


class _Remote(io.RawIOBase):
    """A file on a server. Its end is fetched at once, other parts when they are read."""

    def __init__(self, address: str) -> None:
        self._address = address
        asked = urllib.request.Request(address, headers={"Range": f"bytes=-{_END}"})
        with urllib.request.urlopen(asked, timeout=_DEADLINE_S) as answer:
            self._end: bytes = answer.read()
            self._size = int(answer.headers["Content-Range"].rpartition("/")[2])
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        last = self._size if size < 0 else min(self._at + size, self._size)
        first, self._at = self._at, last
        begin = self._size - len(self._end)
        if first >= begin:
            return self._end[first - begin : last - begin]
        asked = urllib.request.Request(self._address, headers={"Range": f"bytes={first}-{last - 1}"})
        with urllib.request.urlopen(asked, timeout=_DEADLINE_S) as answer:
            content: bytes = answer.read()
            return content


def _read(address: str, accept: str = "*/*") -> bytes:
    asked = urllib.request.Request(address, headers={"Accept": accept})
    with urllib.request.urlopen(asked, timeout=_DEADLINE_S) as answer:
        content: bytes = answer.read()
        return content
