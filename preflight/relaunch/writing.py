"""Writes the changed scripts and the trainer into a folder: all of them or, where one cannot be, none."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from preflight.relaunch.edits import Refusal
from preflight.relaunch.plan import Copy, Relaunch

_BOM = b"\xef\xbb\xbf"


def encoded(root: Path, copy: Copy) -> bytes:
    """The changed file's bytes: those of the old one but for what was replaced.

    Raises:
        Refusal: the old one is no UTF-8, so that its bytes cannot be told from its text.
    """
    try:
        raw = (root / copy.path).read_bytes()
        raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal(f"{copy.path} is not UTF-8 at byte {error.start}; save it as that first") from None
    except OSError as error:
        raise Refusal(f"{copy.path} cannot be read: {error.strerror}") from None
    return (_BOM if raw.startswith(_BOM) else b"") + copy.text.encode("utf-8")


def write(root: Path, relaunch: Relaunch, trainers: Mapping[str, bytes], folder: Path) -> tuple[Path, ...]:
    """Write everything into `folder`; returns the paths, the changed script first and the trainers last.

    Args:
        trainers: by name.

    Raises:
        Refusal: a file would take the place of the one that it was made from, or cannot be written.
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
            draft = target.with_name(f".{target.name}.{os.getpid()}")
            drafts.append((draft, target))
            draft.write_bytes(data)
            draft.chmod(mode)
        for draft, target in drafts:
            draft.replace(target)
    except OSError as error:
        for draft, _ in drafts:
            draft.unlink(missing_ok=True)
        raise Refusal(f"{folder} cannot be written to: {error.strerror}") from None
    return tuple(target for target, _, _ in wanted)
