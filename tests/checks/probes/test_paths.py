"""Paths of a job: patterns, lists, prefixes, mounts, and contents of files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from preflight_checks.probes import paths
from preflight_checks.probes.cgroups import mount_of, mounted, mounts
from preflight_checks.probes.paths import (
    FULL_READ_BYTES,
    MAX_FILES,
    chosen,
    digest_of,
    expanded,
    has_braces,
    path_state,
    sampled,
)

MOUNTS = """/dev/sda1 / ext4 rw 0 0
tmpfs /dev/shm tmpfs rw,nosuid,noexec 0 0
mds:/data /data lustre ro,flock 0 0
nas:/x /mnt/with\\040space nfs4 rw 0 0
tmpfs /data tmpfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/data/train", "tmpfs"), ("/database", "ext4"), ("/mnt/with space/a", "nfs4"), ("/", "ext4")],
)
def test_the_mount_of_a_path(path: str, kind: str) -> None:
    found = mount_of(path, mounts(MOUNTS))
    assert found is not None and found.kind == kind
    assert mount_of(path, []) is None


def test_options_of_mounts() -> None:
    table = {mount.kind: mount for mount in mounts(MOUNTS)}
    assert table["lustre"].read_only and not table["ext4"].read_only
    assert table["lustre"].source == "mds:/data"
    assert mounted() == [] or mount_of("/", mounted()) is not None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("/d/{000..002}.tar", ["/d/000.tar", "/d/001.tar", "/d/002.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("a{b,c}{1..2}", ["ab1", "ab2", "ac1", "ac2"]),
        ("{c..a}", ["c", "b", "a"]),
        ("{00..10..5}", ["00", "05", "10"]),
        ("plain", ["plain"]),
        ("{name}", ["{name}"]),
    ],
)
def test_braces(text: str, names: list[str]) -> None:
    assert expanded(text) == names
    assert has_braces(text) is (names != [text])


def test_too_long_a_range_is_not_expanded() -> None:
    assert not has_braces("{0..99999999}") and expanded("{0..99999999}") == ["{0..99999999}"]
    assert len(expanded("{0..40000}{0..40000}")) == 50000


def test_missing_shards_of_a_pattern(tmp_path: Path) -> None:
    for index in (0, 1, 3):
        (tmp_path / f"{index:02}.tar").write_text("x")
    found = path_state({"path": f"{tmp_path}/{{00..03}}.tar"})
    assert found.kind == "pattern" and found.listed == 3 and found.absent == ["02.tar"]
    assert path_state({"path": f"{tmp_path}/no{{00..03}}.tar"}).problem == "missing"


def test_a_slow_folder_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(paths, "TIME_LIMIT_S", -1.0)
    found = path_state({"path": str(tmp_path)})
    assert found.hurried and found.samples == []


def test_an_indexed_data_set_is_found_by_its_prefix(tmp_path: Path) -> None:
    (tmp_path / "wiki_text_document.bin").write_bytes(b"12345")
    found = path_state({"path": str(tmp_path / "wiki_text_document")})
    assert (found.kind, found.size_bytes, found.absent) == ("indexed", 5, ["wiki_text_document.idx"])
    (tmp_path / "wiki_text_document.idx").touch()
    assert path_state({"path": str(tmp_path / "wiki_text_document")}).absent == []


def test_a_list_and_the_files_it_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "part-0").write_text("x")
    (tmp_path / "data" / "train.list").write_text("part-0 3\n\n# old\ngone\n")
    found = path_state({"path": str(tmp_path / "data" / "train.list")})
    assert found.kind == "list" and found.listed == 2 and [name.rpartition("/")[2] for name in found.absent] == ["gone"]


def test_permission_of_files_and_folders(tmp_path: Path) -> None:
    if os.getuid() == 0:
        pytest.skip("root reads everything")
    (tmp_path / "closed").mkdir(mode=0o000)
    assert path_state({"path": str(tmp_path / "closed")}).problem == "denied"


def test_every_node_reads_the_same_few_files() -> None:
    names = [f"part-{i:05}" for i in range(1000)]
    picked = chosen(names)
    assert len(picked) == MAX_FILES and picked == chosen(reversed(names))
    # One file fewer on a node leaves the others chosen.
    assert len(set(picked) & set(chosen(name for name in names if name != picked[0]))) == MAX_FILES - 1


def test_digests_distinguish_contents_of_one_size(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"abc")
    two.write_bytes(b"abd")
    assert digest_of("x", str(one)).digest != digest_of("x", str(two)).digest
    assert digest_of("x", str(one)).whole


@pytest.mark.parametrize("place", [0, 5 * FULL_READ_BYTES // 2, 5 * FULL_READ_BYTES - 1])
def test_large_files_are_sampled(tmp_path: Path, place: int) -> None:
    data = bytearray(5 * FULL_READ_BYTES)
    file = tmp_path / "large"
    file.write_bytes(data)
    before = digest_of("x", str(file))
    assert not before.whole
    data[place] = 1
    file.write_bytes(data)
    assert digest_of("x", str(file)).digest != before.digest


def test_a_file_that_cannot_be_read_ends_the_sample_with_a_reason(tmp_path: Path) -> None:
    found, problem = sampled({"a": str(tmp_path / "none")})
    assert found == [] and "No such file" in problem


def test_a_pipe_where_a_file_was_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert path_state({"path": str(tmp_path / "pipe")}).kind == "other"
    assert path_state({"path": str(tmp_path)}).samples == []


def test_files_of_a_server_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")
    assert [sample.name for sample in path_state({"path": str(tmp_path)}).samples] == ["a"]
    shared = mounts("nas:/x / nfs4 rw 0 0\n")
    monkeypatch.setattr(paths, "mounted", lambda: shared)
    found = path_state({"path": str(tmp_path)})
    assert found.samples == [] and (found.file_system, found.source) == ("nfs4", "nas:/x")
