"""What somebody probably meant: the nearest of the names there are, and the nearest file to one that is not there."""

from __future__ import annotations

import os
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

#: Of a folder so many names are looked at.
_MOST_NAMES = 2000


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of `known` that looks most like `word`, whatever its case; empty when none does."""
    by_case = {one.lower(): one for one in known}
    near = get_close_matches(word.lower(), by_case, n=1, cutoff=0.6)
    return by_case[near[0]] if near else ""


def nearest_path(path: Path) -> str:
    """The nearest file or folder to one that does not exist, as `; did you mean run.sh?`; empty when there is none.

    The first part of the path that is not there is taken for the misspelt one.
    """
    there = path
    while not os.path.lexists(there) and there != there.parent:
        missing, there = there.name, there.parent
    if there == path:
        return ""
    try:
        with os.scandir(there) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MOST_NAMES), strict=False)]
    except OSError:
        return ""
    near = nearest(missing, names)
    if not near:
        return ""
    rest = path.relative_to(there / missing) if path != there / missing else Path()
    whole = there / near / rest
    return f"; did you mean {whole}?" if os.path.lexists(whole) else f"; there is {there / near}"
