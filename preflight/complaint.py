"""What a validator complains of, as one sentence with the places"""

from __future__ import annotations


def said(error: ValueError) -> str:
    """What a validator complains of, as `place: complaint`, the first three of it."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    shown = [": ".join(filter(None, (_path(problem["loc"]), problem["msg"]))) for problem in problems[:3]]
    return "; ".join(shown) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")


def _path(location: tuple[int | str, ...]) -> str:
    """`facts[3].request.node` for the steps that lead there."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in location)
    return "".join(steps).removeprefix(".")
