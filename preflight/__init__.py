"""Finds what will kill or hang a distributed training job before it is submitted.

The verbs are functions too: `from preflight import lint, check, judge`. Importing this package costs nothing;
each verb loads what it needs when it is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from preflight.api import check, judge, lint

__all__ = ["__version__", "check", "judge", "lint"]


def __getattr__(name: str) -> Any:
    if name in ("lint", "check", "judge"):
        from preflight import api

        return getattr(api, name)
    raise AttributeError(f"module 'preflight' has no attribute {name!r}")
