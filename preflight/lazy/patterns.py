"""Regular expressions that are compiled when they are first used.

The modules of a command hold hundreds of them, and one run uses a few; to compile one takes a tenth of a millisecond.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Pattern
    from typing import Any, AnyStr


class _Later:
    """Stands for a pattern; what is asked of it once is kept, so that asking again costs no more than of a pattern."""

    def __init__(self, text: Any, flags: int) -> None:
        self._given = text, flags

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(re.compile(*self._given), name)
        self.__dict__[name] = found
        return found

    def __repr__(self) -> str:
        return f"lazy_pattern({self._given[0]!r})"


def lazy_pattern(text: AnyStr, flags: int = 0) -> Pattern[AnyStr]:
    """`re.compile`, at the first use: what is wrong with the text is told only then.

    What a match names as its pattern (`match.re`) is the compiled one, not this.
    """
    return _Later(text, int(flags))  # type: ignore[return-value]
