"""Mistakes of the user, which end a run with one sentence, and suggestions for the intended name."""

from __future__ import annotations

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path


class UsageError(Exception):
    """A request on the command line or in the configuration that is impossible; exit code 2."""


#: Largest number of files in a folder, or of known names, that are compared.
_MAX_NAMES = 2000
#: Longest word that is compared: the time grows with the product of the lengths, and a longer word is not a typo.
MAX_LENGTH = 100


def similar_names(word: str, known: Iterable[str], limit: int = 1, *, cutoff: float = 0.6) -> list[str]:
    """Return up to `limit` names that are similar (at least `cutoff`, 0 to 1) to `word`, the most similar first."""
    if len(word) > MAX_LENGTH:
        return []
    from difflib import get_close_matches

    short = (name for name in known if len(name) <= MAX_LENGTH)
    return get_close_matches(word, islice(short, _MAX_NAMES), n=limit, cutoff=cutoff)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to `word`, ignoring case; empty if none is similar."""
    by_case = {name.lower(): name for name in known}
    near = similar_names(word.lower(), by_case)
    return by_case[near[0]] if near else ""


def nearest_path(path: Path) -> str:
    """Return `; did you mean run.sh?` for a path whose first missing part is misspelt; empty if none is near."""
    existing = path
    while not os.path.lexists(existing) and existing != existing.parent:
        missing, existing = existing.name, existing.parent
    if existing == path:
        return ""
    try:
        with os.scandir(existing) as entries:
            names = [entry.name for entry, _ in zip(entries, range(_MAX_NAMES), strict=False)]
    except OSError:
        return ""
    near = nearest(missing, names)
    if not near:
        return ""
    rest = path.relative_to(existing / missing) if path != existing / missing else Path()
    whole = existing / near / rest
    return f"; did you mean {whole}?" if os.path.lexists(whole) else f"; there is {existing / near}"
