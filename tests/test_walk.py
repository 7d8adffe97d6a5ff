from __future__ import annotations

import os
from pathlib import Path

from preflight import walk as module
from preflight.walk import walk


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_only_files_that_may_belong_to_a_job_are_found_in_order(tmp_path: Path) -> None:
    make(tmp_path, "b.sh", "a/run", "a/z.py", "ds.json", "img.png", ".hidden.sh", ".git/x.sh", "venv/x.py")
    assert walk(tmp_path, ".").files == ("b.sh", "ds.json", "a/run", "a/z.py")
    assert walk(tmp_path, "a").files == ("a/run", "a/z.py")


def test_ignored_files_are_left_out(tmp_path: Path) -> None:
    make(
        tmp_path,
        "out/x.sh",
        "a/out/y.sh",
        "a/keep.sh",
        "a/gen1.sh",
        "top.sh",
        "a/top.sh",
        "b/c/d/e.sh",
        "b/e.sh",
    )
    (tmp_path / ".gitignore").write_text("# made\n\nout/\ngen?.sh\n/top.sh\nb/**/e.sh\n!b/e.sh\n" + "*a" * 50 + "\n")
    assert walk(tmp_path, ".").files == ("a/keep.sh", "a/top.sh", "b/e.sh")


def test_links_to_folders_are_not_entered(tmp_path: Path) -> None:
    make(tmp_path, "a/run.sh")
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "a" / ".gitignore")
    assert walk(tmp_path, ".").files == ("a/run.sh",)


def test_too_many_files_are_noted(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path, *(f"{n}.sh" for n in range(5)))
    monkeypatch.setattr(module, "MOST_FILES", 3)
    walked = walk(tmp_path, ".")
    assert len(walked.files) == 3 and "3 files" in walked.notes[0].message
