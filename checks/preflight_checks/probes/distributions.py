"""The distributions that an interpreter finds, from the names of their metadata folders on sys.path.

The library's own function needs parsers of mail and archives, which take longer to import than everything that is read.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Dict, Optional, Sequence, Tuple

_FOLDER = re.compile(r"^(?P<name>[^-]+(?:-(?=\D)[^-]+)*?)-(?P<version>\d[^-]*)(?:-.*)?\.(?:dist|egg)-info$")


def parse_folder(entry: str) -> Optional[Tuple[str, str]]:
    """Normalised name and version of a metadata folder; None for any other folder."""
    match = _FOLDER.match(entry)
    if match is None:
        return None
    return re.sub(r"[-_.]+", "-", match.group("name")).lower(), match.group("version")


def version_of(*names: str) -> str:
    """The version of the first of these distributions that is installed; empty if none is."""
    return first_of(names, versions())


def first_of(names: Sequence[str], versions: Dict[str, str]) -> str:
    """The version of the first of these in `versions()`; empty if there is none."""
    return next((versions[name] for name in names if name in versions), "")


def versions() -> Dict[str, str]:
    """Every distribution with its version. As in the import system, the first folder of sys.path counts."""
    found: Dict[str, str] = {}
    for folder in dict.fromkeys(os.path.abspath(place or ".") for place in sys.path):
        try:
            entries = sorted(os.listdir(folder))
        except OSError:
            continue
        for entry in entries:
            named = parse_folder(entry) if entry.endswith("-info") else None
            if named is not None:
                found.setdefault(*named)
    return found
