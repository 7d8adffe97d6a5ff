"""The reference trainer as one file that any launcher can start in the place of a training script.

It is an archive that Python runs: sources only, which need Python 3.8 and torch. Its name must end in `.py`, since some
launchers put an interpreter in front of such names only, and its first line lets it be started by itself.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping

from preflight.bundle import sources_of

#: What runs in the job's own interpreter, and what of ours that imports.
PACKAGES = ("preflight.node", "reference_trainer")
_FIRST_LINE = b"#!/usr/bin/env python3\n"
_MAIN = "reference_trainer.__main__"
#: The same sources make the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def trainer_file(settings: Mapping[str, object]) -> bytes:
    """The file's bytes; `settings` are kept inside as what the trainer does without variables that say otherwise."""
    modules, packages = sources_of(PACKAGES)
    files = {}
    for name, source in modules.items():
        path = name.replace(".", "/")
        files[f"{path}/__init__.py" if name in packages else f"{path}.py"] = source
    files["__main__.py"] = modules[_MAIN]
    files["reference_trainer/settings.json"] = json.dumps(dict(settings), sort_keys=True)
    buffer = io.BytesIO()
    buffer.write(_FIRST_LINE)
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        for path, text in sorted(files.items()):
            archive.writestr(zipfile.ZipInfo(path, _DATE), text.encode())
    return buffer.getvalue()
