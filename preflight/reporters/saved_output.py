"""Keeps the full text of a command's last report, for a user who saw only a summary on a small screen."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path


def folder(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return `$XDG_STATE_HOME/preflight`, otherwise `~/.local/state/preflight`; None if the user has no such folder."""
    base = environ.get("XDG_STATE_HOME", "")
    if base and Path(base).is_absolute():
        return Path(base) / "preflight"
    try:
        return Path.home() / ".local" / "state" / "preflight"
    except RuntimeError:
        return None


def keep(verb: str, text: bytes, *, at: Path | None = None) -> str:
    """Save `text`, replacing that of the last run, and return the command that shows it; empty if it cannot be saved.

    Only this user can read the file, since it may hold lines of private files and names of nodes.
    """
    place = at or folder()
    if place is None or not re.fullmatch(r"[a-z-]{1,32}", verb):
        return ""
    path = place / f"last-{verb}.txt"
    temporary = place / f".{path.name}.{os.getpid()}"
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(text)
        temporary.replace(path)
    except OSError:
        return ""
    return f"less {shlex.quote(str(path))}"
