"""Versions of drivers, libraries and kernels as numbers, read by `packaging`."""

from __future__ import annotations

import functools
import re

from packaging.version import InvalidVersion, Version

#: The numbers at the start of the version of a kernel (`6.1.0-18-amd64`) or of a vendor's build.
_LEADING = re.compile(r"\d{1,9}(?:\.\d{1,9}){0,9}")


@functools.lru_cache(maxsize=1024)
def version_of(text: str) -> Version:
    """The version; for a text that is not a version the numbers at its start, or 0 if it has none."""
    try:
        return Version(text)
    except InvalidVersion:
        found = _LEADING.match(text.strip().lstrip("v"))
        return Version(found[0] if found else "0")


def minor_of(text: str) -> tuple[int, int]:
    """The major and minor number."""
    version = version_of(text)
    return version.major, version.minor


def short_version(text: str) -> str:
    """`2.4` of `2.4.1+cu124`."""
    return ".".join(map(str, minor_of(text)))
