"""Versioned knowledge that comes with the checks: the TOML files in data/."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import sys
from typing import Any


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The document `data/NAME.toml`."""
    # The standard library has it from 3.11 on; before, tomli is the same code under another name.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = importlib.resources.files("preflight_checks").joinpath(f"data/{name}.toml").read_text("utf-8")
    return dict(toml.loads(text))
