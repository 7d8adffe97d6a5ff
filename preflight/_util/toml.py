"""TOML by the standard library's reader, which Python 3.10 has as the package tomli."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

_reader: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

TOMLDecodeError: type[ValueError] = _reader.TOMLDecodeError


def loads(text: str) -> dict[str, Any]:
    """The document as plain values. Raises TOMLDecodeError, or RecursionError for values that are nested too deeply."""
    found: dict[str, Any] = _reader.loads(text)
    return found


def load(path: Path) -> dict[str, Any]:
    """The same of a file. Raises OSError as well."""
    return loads(path.read_text(encoding="utf-8"))
