"""Regular expressions that are compiled on first use.

The modules of a command hold hundreds of them, and one run uses a few; compiling one takes a tenth of a millisecond.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from re import Pattern
    from typing import Any, AnyStr


class LazyPattern:
    """A pattern that is compiled on first access. Its attributes are cached, so later access is as fast as on a
    compiled pattern.
    """

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
    """`re.compile` on first use: an error in the text is raised only then.

    The pattern of a match (`match.re`) is the compiled one, not this.
    """
    return LazyPattern(text, int(flags))  # type: ignore[return-value]
