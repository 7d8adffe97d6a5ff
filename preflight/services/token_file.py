"""Reads a token that opens one of our servers from a file that only its owner reads."""

from __future__ import annotations

import stat
from pathlib import Path

from preflight._util.usage_error import UsageError

#: Shorter tokens can be guessed.
MIN_LENGTH = 16
MAX_LENGTH = 1024


def read_token(file: Path, option: str) -> str:
    """The token in a file that the command line names with `option`.

    Raises:
        UsageError: the file cannot be read or everybody can read it, or its token is too short or too long.
    """
    where = f"{option} {file}"
    try:
        if file.stat().st_mode & stat.S_IROTH:
            raise UsageError(f"{where}: everybody on this machine can read it; run: chmod 600 {file}")
        with file.open("rb") as stream:
            token = stream.read(4 * MAX_LENGTH).decode("utf-8", "replace").strip()
    except OSError as error:
        raise UsageError(f"{where} cannot be read: {error.strerror}") from None
    return checked_token(token, where)


def checked_token(token: str, where: str) -> str:
    """The token itself.

    Raises:
        UsageError: it is too short or too long, or has characters that cannot be typed.
    """
    if not MIN_LENGTH <= len(token) <= MAX_LENGTH or not token.isprintable():
        raise UsageError(
            f"{where}: expected one line of {MIN_LENGTH} to {MAX_LENGTH} characters, found {len(token)}; "
            "`openssl rand -hex 24` makes one"
        )
    return token
