"""The data tables of the checks: versioned TOML files in data/."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import sys
from typing import Any


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The parsed contents of `data/NAME.toml`."""
    # In the standard library since Python 3.11; tomli is the same parser for 3.10.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = importlib.resources.files("preflight_checks").joinpath(f"data/{name}.toml").read_text("utf-8")
    return dict(toml.loads(text))
