"""Claims in messages: their text and location, and the reason why a value is uncertain."""

from __future__ import annotations

import re
from collections.abc import Iterable

from preflight.model.job import Claim, Launch, Plain, Span, Unresolved

#: The largest length of a value in a message, in characters; a longer value is shortened.
_MAX_VALUE_LENGTH = 60
#: A positional parameter of a shell script or function: `$1`, `${2:-x}`.
_PARAMETER = re.compile(r"\$\{?\d")


def quoted(claim: Claim) -> str:
    """Return a claim as the user wrote it, in back quotes, with its value if the text does not show it."""
    value = _hidden_value(claim)
    return f"{_as_written(claim)} ({value})" if value else _as_written(claim)


def placed(claim: Claim) -> str:
    """Return the quoted claim and its location: `` `--nodes=4` (train.sbatch:2)``, `` `-N $N` (4, train.sbatch:2)``."""
    value = _hidden_value(claim)
    return f"{_as_written(claim)} ({value + ', ' if value else ''}{where(claim)})"


def where(claim: Claim) -> str:
    """Return file and line of a claim as `train.sbatch:3`; of the call if an argument gives the value."""
    span = argument_of(claim) or claim.span
    return f"{span.path}:{span.line}"


def editable(claim: Claim) -> str:
    """Return the text to edit to change a claim: the claim itself, or the assignment of the variable that it uses."""
    return format_assignment(claim) or _as_written(claim)


def _as_written(claim: Claim) -> str:
    return f"`{' '.join(claim.spelling.split())}`"


def _hidden_value(claim: Claim) -> str:
    """Return the value of a claim that contains a variable or substitution; empty if the text already shows it."""
    value_texts = [_value_text(item) for item in claim.alternatives]
    # The command line gives the value of a program's option.
    is_from_command_line = claim.span.path.endswith(".py") and claim.origin is not None
    if not ("$" in claim.spelling or is_from_command_line) or not all(value_texts):
        return ""
    # `${NODES:-4}` already shows its value 4.
    if len(value_texts) == 1 and re.search(rf"(?<![\w.$]){re.escape(value_texts[0])}(?![\w.])", claim.spelling):
        return ""
    return " or ".join(value_texts)


def _value_text(item: Plain) -> str:
    """Return a value on one line, shortened if it is long; empty for None and booleans."""
    if item is None or isinstance(item, bool):
        return ""
    text = " ".join((",".join(map(str, item)) if isinstance(item, tuple) else str(item)).split())
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"


def argument_of(claim: Claim) -> Span | None:
    """Return the argument that gives a claim its value, if a script or function is called with it; otherwise None."""
    if claim.origin is None or claim.span.path.endswith(".py"):
        return None
    is_argument = claim.origin.path != claim.span.path or _PARAMETER.search(claim.spelling) is not None
    return claim.origin if is_argument and not format_assignment(claim) else None


def format_assignment(claim: Claim) -> str:
    """Return the assignment of the claim's value as `` `NNODES=8` (train.sbatch:4)``; empty if it is unknown."""
    span = claim.origin
    if span is None or span.line != span.end_line or span.end_column - 1 > len(span.snippet):
        return ""
    text = span.snippet[span.column - 1 : span.end_column - 1]
    return f"`{text}` ({span.path}:{span.line})" if "=" in text else ""


def counted(number: Plain, singular: str, plural: str = "") -> str:
    """Return the number and the noun: `1 node`, `4 nodes`."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


def joined(values: Iterable[Plain]) -> str:
    """Return the values as text: `4`, or `2 or 4` if branches give several values."""
    return " or ".join(str(value) for value in values)


def why_unresolved(claims: Iterable[Claim], launch: Launch | None = None) -> tuple[Claim, str] | None:
    """Return the first claim without a certain value, and the reason; None if all claims are certain.

    A claim is certain if its value is known and its branch is certain: a claim in a branch that does not contain the
    launch may not be effective.
    """
    for claim in claims:
        if isinstance(claim.value, Unresolved):
            return claim, claim.value.why
        if not definitely_holds(claim, launch):
            return claim, f"the branch `{' '.join(claim.condition.split())[:80]}`"
    return None


def definitely_holds(claim: Claim, launch: Launch | None) -> bool:
    """Return whether a claim certainly applies: it is in no branch, or in the same branch as the launch."""
    condition = claim.condition
    if not condition or (launch is not None and condition == launch.condition):
        return True
    # `if __name__ == "__main__":` is the entry of a script, not a branch.
    return "__name__" in condition and " and " not in condition
