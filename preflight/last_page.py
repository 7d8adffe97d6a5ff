"""The whole text of the last report of a verb, kept for whoever saw it in short on a screen that was too low for it."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """`$XDG_STATE_HOME/preflight`, else `~/.local/state/preflight`; None where the user has no such place."""
    base = environ.get("XDG_STATE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "preflight"
    try:
        return Path.home() / ".local" / "state" / "preflight"
    except RuntimeError:
        return None


def keep(verb: str, text: bytes, *, at: Path | None = None) -> str:
    """Keep `text` for this user alone, over that of the last run; the command that shows it, empty where it cannot be.

    It may hold what only this user may read (lines of files, names of nodes), so nobody else can open it.
    """
    place = at or folder()
    if place is None or not re.fullmatch(r"[a-z-]{1,32}", verb):
        return ""
    path = place / f"last-{verb}.txt"
    beside = place / f".{path.name}.{os.getpid()}"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text)
        beside.replace(path)
    except OSError:
        return ""
    return f"less {shlex.quote(str(path))}"
