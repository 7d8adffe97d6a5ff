"""Reading any entry of a directory gives a file or a located note, and nothing else."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

import pytest

from preflight.model.job import Note, NoteKind, Span
from preflight.sources.base import SourceFile
from preflight.sources.formats.tree import DirectoryTree, MemoryTree, OverlayTree


def _note(found: SourceFile | Note) -> Note:
    assert isinstance(found, Note), found
    assert found.span.line == 1 and found.span.column == 1
    return found


def _file(found: SourceFile | Note) -> SourceFile:
    assert isinstance(found, SourceFile), found
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "root"
    inside.mkdir()
    return inside


def test_a_path_of_a_configuration_counts_from_the_nearest_folder_above_that_has_it() -> None:
    tree = MemoryTree({"jobs/one/conf/a.yaml": "", "jobs/one/ds/zero.json": "{}", "ds/zero.json": "{}", "train.py": ""})
    assert tree.resolve("ds/zero.json", relative_to="jobs/one/conf/a.yaml") == "jobs/one/ds/zero.json"
    assert tree.resolve("train.py", relative_to="jobs/one/conf/a.yaml") == "train.py"
    assert tree.resolve("missing.py", relative_to="jobs/one/conf/a.yaml") == "jobs/one/conf/missing.py"


def test_a_path_of_a_program_counts_from_its_folder_or_from_the_root() -> None:
    tree = MemoryTree({"jobs/one/main.py": "", "jobs/train.py": "", "prepare.py": ""})
    assert tree.resolve("train.py", relative_to="jobs/one/main.py") == "jobs/one/train.py"
    assert tree.resolve("prepare.py", relative_to="jobs/one/main.py") == "prepare.py"


def test_a_path_of_a_script_counts_from_the_nearest_folder_that_has_the_file() -> None:
    tree = MemoryTree({"jobs/one/run.sh": "", "jobs/train.py": "", "train.py": ""})
    assert tree.resolve("train.py", relative_to="jobs/one/run.sh") == "jobs/train.py"
    assert tree.resolve("other.py", relative_to="jobs/one/run.sh") == "jobs/one/other.py"


def test_a_regular_file_comes_with_its_digest(root: Path) -> None:
    content = "\ufeffexport A=1\n# größer\n".encode()
    (root / "run.sh").write_bytes(content)
    read = _file(DirectoryTree(root).read("run.sh"))
    assert read.text == "export A=1\n# größer\n"
    assert read.sha256 == hashlib.sha256(content).hexdigest()
    assert read.size_bytes == len(content)


def test_undecodable_bytes_are_replaced(root: Path) -> None:
    (root / "latin").write_bytes(b"caf\xe9\n")
    assert _file(DirectoryTree(root).read("latin")).text == "caf\ufffd\n"


def test_one_file_is_read_once(root: Path) -> None:
    (root / "a").write_text("first")
    tree = DirectoryTree(root)
    tree.read("a")
    (root / "a").write_text("second")
    assert _file(tree.read("a")).text == "first"


def test_missing_files_and_directories(root: Path) -> None:
    (root / "sub").mkdir()
    tree = DirectoryTree(root)
    assert _note(tree.read("nothing")).kind is NoteKind.MISSING
    assert _note(tree.read("sub/nothing/deeper")).kind is NoteKind.MISSING
    directory = _note(tree.read("sub"))
    assert directory.kind is NoteKind.UNREADABLE and "a directory" in directory.message
    assert directory.span == Span("sub", 1, 1, 1, 1)


def test_a_fifo_is_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "pipe")
    note = _note(DirectoryTree(root).read("pipe"))
    assert note.kind is NoteKind.UNREADABLE and "FIFO" in note.message


def test_a_socket_and_a_device_are_not_opened(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("sock")
        assert "a socket" in _note(DirectoryTree(root).read("sock")).message
    assert "a character device" in _note(DirectoryTree(Path("/dev")).read("null")).message


def test_a_link_that_leaves_the_root_is_not_followed(root: Path) -> None:
    (root.parent / "secret").write_text("secret")
    (root / "out").symlink_to("../secret")
    (root / "dangling").symlink_to("/nowhere/at/all")
    (root / "up").symlink_to("..")
    tree = DirectoryTree(root)
    for path in ("out", "dangling", "up/secret", "../secret", "sub/../../secret"):
        note = _note(tree.read(path))
        assert note.kind is NoteKind.OUTSIDE, path
        assert "secret\n" not in note.message


def test_a_link_inside_the_root_is_followed(root: Path) -> None:
    (root / "a").write_text("inside")
    (root / "b").symlink_to("a")
    assert _file(DirectoryTree(root).read("b")).text == "inside"


def test_a_root_with_a_similar_name_is_outside(root: Path) -> None:
    (root.parent / "root2").mkdir()
    (root.parent / "root2" / "a").write_text("other")
    (root / "link").symlink_to("../root2/a")
    assert _note(DirectoryTree(root).read("link")).kind is NoteKind.OUTSIDE


def test_a_loop_of_links(root: Path) -> None:
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    (root / "d").symlink_to("d")
    for path in ("a", "d/run.sh"):
        note = _note(DirectoryTree(root).read(path))
        assert note.kind is NoteKind.UNREADABLE and "back to itself" in note.message


def test_eleven_megabytes_are_too_large(root: Path) -> None:
    with (root / "big").open("wb") as big:
        big.truncate(11 * 1024 * 1024)
    note = _note(DirectoryTree(root).read("big"))
    assert note.kind is NoteKind.TOO_LARGE
    assert "11.0 MiB" in note.message and "10 MiB" in note.message


def test_the_limit_itself_is_still_read(root: Path) -> None:
    (root / "a").write_text("x" * 100)
    assert isinstance(DirectoryTree(root, max_file_bytes=100).read("a"), SourceFile)
    assert _note(DirectoryTree(root, max_file_bytes=99).read("a")).kind is NoteKind.TOO_LARGE


def test_a_file_that_claims_to_be_empty_is_still_bounded() -> None:
    # /proc files have a size of 0 but contain text.
    note = _note(DirectoryTree(Path("/proc/self"), max_file_bytes=8).read("status"))
    assert note.kind is NoteKind.TOO_LARGE


def test_binary_content(root: Path) -> None:
    (root / "binary").write_bytes(b"abc\0def")
    note = _note(DirectoryTree(root).read("binary"))
    assert note.kind is NoteKind.UNREADABLE and "offset 3" in note.message


@pytest.mark.parametrize("path", ["a\0b", "\udcff", "x" * 5000, "", "/", "//etc/passwd", "~root"])
def test_impossible_names(root: Path, path: str) -> None:
    assert isinstance(DirectoryTree(root).read(path), Note)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission(root: Path) -> None:
    (root / "a").write_text("x")
    (root / "a").chmod(0)
    note = _note(DirectoryTree(root).read("a"))
    assert note.kind is NoteKind.UNREADABLE and "Permission denied" in note.message


def test_paths_are_resolved_from_the_file_then_from_the_root(root: Path) -> None:
    (root / "scripts").mkdir()
    (root / "scripts" / "train.py").write_text("")
    (root / "ds.json").write_text("")
    tree = DirectoryTree(root)
    assert tree.resolve("train.py", relative_to="scripts/run.sh") == "scripts/train.py"
    assert tree.resolve("./ds.json", relative_to="scripts/run.sh") == "ds.json"
    assert tree.resolve("../ds.json", relative_to="scripts/run.sh") == "ds.json"
    assert tree.resolve("none.json", relative_to="scripts/run.sh") == "scripts/none.json"
    assert tree.resolve("../../x", relative_to="scripts/run.sh") is None
    assert tree.resolve(str(root / "ds.json"), relative_to="scripts/run.sh") == "ds.json"
    assert tree.resolve("/etc/passwd", relative_to="scripts/run.sh") is None
    assert tree.resolve("", relative_to="scripts/run.sh") is None


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("/workspace/train.py", "scripts/train.py"),
        ("/opt/project/scripts/train.py", "scripts/train.py"),
        ("/workspace/conf/ds.json", "conf/ds.json"),
        ("/workspace/missing.py", None),
        ("/usr/lib/train.py", None),
        ("/workspace/weights.bin", None),
        ("/workspace/../etc/ds.json", None),
    ],
)
def test_the_path_that_a_container_has_for_a_file_of_the_tree(root: Path, written: str, found: str | None) -> None:
    files = {"scripts/train.py": "", "scripts/run.sh": "", "conf/ds.json": "{}", "scripts/weights.bin": ""}
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    assert DirectoryTree(root).resolve(written, relative_to="scripts/run.sh") == found
    memory = MemoryTree({name: text.encode() for name, text in files.items()})
    assert memory.resolve(written, relative_to="scripts/run.sh") == found


def test_memory_and_overlay() -> None:
    memory = MemoryTree({"a/run.sh": "echo", "bin": b"\0"})
    assert _file(memory.read("a/run.sh")).text == "echo"
    assert _note(memory.read("bin")).kind is NoteKind.UNREADABLE
    assert _note(memory.read("b")).kind is NoteKind.MISSING
    assert "a directory" in _note(memory.read("a")).message
    over = OverlayTree(memory, {"a/ds.json": "{}"})
    assert over.resolve("ds.json", relative_to="a/run.sh") == "a/ds.json"
    assert _file(over.read("a/ds.json")).text == "{}"
    assert _file(over.read("a/run.sh")).text == "echo"
    assert over.resolve("/x", relative_to="a/run.sh") is None
