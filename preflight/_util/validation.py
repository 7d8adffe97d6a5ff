"""Validation by pydantic: one adapter for each type, and its errors as one sentence with locations."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import TypeAdapter


@functools.cache
def type_adapter(kind: Any) -> TypeAdapter[Any]:
    """pydantic's validator of `kind`, which may be any type hint; built once, and pydantic imported, on first use.

    Its `validate_json` and `validate_python` raise ValueError (pydantic's ValidationError) with the locations.
    """
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def format_errors(error: ValueError) -> str:
    """Format a validator's first three errors as `place: message`."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [": ".join(filter(None, (_path(problem["loc"]), problem["msg"]))) for problem in problems[:3]]
    return "; ".join(shown) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


def _path(location: tuple[int | str, ...]) -> str:
    """Format a path such as `facts[3].request.node`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")
