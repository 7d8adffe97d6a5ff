"""The reference trainer as one file that any launcher can start in place of a training script.

It is an archive that Python runs: sources only, which need Python 3.8 and torch. Its name must end in `.py` because
some launchers add an interpreter only before such names; a first line makes it executable by itself.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping

from preflight.executors.bundle import sources_of

#: Modules that run in the job's own interpreter, and our modules that they import.
PACKAGES = ("preflight.agent", "reference_trainer")
_FIRST_LINE = b"#!/usr/bin/env python3\n"
_MAIN = "reference_trainer.__main__"
#: A fixed time, so that the same sources give the same bytes.
_DATE = (1980, 1, 1, 0, 0, 0)


def trainer_file(settings: Mapping[str, object]) -> bytes:
    """Return the file's bytes; `settings` are stored inside as defaults for variables that are not set."""
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
