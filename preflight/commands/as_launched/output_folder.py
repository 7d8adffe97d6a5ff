"""Writes the changed scripts and the trainer to a folder: all of them or none."""

from __future__ import annotations

import io
import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from preflight._util import regular_file
from preflight.commands.as_launched.edits import Refusal
from preflight.commands.as_launched.plan import ChangedCopy, Relaunch
from preflight.executors.bundle import sources_of
from preflight.sources.formats.tree import MAX_BYTES

_BOM = b"\xef\xbb\xbf"


def encoded(root: Path, copy: ChangedCopy) -> bytes:
    """Return the bytes of the changed file: those of the old file except for the replaced parts.

    Raises:
        Refusal: the old file is not UTF-8.
    """
    try:
        raw = regular_file.read(root / copy.path, MAX_BYTES)
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(f"{copy.path} is not UTF-8 at byte {error.start}; save it as UTF-8 first") from None
    except OSError as error:
        raise Refusal(f"{copy.path} cannot be read: {error.strerror}") from None
    return (_BOM if raw.startswith(_BOM) else b"") + copy.text.encode("utf-8")


def write(root: Path, relaunch: Relaunch, trainers: Mapping[str, bytes], folder: Path) -> tuple[Path, ...]:
    """Write everything to `folder` and return the paths, the changed script first and the trainers last.

    Args:
        trainers: content by file name.

    Raises:
        Refusal: a file would overwrite its original, or cannot be written.
    """
    wanted: list[tuple[Path, bytes, int]] = []
    for copy in relaunch.copies:
        old = root / copy.path
        target = folder / copy.name
        if target.exists() and target.samefile(old):
            raise Refusal(f"{target} is the job's own file; choose another --to folder")
        wanted.append((target, encoded(root, copy), stat.S_IMODE(old.stat().st_mode) | stat.S_IWUSR))
    wanted += [(folder / name, data, 0o755) for name, data in sorted(trainers.items())]
    drafts: list[tuple[Path, Path]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for target, data, mode in wanted:
            descriptor, name = tempfile.mkstemp(dir=folder, prefix=f".{target.name[:64]}.")
            drafts.append((Path(name), target))
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            Path(name).chmod(mode)
        for draft, target in drafts:
            draft.replace(target)
    except OSError as error:
        for draft, _ in drafts:
            draft.unlink(missing_ok=True)
        raise Refusal(f"{folder} cannot be written to: {error.strerror}") from None
    return tuple(target for target, _, _ in wanted)


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
