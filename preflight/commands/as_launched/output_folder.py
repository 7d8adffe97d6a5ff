"""Writes the changed scripts and the trainer to a folder: all of them or none."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from preflight._util import regular_file
from preflight.commands.as_launched.edits import Refusal
from preflight.commands.as_launched.plan import ChangedCopy, Relaunch
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
