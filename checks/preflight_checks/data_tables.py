"""The data tables of the checks: versioned TOML files in data/."""

from __future__ import annotations

import functools
import importlib.resources
from typing import Any

from preflight._util import toml


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The parsed contents of `data/NAME.toml`."""
    text = importlib.resources.files("preflight_checks").joinpath(f"data/{name}.toml").read_text("utf-8")
    return dict(toml.loads(text))
