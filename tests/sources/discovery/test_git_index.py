from __future__ import annotations

import os
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from preflight.sources.discovery import walk as walking
from preflight.sources.discovery.walk import UnreadableIndex, tracked_in, walk

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="there is no git")


def git(folder: Path, *words: str) -> None:
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, timeout=60, env=environment)


def write(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("srun torchrun --nnodes=2 train.py\n")


def repository(root: Path, *names: str, options: tuple[str, ...] = ()) -> Path:
    root.mkdir(exist_ok=True)
    git(root, "init", "-q", *options)
    write(root, *names)
    git(root, "add", "-f", ".")
    return root


@needs_git
@pytest.mark.parametrize("version", [2, 3, 4])
def test_every_version_lists_what_git_lists(version: int, tmp_path: Path) -> None:
    names = ["a.sh", "sub/b.sh", "sub/bb.sh", "sub/deeper/c.sh", "x" * 200, "ünïcode/ü.sh", "z z.sh"]
    root = repository(tmp_path / "r", *names)
    write(root, "intended.sh", "untracked.sh")
    if version == 3:
        git(root, "add", "-N", "intended.sh")  # An extended flag, which exists from version 3 on.
        names.append("intended.sh")
    git(root, "update-index", "--index-version", str(version))
    assert (root / ".git" / "index").read_bytes()[7] == version
    found = tracked_in(root)
    assert found.files == set(names)
    assert found.folders == {"sub", "sub/deeper", "ünïcode"}
    assert found.has("sub", is_folder=True)
    assert not found.has("sub", is_folder=False)


@needs_git
def test_a_sha256_index_is_read(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh", "b/c.sh", options=("--object-format=sha256",))
    assert tracked_in(root).files == {"a.sh", "b/c.sh"}


@needs_git
def test_a_linked_worktree_and_a_submodule(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh")
    git(root, "commit", "-qm", "x")
    git(root, "worktree", "add", "-q", "../w")
    assert tracked_in(tmp_path / "w").files == {"a.sh"}
    inner = repository(tmp_path / "inner", "b.sh")
    git(inner, "commit", "-qm", "x")
    git(root, "submodule", "add", "-q", str(inner), "sub")
    assert tracked_in(root).files == {"a.sh", ".gitmodules"}
    assert tracked_in(root / "sub").files == {"b.sh"}
    (root / ".gitignore").write_text("*\n")
    assert walk(root, ".").files == ("a.sh", "sub/b.sh")


@needs_git
def test_a_split_index_is_rejected(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh", "b.sh")
    git(root, "update-index", "--split-index")
    with pytest.raises(UnreadableIndex, match="split"):
        tracked_in(root)
    (root / ".gitignore").write_text("*\n")
    assert walk(root, ".").files == ("a.sh", "b.sh")


@needs_git
def test_tracked_files_are_not_ignored(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh", "sub/b.sh")
    write(root, "new.sh", "sub/new.sh", "made/x.sh", "made/y.sh")
    (root / ".gitignore").write_text("*\n")
    found = walk(root, ".")
    assert found.files == ("a.sh", "sub/b.sh")
    assert [(one.path, one.files, one.reason) for one in found.left_out] == [
        (".", 1, "ignored by .gitignore"),
        ("made", 2, "ignored by .gitignore"),
        ("sub", 1, "not tracked by git"),
    ]
    # A folder named by the user is read even if it is ignored.
    assert walk(root, "sub").files == ("sub/b.sh", "sub/new.sh")


@needs_git
@pytest.mark.parametrize("marker", ["pyvenv.cfg", "conda-meta"])
def test_tracked_files_in_an_environment_are_not_hidden(marker: str, tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "jobs/a.sh", f"jobs/{marker}")
    write(root, "jobs/lib/x.py", "env/bin/y.sh", f"env/{marker}")
    found = walk(root, ".")
    assert found.files[0] == "jobs/a.sh"
    assert not {"env/bin/y.sh", "jobs/lib/x.py"} & set(found.files)
    assert {(one.path, one.reason) for one in found.left_out} >= {("env", "installed environment")}


@needs_git
def test_no_command_of_the_repository_is_run(tmp_path: Path) -> None:
    root = repository(tmp_path / "r", "a.sh")
    mark = tmp_path / "mark"
    with (root / ".git" / "config").open("a") as config:
        config.write(f'[core]\n\tfsmonitor = "touch {mark}; false"\n')
    (root / ".gitignore").write_text("*\n")
    assert walk(root, ".").files == ("a.sh",)
    assert not mark.exists()


def index(*paths: bytes, version: int = 2, strip: bytes = b"\0") -> bytes:
    parts = [struct.pack("!4sII", b"DIRC", version, len(paths))]
    for path in paths:
        entry = struct.pack("!24xI12x", 0o100644) + bytes(20) + struct.pack("!H", len(path))
        body = strip + path + b"\0" if version == 4 else path
        parts.append(entry + body)
        if version < 4:
            parts.append(bytes(8 - len(entry + body) % 8))
    return b"".join(parts) + bytes(20)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"DIRC",
        b"PACK" + bytes(100),
        struct.pack("!4sII", b"DIRC", 9, 0) + bytes(20),
        struct.pack("!4sII", b"DIRC", 2, 0xFFFFFFFF) + bytes(5000),
        index(b"/absolute"),
        index(b""),
        index(b"a")[:-30],
        # Each entry adds a kilobyte to the path before it: 40 MB of index would encode 800 GB of paths.
        index(*[b"a" * 1000] * 5000, version=4),
        index(b"a", version=4, strip=b"\xff" * 40),
    ],
)
def test_a_hostile_index_is_rejected(content: bytes, tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "index").write_bytes(content)
    write(tmp_path, "a.sh")
    (tmp_path / ".gitignore").write_text("*\n")
    with pytest.raises(UnreadableIndex, match="the index of"):
        tracked_in(tmp_path)
    # Unknown is not untracked: everything is examined, and a note gives the reason.
    found = walk(tmp_path, ".")
    assert found.files == ("a.sh",)
    assert "the files that git tracks are unknown" in found.notes[0].message


@pytest.mark.parametrize("said", ["gitdir: /nowhere", "gitdir: \0", "nonsense", "gitdir: " + "a" * 9000])
def test_a_git_file_with_a_missing_target(said: str, tmp_path: Path) -> None:
    (tmp_path / ".git").write_text(said)
    write(tmp_path, "a.sh")
    (tmp_path / ".gitignore").write_text("*\n")
    # /nowhere has no index, so nothing is tracked.
    assert walk(tmp_path, ".").files == (() if said == "gitdir: /nowhere" else ("a.sh",))


def test_an_index_that_is_a_fifo(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "index")
    with pytest.raises(UnreadableIndex, match="FIFO"):
        tracked_in(tmp_path)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_index_is_read_or_rejected(data: st.DataObject, tmp_path: Path) -> None:
    good = bytearray(index(b"a.sh", b"b/c.sh", version=data.draw(st.sampled_from([2, 4]))))
    for at in data.draw(st.lists(st.integers(0, len(good) - 1), max_size=6)):
        good[at] = data.draw(st.integers(0, 255))
    (tmp_path / ".git").mkdir(exist_ok=True)
    (tmp_path / ".git" / "index").write_bytes(good[: data.draw(st.integers(0, len(good)))])
    try:
        assert len(tracked_in(tmp_path).files) <= walking._MAX_ENTRIES
    except UnreadableIndex as problem:
        assert str(problem)
