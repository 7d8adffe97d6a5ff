"""A tree of hostile files: each shape at a harmful size, and odd entries of a file system."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tests.hostile.shapes import BASH, LAUNCH, POD, SHAPES, TRAIN

_MIB = 1 << 20


def plant(root: Path) -> list[str]:
    """Write the tree; return the paths that cannot be read completely."""
    for shape in SHAPES:
        folder = root / f"{shape.name.strip('.').replace('.', '-')}-{shape.id}"
        folder.mkdir()
        (folder / shape.name).write_text(shape.text(6000))
    unread = list(_too_much(root / "large"))
    unread += odd_files(root / "odd")
    _many(root / "many")
    misleading_names(root / "names")
    return unread


def _too_much(folder: Path) -> Iterator[str]:
    """Files beyond the size limit."""
    folder.mkdir()
    texts = {
        "comments.sh": BASH + "# a comment\n" * 40_000 + LAUNCH,
        "lines.sh": BASH + "true a b\n" * 60_000 + LAUNCH,
        "steps.sh": BASH
        + "for a in 1 2 3 4 5 6 7 8; do for b in 1 2 3 4 5 6 7 8; do x=$a$b; y=$x; done; done\n" * 400
        + LAUNCH,
        "statements.py": TRAIN + "value = 1\n" * 80_000,
        "huge.sh": BASH + "#" * (11 * _MIB) + "\n" + LAUNCH,
        "huge.py": TRAIN + "#" * (11 * _MIB) + "\n",
        "huge.yaml": POD + '        command: ["torchrun", "t.py"]\n' + "#" * (11 * _MIB) + "\n",
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        yield f"large/{name}"
    with (folder / "sparse.sh").open("wb") as file:
        file.write(BASH.encode())
        file.truncate(1 << 40)
    yield "large/sparse.sh"
    (folder / "ds_config.json").write_text('{"train_batch_size": 1, "a": "' + "x" * (9 * _MIB) + '"}')
    (folder / "ds_config_items.json").write_text('{"train_batch_size": 1, "a": [' + "1," * (4 * _MIB) + "1]}")
    yield "large/ds_config_items.json"
    (folder / "line.py").write_text(TRAIN + "value = '" + "a" * (10 * _MIB - 4096) + "'\n")
    yield "large/line.py"


def odd_files(folder: Path) -> Iterator[str]:
    """Entries that are not regular files, or not text."""
    folder.mkdir()
    (folder / "nul.sh").write_bytes(BASH.encode() + b"\0\n" + LAUNCH.encode())
    (folder / "wide.sh").write_bytes((BASH + LAUNCH).encode("utf-16"))
    (folder / "binary.py").write_bytes(os.urandom(4096) + b"\0")
    os.mkfifo(folder / "fifo.sh")
    (folder / "loop.sh").symlink_to("loop.sh")
    (folder / "outside.sh").symlink_to("/etc/passwd")
    (folder / "device.sh").symlink_to("/dev/zero")
    (folder / "nowhere.sh").symlink_to("nothing-here")
    (folder / "folder.sh").mkdir()
    (folder / "up").symlink_to("..")
    names = ["nul.sh", "wide.sh", "binary.py", "fifo.sh", "loop.sh", "outside.sh", "device.sh", "nowhere.sh"]
    with suppress(OSError), socket.socket(socket.AF_UNIX) as server:
        # A socket's path has at most 107 bytes.
        before = Path.cwd()
        os.chdir(folder)
        try:
            server.bind("socket.sh")
        finally:
            os.chdir(before)
        names.append("socket.sh")
    yield from (f"odd/{name}" for name in names)


def _many(folder: Path) -> None:
    """Files that are harmless alone."""
    (folder / "ring").mkdir(parents=True)
    for number in range(100):
        sourced = "".join(f"source ring{(number + step) % 100}.sh\n" for step in (1, 7, 50))
        (folder / "ring" / f"ring{number}.sh").write_text(BASH + sourced + LAUNCH)
    (folder / "modules").mkdir()
    for number in range(100):
        (folder / "modules" / f"m{number}.py").write_text(TRAIN + f"import m{number + 1}\nimport m{number * 2}\n")
    (folder / "deep").mkdir()
    inner = folder / "deep"
    for _ in range(120):
        inner = inner / "d"
    inner.mkdir(parents=True)
    (inner / "run.sh").write_text(BASH + LAUNCH)


def misleading_names(folder: Path) -> None:
    """Misleading names."""
    folder.mkdir()
    for name in (
        "-rf.sh",
        "new\nline.sh",
        "bell\a.sh",
        "::error::.sh",
        "esc\x1b[31m.sh",
        "\udcff.sh",
        "a b.sh",
        "$(id).sh",
        "ünïcode.sh",
    ):
        with suppress(OSError, UnicodeError):
            (folder / name).write_text(BASH + LAUNCH)


def crowd(root: Path, count: int) -> None:
    """Write this number of files, of every shape in turn, each near the limit for one file."""
    for number in range(count):
        shape = SHAPES[number % len(SHAPES)]
        folder = root / f"d{number:04}"
        folder.mkdir()
        (folder / shape.name).write_text(shape.text(1500) + f"# {number}\n")
