"""The pieces of a checkpoint, by the file names of frameworks."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from preflight_checks.probes import copies as probe
from preflight_checks.probes import folders
from preflight_checks.probes.copies import copies, named_values
from preflight_checks.probes.folders import (
    FULL_READ_BYTES,
    MAX_FILES,
    Quota,
    Target,
    checkpoint_state,
    digest_of,
    expand_braces,
    folder_state,
    has_braces,
    parse_lfs_df,
    parse_lfs_quota,
    parse_quota,
    path_state,
    quotas_of,
    sample_files,
    select_paths,
    write_trial,
)
from preflight_checks.probes.limits import Mount, current_mounts, mount_of, parse_mount_table


def put(folder: Path, *names: str, text: str = "x") -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_deepspeed_with_its_newest_tag(tmp_path: Path) -> None:
    pieces = [f"global_step7/bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(4)]
    put(tmp_path, *pieces, "global_step7/mp_rank_00_model_states.pt", "global_step3/mp_rank_00_model_states.pt")
    put(tmp_path, "latest", text="global_step7\n")
    put(tmp_path, "global_step7/zero_pp_rank_4_mp_rank_00_optim_states.pt", text="")
    seen = checkpoint_state({"path": str(tmp_path)})
    assert (seen.tag, seen.zero, seen.model) == ("global_step7", [0, 1, 2, 3, 4], [0])
    assert seen.hollow == ["zero_pp_rank_4_mp_rank_00_optim_states.pt"] and not seen.universal
    (tmp_path / "global_step7" / "zero").mkdir()
    assert checkpoint_state({"path": str(tmp_path)}).universal


def test_megatrons_iterations(tmp_path: Path) -> None:
    names = [f"iter_0000500/mp_rank_{t:02}_{p:03}/model_optim_rng.pt" for t in range(2) for p in range(4)]
    put(tmp_path, *names)
    put(tmp_path, "latest_checkpointed_iteration.txt", text="500")
    seen = checkpoint_state({"path": str(tmp_path)})
    assert (seen.tag, seen.tensor, seen.stages) == ("iter_0000500", [0, 1], [0, 1, 2, 3])
    put(tmp_path, "latest_checkpointed_iteration.txt", text="release")
    assert checkpoint_state({"path": str(tmp_path)}).problem == "tag"


def test_torch_and_hugging_face(tmp_path: Path) -> None:
    put(tmp_path, "__0_0.distcp", "__0_1.distcp", "__1_0.distcp", "rng_state_0.pth", "rng_state_1.pth")
    seen = checkpoint_state({"path": str(tmp_path)})
    assert (seen.distributed, seen.random, seen.index) == ([0, 1], [0, 1], False)
    put(tmp_path, ".metadata")
    assert checkpoint_state({"path": str(tmp_path)}).index


def test_a_file_an_empty_folder_and_nothing(tmp_path: Path) -> None:
    put(tmp_path, "model.pt", text="12345")
    assert checkpoint_state({"path": str(tmp_path / "model.pt")}).size_bytes == 5
    put(tmp_path, "hollow.pt", text="")
    assert checkpoint_state({"path": str(tmp_path / "hollow.pt")}).hollow == ["hollow.pt"]
    (tmp_path / "empty").mkdir()
    assert checkpoint_state({"path": str(tmp_path / "empty")}).problem == "empty"
    assert checkpoint_state({"path": str(tmp_path / "none")}).problem == "missing"


def test_a_tag_that_leaves_the_folder_is_ignored(tmp_path: Path) -> None:
    put(tmp_path / "run", "latest", text="../../etc")
    assert checkpoint_state({"path": str(tmp_path / "run")}).tag == ""


# Hashing the job's files on a node, and the numbers in them.


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        (
            "ds.json",
            '{"train_batch_size": 8, "fp16": {"enabled": true}, "optimizer": {"params": {"lr": 1e-3}}, "api_key": 5}',
            {"train_batch_size": "8", "fp16.enabled": "true", "optimizer.params.lr": "0.001"},
        ),
        ("auto.json", '{"train_batch_size": "auto", "list": [1, 2, 2]}', {"train_batch_size": "auto", "list": "1, 2"}),
        (
            "c.yaml",
            "trainer:\n  devices: 8  # each\n  strategy: ddp\ndata:\n  - batch_size: 4\n    pin: True\nlast: 1\n",
            {"trainer.devices": "8", "data.batch_size": "4", "data.pin": "true", "last": "1"},
        ),
        (
            "t.py",
            "BATCH = 8\nloader = DataLoader(data, batch_size=4, shuffle=True)\n"
            "parser.add_argument('-b', '--batch-size', type=int, default=-1)\nself.heads: int = 16\ntoken = 'secret'\n",
            {"BATCH": "8", "batch_size": "4", "shuffle": "true", "--batch-size": "-1", "heads": "16"},
        ),
        (
            "run.sh",
            "export NNODES=2 NAME=train\nGPUS='4'; torchrun --nnodes=$NNODES --nproc_per_node 8 --lr=3e-4 t.py\n",
            {"NNODES": "2", "GPUS": "4", "--nproc_per_node": "8", "--lr": "3e-4"},
        ),
        ("hostfile", "node1 slots=4\nnode2  slots=8 # big\n", {"node1": "4", "node2": "8", "slots": "4, 8"}),
        ("broken.json", "{", {}),
        ("broken.py", "def (", {}),
        ("deep.json", "[" * 5000, {}),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value and "\n" not in value else "",
)
def test_numbers_by_name(name: str, text: str, values: dict[str, str]) -> None:
    assert named_values(name, text) == values


def test_a_hostile_file_costs_little() -> None:
    assert len(named_values("a.sh", " ".join(f"X{index}=1" for index in range(5000)))) == 400
    named_values("b.yaml", "a: 1 " * 200_000)
    named_values("c.sh", "--" * 500_000)


def test_copies_are_hashed_where_they_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("lr = 1\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "net.py").write_text("x = 1\n")
    for folder in (".git", "env", "wandb"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "skipped.py").write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "data.json").mkdir()
    seen = copies({"files": [["train.py", ["nowhere/train.py", "train.py"]], ["gone", ["gone"]], ["d", ["data.json"]]]})
    train, gone, data = seen.copies
    assert train.sha256 == hashlib.sha256(b"lr = 1\n").hexdigest() and train.numbers == {"lr": "1"}
    assert train.path == str(tmp_path / "train.py")
    assert gone.problem == "missing" and data.problem == "it is not a regular file"
    assert sorted(seen.code) == ["model/net.py", "train.py"] and seen.code_files == 2 and seen.code_hash


def test_a_home_directory_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    seen = copies({"files": [["train.py", ["train.py"]]]})
    assert seen.copies[0].sha256 and seen.code_files == 0


def test_large_trees_are_cut_off_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "MAX_CODE", 3)
    for index in range(5):
        (tmp_path / f"m{index}.py").write_text("")
    seen = copies({"files": [["m0.py", ["m0.py"]]]})
    assert "of code" in seen.cut and seen.code_hash == ""


# Folders that a job writes to, quotas and targets, from this machine and from recorded outputs.


QUOTA = """\
Disk quotas for user alice (uid 1001):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
nas:/home 10485760* 9437184 10485760 1700000000  120034       0  200000       0
/dev/sdb1     100       0       0       0       3       0       0       0
"""
NO_QUOTA = "Disk quotas for user root (uid 0): none\n"
LFS_QUOTA = "    /scratch 1073741824  0 2147483648       -  500000       0 1000000       -\n"
LFS_DF = """\
UUID                   1K-blocks        Used   Available Use% Mounted on
scratch-MDT0000_UUID    10000000     5000000     5000000  50% /scratch[MDT:0]
scratch-OST0000_UUID   100000000    99000000     1000000  99% /scratch[OST:0]
OST0001             : inactive device

filesystem_summary:    100000000    99000000     1000000  99% /scratch
"""


def test_output_of_quota() -> None:
    assert parse_quota(QUOTA, "nas:/home") == [Quota("user", 10485760 * 1024, 10485760 * 1024, 120034, 200000)]
    assert parse_quota(QUOTA, "/dev/sdb1") == [Quota("user", 100 * 1024, None, 3, None)]
    assert parse_quota(NO_QUOTA, "nas:/home") == parse_quota("", "x") == []


def test_output_of_lfs() -> None:
    assert parse_lfs_quota(LFS_QUOTA) == [Quota("user", 2**40, 2**41, 500000, 1000000)]
    assert parse_lfs_quota("") == []
    assert parse_lfs_df(LFS_DF)[1] == Target("scratch-OST0000", 102400000000, 1024000000)
    assert len(parse_lfs_df(LFS_DF)) == 2


def test_without_the_tool_quotas_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("preflight.agent.command.SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", "/nowhere")
    for kind, source in (("lustre", "mds:/scratch"), ("nfs4", "nas:/home"), ("tmpfs", "tmpfs")):
        assert quotas_of(Mount("/scratch", kind, source, "rw")) == []


def test_an_existing_folder_and_a_missing_one(tmp_path: Path) -> None:
    there = folder_state({"path": str(tmp_path)})
    assert there.exists and there.writable and there.free_bytes and there.file_system
    made = folder_state({"path": str(tmp_path / "a" / "b")})
    assert not made.exists and made.nearest == str(tmp_path) and made.problem == ""
    assert not (tmp_path / "a").exists()


def test_obstacles_to_writing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    assert folder_state({"path": str(tmp_path / "file")}).problem == "file"
    assert folder_state({"path": str(tmp_path / "file" / "below")}).problem == "file"
    assert folder_state({"path": str(tmp_path / "link" / "below")}).problem == "dangling"


def test_a_write_trial_leaves_nothing(tmp_path: Path) -> None:
    done = write_trial({"path": str(tmp_path / "run")})
    assert done.problem == "" and done.folder == str(tmp_path) and list(tmp_path.iterdir()) == []


def test_a_failed_write_trial_has_a_reason() -> None:
    assert write_trial({"path": "/proc/none"}).problem


# Paths of a job: patterns, lists, prefixes, mounts, and contents of files.


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
    found = mount_of(path, parse_mount_table(MOUNTS))
    assert found is not None and found.kind == kind
    assert mount_of(path, []) is None


def test_options_of_mounts() -> None:
    table = {mount.kind: mount for mount in parse_mount_table(MOUNTS)}
    assert table["lustre"].read_only and not table["ext4"].read_only
    assert table["lustre"].source == "mds:/data"
    assert current_mounts() == [] or mount_of("/", current_mounts()) is not None


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
    assert expand_braces(text) == names
    assert has_braces(text) is (names != [text])


def test_too_long_a_range_is_not_expanded() -> None:
    assert not has_braces("{0..99999999}") and expand_braces("{0..99999999}") == ["{0..99999999}"]
    assert len(expand_braces("{0..40000}{0..40000}")) == 50000


def test_missing_shards_of_a_pattern(tmp_path: Path) -> None:
    for index in (0, 1, 3):
        (tmp_path / f"{index:02}.tar").write_text("x")
    found = path_state({"path": f"{tmp_path}/{{00..03}}.tar"})
    assert found.kind == "pattern" and found.listed == 3 and found.absent == ["02.tar"]
    assert path_state({"path": f"{tmp_path}/no{{00..03}}.tar"}).problem == "missing"


def test_a_slow_folder_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    monkeypatch.setattr(folders, "TIME_LIMIT_S", -1.0)
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
    picked = select_paths(names)
    assert len(picked) == MAX_FILES and picked == select_paths(reversed(names))
    # One file fewer on a node leaves the others chosen.
    assert len(set(picked) & set(select_paths(name for name in names if name != picked[0]))) == MAX_FILES - 1


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
    found, problem = sample_files({"a": str(tmp_path / "none")})
    assert found == [] and "No such file" in problem


def test_a_pipe_where_a_file_was_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert path_state({"path": str(tmp_path / "pipe")}).kind == "other"
    assert path_state({"path": str(tmp_path)}).samples == []


def test_files_of_a_server_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("x")
    assert [sample.name for sample in path_state({"path": str(tmp_path)}).samples] == ["a"]
    shared = parse_mount_table("nas:/x / nfs4 rw 0 0\n")
    monkeypatch.setattr(folders, "current_mounts", lambda: shared)
    found = path_state({"path": str(tmp_path)})
    assert found.samples == [] and (found.file_system, found.source) == ("nfs4", "nas:/x")
