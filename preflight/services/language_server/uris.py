"""URIs of an editor and paths of files."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

#: Longer ones name no file: Linux allows paths of 4096 bytes, and each may become three characters.
_MAX_LENGTH = 3 * 4096 + 16


def path_of(uri: str) -> Path | None:
    """The absolute path that a `file:` URI names; None for any other URI, such as that of an unsaved new document."""
    if len(uri) > _MAX_LENGTH:
        return None
    try:
        parts = urlsplit(uri)
        path = os.fsdecode(unquote_to_bytes(parts.path.encode("utf-8", "surrogatepass")))
    except ValueError:
        return None
    if parts.scheme.lower() != "file" or parts.netloc not in ("", "localhost") or not path.startswith("/"):
        return None
    # With `..` removed, so that a path that begins with that of a folder is inside it.
    return None if "\0" in path else Path(os.path.normpath(path))


def uri_of(path: Path) -> str:
    """The URI of an absolute path."""
    return path.as_uri()
