"""The content of `libraries.toml`, by the names of libraries."""

from __future__ import annotations

import fnmatch
import functools
import re
from pathlib import Path
from typing import Any

from preflight._util import toml


@functools.cache
def table() -> dict[str, Any]:
    """Return the contents of `libraries.toml`."""
    return toml.load(Path(__file__).with_name("libraries.toml"))


def names(kind: str) -> frozenset[str]:
    """Return the names of a kind."""
    return frozenset(table()["names"][kind])


def pattern(kind: str) -> re.Pattern[str]:
    """Return a pattern for the names of a kind."""
    found = table()["patterns"][kind]
    return re.compile(found if isinstance(found, str) else "|".join(found))


@functools.lru_cache(maxsize=4096)
def symbol_of(kind: str, name: str) -> str:
    """Return the symbol of a function's result or an attribute, by its full name; empty for any other."""
    rows = table()[kind].items()
    return next((symbol for symbol, found in rows if any(fnmatch.fnmatchcase(name, each) for each in found)), "")
