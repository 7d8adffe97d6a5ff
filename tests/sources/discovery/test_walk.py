from __future__ import annotations

import os
from pathlib import Path

import pytest

from preflight._util.usage_error import UsageError
from preflight.sources.discovery import walk as module
from preflight.sources.discovery.walk import walk


def make(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")


def test_only_files_that_may_belong_to_a_job_are_found_in_order(tmp_path: Path) -> None:
    make(tmp_path, "b.sh", "a/run", "a/z.py", "ds.json", "img.png", ".hidden.sh", ".git/x.sh", "venv/x.py")
    assert walk(tmp_path, ".").files == ("b.sh", "ds.json", "a/run", "a/z.py")
    assert walk(tmp_path, "a").files == ("a/run", "a/z.py")


def test_ignored_files_are_skipped(tmp_path: Path) -> None:
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
    assert walk(tmp_path, "a").files == ("a/keep.sh", "a/top.sh")
    # A folder named by the user is read even if it is ignored.
    assert walk(tmp_path, "out").files == ("out/x.sh",)


def test_the_innermost_matching_ignore_file_decides(tmp_path: Path) -> None:
    make(tmp_path, "a/x.sh", "a/b/x.sh", "a/b/y.sh", "y.sh", "a/b/c/y.sh")
    (tmp_path / ".gitignore").write_text("x.sh\ny.sh\n\\\n[\n")
    (tmp_path / "a" / "b" / ".gitignore").write_text("!x.sh\n!/y.sh\n")
    assert walk(tmp_path, ".").files == ("a/b/x.sh", "a/b/y.sh")


def test_excluded_files_are_skipped(tmp_path: Path) -> None:
    make(tmp_path, "a/x.sh", "b/x.sh", "b/a/x.sh", "c.sh")
    (tmp_path / ".gitignore").write_text("!*.sh\n")
    assert walk(tmp_path, ".", exclude=["/a", "c.*"]).files == ("b/x.sh", "b/a/x.sh")
    with pytest.raises(UsageError, match="is not a pattern"):
        walk(tmp_path, ".", exclude=["!"])


def test_the_first_bytes_decide_if_the_name_does_not(tmp_path: Path) -> None:
    make(tmp_path, "Dockerfile.train", "hostfile.4", ".env", ".envrc", "job.lsf", "train.list")
    (tmp_path / "start.node0").write_text("#!/usr/bin/env bash\necho\n")
    (tmp_path / "big.run").write_text("#BSUB -n 4\necho\n")
    (tmp_path / "notes.2024").write_text("what was said\n")
    (tmp_path / "run.sh.j2").write_text("#!/bin/bash\n{{ x }}\n")
    os.mkfifo(tmp_path / "pipe.run")
    found = walk(tmp_path, ".").files
    assert found == (".env", "Dockerfile.train", "big.run", "hostfile.4", "job.lsf", "start.node0", "train.list")


def test_third_party_folders_are_skipped_unless_named(tmp_path: Path) -> None:
    make(tmp_path, "third_party/x.sh", "pkg/testdata/y.yaml", "tools/pyvenv.cfg", "tools/bin/run", "here.sh")
    assert walk(tmp_path, ".").files == ("here.sh",)
    assert walk(tmp_path, "pkg/testdata").files == ("pkg/testdata/y.yaml",)


def test_links_to_folders_are_not_entered(tmp_path: Path) -> None:
    make(tmp_path, "a/run.sh")
    (tmp_path / "a" / "again").symlink_to(tmp_path, target_is_directory=True)
    os.mkfifo(tmp_path / "a" / ".gitignore")
    assert walk(tmp_path, ".").files == ("a/run.sh",)


def test_circular_links_are_reported_when_read(tmp_path: Path) -> None:
    make(tmp_path, "run.sh")
    (tmp_path / "train.sh").symlink_to("train.sh")
    (tmp_path / "a.py").symlink_to("b.py")
    (tmp_path / "b.py").symlink_to("a.py")
    assert walk(tmp_path, ".").files == ("a.py", "b.py", "run.sh", "train.sh")


def test_too_many_files_are_noted(tmp_path: Path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path, *(f"{n}.sh" for n in range(5)))
    monkeypatch.setattr(module, "MAX_FILES", 3)
    walked = walk(tmp_path, ".")
    assert len(walked.files) == 3 and "3 files" in walked.notes[0].message
