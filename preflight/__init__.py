"""Finds what will kill or hang a distributed training job before it is submitted.

The verbs are functions too: `from preflight import lint, check, judge`. Importing this package costs nothing;
each verb loads what it needs when it is called.
"""

__version__ = "0.1.0"

# Nothing is imported here, not even typing: `python -m preflight` comes past this before it has taken the working
# directory, which may be hostile, off the import path.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from preflight.api import check, judge, lint

__all__ = ["__version__", "check", "judge", "lint"]


def __getattr__(name: str) -> "Any":
    if name in ("lint", "check", "judge"):
        from preflight import api

        return getattr(api, name)
    raise AttributeError(f"module 'preflight' has no attribute {name!r}")
