"""Folders for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Unresolved
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.probes.folders import (
    CheckpointState,
    Entry,
    FolderState,
    HubModel,
    PathState,
    Quota,
    Sample,
    Scratch,
    Target,
    WriteResult,
    checkpoint_state,
    folder_state,
    hub_model,
    path_state,
    scratch,
    write_trial,
)
from preflight_checks.storage.checkpoints import (
    checkpoint_does_not_fit,
    checkpoint_folder_not_shared,
    checkpoint_folder_unusable,
    resume_topology,
)
from preflight_checks.storage.paths import (
    data_content_differs,
    data_path_missing,
    shard_list_differs,
    too_few_data_files,
)
from preflight_checks.storage.scratch_folders import (
    cache_folder,
    checkpoint_size,
    destinations,
    offline_model,
    temporary_folder,
)
from tests.checks.check_builders import (
    LAUNCH,
    TIMEOUT,
    claim,
    fact,
    facts,
    fleet,
    job,
    judge,
    local_fleet,
    one,
    plan,
    statuses,
)

PATH = "/scratch/run"
SAVING: dict[str, Any] = {"checkpoint_path": PATH}
GIB = 2**30
GOOD = FolderState(
    *(PATH, PATH, True, PATH),
    writable=True,
    file_system="lustre",
    source="mds:/scratch",
    mount_point="/scratch",
    total_bytes=1000 * GIB,
    free_bytes=900 * GIB,
    inodes_total=1000,
    inodes_free=500,
)
#: Seven billion parameters under ZeRO: 98 GB for each checkpoint.
SEVEN: dict[str, Any] = {**SAVING, "model_name": "meta-llama/Llama-2-7b-hf", "zero_stage": 2}


def folder_at(node: str, **changes: Any) -> FactRecord:
    params = {"path": PATH, "quota": True}
    return fact(folder_state, node, replace(GOOD, **changes), params=params)


def write_trial_at(node: str, problem: str = "", took_s: float = 0.01) -> FactRecord:
    return fact(write_trial, node, WriteResult(PATH, took_s, problem), params={"path": PATH})


def test_only_the_write_trial_needs_consent() -> None:
    wanted = plan(checkpoint_folder_unusable, job(**SAVING), fleet(2))
    assert {(r.probe.rpartition(":")[2], r.consent) for r in wanted} == {("folder_state", ""), ("write_trial", "write")}
    assert all(request.context for request in wanted)
    assert destinations(job(checkpoint_path="s3://bucket/run")) == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"read_only": True}, "mounted read-only"),
        ({"writable": False}, "may not write to /scratch/run"),
        ({"writable": False, "exists": False, "nearest": "/scratch"}, "may not create the folder in /scratch"),
        ({"free_bytes": 0}, "/scratch is full"),
        ({"inodes_free": 0}, "no free inodes"),
        ({"problem": "dangling", "detail": "/scratch/run links to /nowhere, which is not there"}, "links to /nowhere"),
        ({"quotas": [Quota("user", 10 * GIB, 10 * GIB)]}, "quota of 10.0 GiB is used up"),
        ({"quotas": [Quota("user", 1, None, 500, 500)]}, "quota of 500 files is used up"),
    ],
)
def test_obstacles_to_writing_checkpoints(changes: dict[str, Any], words: str) -> None:
    seen = facts(folder_at("node0", **changes), folder_at("node1"))
    found = one(judge(checkpoint_folder_unusable, job(**SAVING), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node0",) and found.severity is None and words in found.message


def test_on_other_nodes_it_is_a_warning_unless_every_rank_writes() -> None:
    seen = facts(folder_at("node0"), folder_at("node1", read_only=True))
    found = one(judge(checkpoint_folder_unusable, job(**SAVING), fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node1",)
    sharded = job(**SAVING, zero_stage=1)
    assert one(judge(checkpoint_folder_unusable, sharded, fleet(2), seen), Status.FAIL).severity is None


def test_a_write_trial_finds_hidden_errors() -> None:
    refused = facts(folder_at("node0"), write_trial_at("node0", "Disk quota exceeded"))
    found = one(judge(checkpoint_folder_unusable, job(**SAVING), fleet(1), refused), Status.FAIL)
    assert "Disk quota exceeded" in found.message and found.severity is None
    slow = facts(folder_at("node0"), write_trial_at("node0", took_s=4.0))
    found = one(judge(checkpoint_folder_unusable, job(**SAVING), fleet(1), slow), Status.FAIL)
    assert "4.0 s" in found.message and found.severity is Severity.WARNING
    not_allowed = fact(write_trial, "node0", Unavailable("denied", "no consent"), params={"path": PATH})
    assert statuses(
        judge(checkpoint_folder_unusable, job(**SAVING), fleet(1), facts(folder_at("node0"), not_allowed))
    ) == {"pass"}


def test_file_systems_without_inodes_pass() -> None:
    odd = facts(folder_at("node0", total_bytes=0, free_bytes=0, inodes_total=None, inodes_free=None))
    assert statuses(judge(checkpoint_folder_unusable, job(**SAVING), fleet(1), odd)) == {"pass"}


def test_a_hanging_folder_is_unknown_and_required() -> None:
    late = facts(fact(folder_state, "node0", TIMEOUT, params={"path": PATH, "quota": True}))
    assert one(judge(checkpoint_folder_unusable, job(**SAVING), fleet(1), late), Status.UNKNOWN).required
    for check in (checkpoint_does_not_fit, checkpoint_folder_not_shared):
        assert statuses(judge(check, job(**SEVEN), fleet(2), late)) == {"unknown"}


def test_the_size_of_a_checkpoint_follows_from_the_model() -> None:
    sized = checkpoint_size(job(**SEVEN), LAUNCH.scope)
    assert sized is not None and sized.each_bytes == 98 * 10**9 and sized.kept_count is None
    kept = checkpoint_size(job(**SEVEN, checkpoints_kept=2), LAUNCH.scope)
    assert kept is not None and kept.kept_count == 3
    every = checkpoint_size(job(**SEVEN, train_steps=1000, save_interval=100), LAUNCH.scope)
    assert every is not None and every.kept_count == 10
    assert checkpoint_size(job(**SAVING, model_name="bert"), LAUNCH.scope) is None
    plain = checkpoint_size(job(**SAVING, model_name="x-7b"), LAUNCH.scope)
    assert plain is not None and plain.each_bytes == 42 * 10**9


def test_too_little_space_for_first_and_kept_checkpoints() -> None:
    little = facts(folder_at("node0", free_bytes=80 * GIB))
    found = one(judge(checkpoint_does_not_fit, job(**SEVEN), fleet(1), little), Status.FAIL)
    assert found.severity is None and "has only 80.0 GiB free" in found.message and "at least 91.3 GiB" in found.message
    some = facts(folder_at("node0", free_bytes=200 * GIB))
    found = one(judge(checkpoint_does_not_fit, job(**SEVEN, checkpoints_kept=4), fleet(1), some), Status.FAIL)
    assert found.severity is Severity.WARNING and "the 5 checkpoints" in found.message
    assert statuses(judge(checkpoint_does_not_fit, job(**SEVEN), fleet(1), some)) == {"pass"}


def test_a_quota_limits_the_free_space() -> None:
    bound = facts(folder_at("node0", quotas=[Quota("user", 40 * GIB, 100 * GIB)]))
    assert "60.0 GiB" in one(judge(checkpoint_does_not_fit, job(**SEVEN), fleet(1), bound), Status.FAIL).message


def test_on_local_disks_each_node_stores_its_share() -> None:
    disks = [folder_at(f"node{i}", file_system="ext4", free_bytes=30 * GIB) for i in range(4)]
    assert statuses(judge(checkpoint_does_not_fit, job(**SEVEN), fleet(4), facts(*disks))) == {"pass"}
    alone = job(**SAVING, model_name="x-7b")
    found = one(judge(checkpoint_does_not_fit, alone, fleet(4), facts(*disks)), Status.FAIL)
    assert found.nodes == ("node0",)


def test_a_full_target_beside_free_ones_is_a_warning() -> None:
    targets = [Target("scratch-OST0000", 100, 1), Target("scratch-OST0001", 100, 80)]
    found = one(
        judge(checkpoint_does_not_fit, job(**SAVING), fleet(1), facts(folder_at("node0", targets=targets))), Status.FAIL
    )
    assert found.severity is Severity.WARNING and "OST0000" in found.message
    even = [Target("scratch-OST0000", 100, 1), Target("scratch-OST0001", 100, 1)]
    assert statuses(
        judge(checkpoint_does_not_fit, job(**SAVING), fleet(1), facts(folder_at("node0", targets=even)))
    ) == {"not-applicable"}


def test_a_mount_missing_on_one_node_is_an_error() -> None:
    seen = facts(folder_at("node0"), folder_at("node1", file_system="ext4", mount_point="/"), folder_at("node2"))
    found = one(judge(checkpoint_folder_not_shared, job(**SAVING), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "a mount may be missing" in found.message


def test_local_disks_matter_if_every_rank_writes() -> None:
    local = facts(*(folder_at(f"node{i}", file_system="xfs") for i in range(2)))
    assert statuses(judge(checkpoint_folder_not_shared, job(**SAVING), fleet(2), local)) == {"pass"}
    sharded = job(**SAVING, fsdp_state_dict_type="SHARDED_STATE_DICT")
    assert one(judge(checkpoint_folder_not_shared, sharded, fleet(2), local), Status.FAIL).severity is Severity.WARNING
    assert statuses(judge(checkpoint_folder_not_shared, sharded, local_fleet(2), local)) == {"not-applicable"}
    assert statuses(judge(checkpoint_folder_not_shared, job(), fleet(2), facts())) == {"not-applicable"}


# Data on the nodes: it exists and is the same everywhere.


DATA_PATH = "/data/train"
JOB = {"data_path": DATA_PATH}
SHARDS = {f"part-{i:03}": 100 for i in range(4)}


def folder(
    node: str, files: Mapping[str, int] = SHARDS, *, system: str = "lustre", path: str = DATA_PATH
) -> FactRecord:
    entries = [Entry(name, size) for name, size in files.items()]
    state = PathState(path, path, "directory", file_system=system, entries=entries, listed=len(entries))
    return path_at(node, state_with_digest(state, files))


def state_with_digest(state: PathState, files: Mapping[str, int]) -> PathState:
    from dataclasses import replace

    return replace(state, digest=str(sorted(files.items())))


def path_at(node: str, state: PathState) -> FactRecord:
    return fact(path_state, node, state, params={"path": state.path})


def absent(node: str, problem: str = "missing", path: str = DATA_PATH) -> FactRecord:
    return path_at(node, PathState(path, path, "", problem, "No such file or directory"))


def test_paths_are_requested_in_the_job_context_but_not_urls() -> None:
    wanted = plan(data_path_missing, job(**JOB), fleet(2))
    assert [(r.node, r.context, r.required) for r in wanted] == [("node0", True, True), ("node1", True, True)]
    assert plan(data_path_missing, job(data_path="s3://bucket/train"), fleet(2)) == []
    assert len(plan(data_path_missing, job(data_path="/data/{000..127}.tar"), fleet(2))) == 2
    assert plan(data_path_missing, job(data_path="{DATA_DIR}/train"), fleet(2)) == []
    assert plan(data_path_missing, job(data_path="pipe:cat x.tar"), fleet(2)) == []


def test_models_on_disk_are_checked_but_not_hub_names() -> None:
    assert len(plan(data_path_missing, job(input_file="/data/vocab.json"), fleet(2))) == 2
    assert len(plan(data_path_missing, job(model_name="/models/llama"), fleet(2))) == 2
    assert plan(data_path_missing, job(model_name="meta-llama/Llama-2-7b"), fleet(2)) == []


def test_a_path_missing_on_one_node_names_it() -> None:
    found = one(
        judge(data_path_missing, job(**JOB), fleet(3), facts(folder("node0"), folder("node1"), absent("node2"))),
        Status.FAIL,
    )
    assert found.nodes == ("node2",) and DATA_PATH in found.message and found.severity is None


def test_a_relative_name_may_be_on_a_hub() -> None:
    nowhere = facts(*(absent(f"node{i}", path="wikitext") for i in range(2)))
    found = one(judge(data_path_missing, job(data_path="wikitext"), fleet(2), nowhere), Status.FAIL)
    assert found.severity is Severity.WARNING
    certain = facts(*(absent(f"node{i}") for i in range(2)))
    assert one(judge(data_path_missing, job(**JOB), fleet(2), certain), Status.FAIL).severity is None


def test_a_dangling_link_and_a_denied_path_are_distinguished() -> None:
    seen = facts(folder("node0"), absent("node1", "dangling"), absent("node2", "denied"))
    messages = [v.message for v in judge(data_path_missing, job(**JOB), fleet(3), seen) if v.status is Status.FAIL]
    assert any("dangling symbolic link" in m for m in messages) and any("may not be read" in m for m in messages)


def test_a_different_kind_is_an_error_and_file_system_a_warning() -> None:
    file = path_at("node1", PathState(DATA_PATH, DATA_PATH, "file", size_bytes=3, listed=1))
    found = one(judge(data_path_missing, job(**JOB), fleet(2), facts(folder("node0"), file)), Status.FAIL)
    assert "is a file on node1" in found.message
    local = facts(folder("node0"), folder("node1"), folder("node2", system="ext4"))
    found = one(judge(data_path_missing, job(**JOB), fleet(3), local), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node2",) and "ext4" in found.message


def test_local_file_systems_may_differ_but_exports_may_not() -> None:
    disks = facts(folder("node0", system="ext4"), folder("node1", system="xfs"))
    assert statuses(judge(data_path_missing, job(**JOB), fleet(2), disks)) == {"pass"}

    def served(node: str, source: str) -> FactRecord:
        return path_at(node, PathState(DATA_PATH, DATA_PATH, "directory", file_system="nfs4", source=source))

    other = facts(served("node0", "nas1:/a"), served("node1", "nas2:/a"), served("node2", "nas1:/b"))
    assert one(judge(data_path_missing, job(**JOB), fleet(3), other), Status.FAIL).nodes == ("node2",)


def test_missing_files_of_a_pattern_or_list() -> None:
    whole = PathState(DATA_PATH, DATA_PATH, "pattern", listed=4, digest="a")
    short = PathState(DATA_PATH, DATA_PATH, "pattern", listed=3, digest="b", absent=["03.tar"])
    found = one(
        judge(shard_list_differs, job(**JOB), fleet(2), facts(path_at("node0", whole), path_at("node1", short))),
        Status.FAIL,
    )
    assert found.nodes == ("node1",) and "names 03.tar, which does not exist on node1" in found.message
    nowhere = facts(path_at("node0", short), path_at("node1", short))
    assert one(judge(shard_list_differs, job(**JOB), fleet(2), nowhere), Status.FAIL).nodes == ("node0", "node1")


def test_too_many_files_are_not_compared() -> None:
    late = path_at("node1", PathState(DATA_PATH, DATA_PATH, "directory", listed=3, digest="x", hurried=True))
    verdicts = judge(shard_list_differs, job(**JOB), fleet(3), facts(folder("node0"), late, folder("node2")))
    assert statuses(verdicts) == {"unknown", "pass"} and not one(verdicts, Status.UNKNOWN).required


def holding(node: str, contents: Mapping[str, str], *, sizes: Mapping[str, int] | None = None) -> FactRecord:
    samples = [Sample(name, (sizes or {}).get(name, 100), digest, True) for name, digest in contents.items()]
    return path_at(node, PathState(DATA_PATH, DATA_PATH, "directory", samples=samples, listed=len(samples)))


SAME = {"a": "1", "b": "2"}


def test_different_content_of_equal_size_names_file_and_node() -> None:
    seen = facts(holding("node0", SAME), holding("node1", {**SAME, "b": "x"}), holding("node2", SAME))
    found = one(judge(data_content_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "b of /data/train on node1 differs" in found.message
    assert "(node0)" in found.remedy


def test_all_different_files_may_be_a_nodes_own_shards() -> None:
    seen = facts(holding("node0", SAME), holding("node1", {"a": "x", "b": "y"}), holding("node2", SAME))
    found = one(judge(data_content_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node1",)
    vocabulary = job(input_file=DATA_PATH)
    assert one(judge(data_content_differs, vocabulary, fleet(3), seen), Status.FAIL).severity is None


def test_a_different_size_is_left_to_dat012() -> None:
    seen = facts(holding("node0", SAME), holding("node1", {**SAME, "b": "x"}, sizes={"b": 7}), holding("node2", SAME))
    assert statuses(judge(data_content_differs, job(**JOB), fleet(3), seen)) == {"pass"}


def test_unread_contents_are_unknown() -> None:
    cut = path_at(
        "node1", PathState(DATA_PATH, DATA_PATH, "directory", sample_problem="reading took longer than 1.5 s")
    )
    verdicts = judge(data_content_differs, job(**JOB), fleet(2), facts(holding("node0", SAME), cut))
    assert statuses(verdicts) == {"unknown"} and "1.5 s" in verdicts[0].message
    assert statuses(judge(data_content_differs, job(**JOB), fleet(2), facts())) == {"unknown"}
    assert statuses(judge(data_content_differs, job(), fleet(2), facts())) == {"not-applicable"}
    assert statuses(judge(data_content_differs, job(**JOB), local_fleet(2), facts())) == {"not-applicable"}


def test_a_hanging_path_is_unknown_and_required() -> None:
    verdicts = judge(
        data_path_missing, job(**JOB), fleet(1), facts(fact(path_state, "node0", TIMEOUT, params=JOB_PATH))
    )
    assert one(verdicts, Status.UNKNOWN).required
    nowhere = fact(path_state, "node0", Unavailable("context", "no directory is known"), params=JOB_PATH)
    assert not one(judge(data_path_missing, job(**JOB), fleet(1), facts(nowhere)), Status.UNKNOWN).required


JOB_PATH = {"path": DATA_PATH}


def test_a_missing_shard_names_its_node() -> None:
    short = {name: size for name, size in SHARDS.items() if name != "part-002"}
    seen = facts(folder("node0"), folder("node1", short), folder("node2"))
    found = one(judge(shard_list_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "part-002 is missing" in found.message and found.severity is None


def test_a_truncated_shard_has_both_sizes() -> None:
    seen = facts(folder("node0"), folder("node1", {**SHARDS, "part-001": 7}), folder("node2"))
    found = one(judge(shard_list_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert "part-001 (7 instead of 100 bytes)" in found.message


def test_an_empty_directory_is_reported_once() -> None:
    seen = facts(folder("node0"), folder("node1", {}), folder("node2"))
    found = one(judge(shard_list_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "empty" in found.message


def test_own_shards_on_each_node_are_at_most_a_warning() -> None:
    seen = facts(*(folder(f"node{i}", {f"{i}-{k}": 1 for k in range(4)}) for i in range(2)))
    verdicts = judge(shard_list_differs, job(**JOB), fleet(2), seen)
    assert {v.severity for v in verdicts} == {Severity.WARNING}


def test_unreadable_files_are_named() -> None:
    state = PathState(
        DATA_PATH, DATA_PATH, "directory", entries=[Entry("a", 1)], unreadable=["b"], listed=1, digest="x"
    )
    found = one(judge(shard_list_differs, job(**JOB), fleet(1), facts(path_at("node0", state))), Status.FAIL)
    assert "b of /data/train cannot be read on node0" in found.message


def test_equal_lists_pass_and_no_paths_are_not_applicable() -> None:
    assert statuses(judge(shard_list_differs, job(**JOB), fleet(2), facts(folder("node0"), folder("node1")))) == {
        "pass"
    }
    assert statuses(judge(shard_list_differs, job(), fleet(2), facts())) == {"not-applicable"}
    assert statuses(judge(data_path_missing, job(), fleet(2), facts())) == {"not-applicable"}


# Checkpoints to resume from.


RESUME_PATH = "/ckpt/run"
RESUMED: dict[str, Any] = {"resume_path": RESUME_PATH}


def checkpoint_at(node: str, **state: Any) -> FactRecord:
    return fact(
        checkpoint_state, node, CheckpointState(RESUME_PATH, RESUME_PATH, **state), params={"path": RESUME_PATH}
    )


def zero(ranks: int, node: str = "node0", **more: Any) -> FactRecord:
    return checkpoint_at(node, tag="global_step10", zero=list(range(ranks)), model=[0], **more)


def test_the_checkpoint_is_requested_in_every_job_context() -> None:
    wanted = plan(resume_topology, job(**RESUMED), fleet(2))
    assert [(r.node, r.context, r.required) for r in wanted] == [("node0", True, True), ("node1", True, True)]
    assert plan(resume_topology, job(resume_path="s3://bucket/run"), fleet(2)) == []


def test_optimizer_states_of_another_number_of_ranks_are_an_error() -> None:
    found = one(judge(resume_topology, job(**RESUMED, world_size=128), fleet(1), facts(zero(32))), Status.FAIL)
    assert found.severity is None
    assert "written by 32 data-parallel ranks, but the job has 128" in found.message
    assert "global_step10" in found.message and "ds_to_universal" in found.remedy


def test_tensor_and_pipeline_parallel_ranks_share_one_replica() -> None:
    split = job(**RESUMED, world_size=32, tensor_parallel_size=2, pipeline_parallel_size=2)
    assert statuses(judge(resume_topology, split, fleet(1), facts(zero(8)))) == {"pass"}
    assert statuses(judge(resume_topology, split, fleet(1), facts(zero(32)))) == {"fail"}


def test_a_universal_checkpoint_fits_any_number_of_ranks() -> None:
    universal = facts(zero(32, universal=True))
    assert statuses(judge(resume_topology, job(**RESUMED, world_size=8), fleet(1), universal)) == {"pass"}
    told = job([claim("deepspeed_key", "checkpoint.load_universal")], **RESUMED, world_size=8)
    assert statuses(judge(resume_topology, told, fleet(1), facts(zero(32)))) == {"pass"}


def test_megatrons_folders_must_match_the_jobs_sizes() -> None:
    written = facts(checkpoint_at("node0", tag="iter_0001000", tensor=[0, 1, 2, 3], stages=[0, 1]))
    fits = job(**RESUMED, tensor_parallel_size=4, pipeline_parallel_size=2, world_size=16)
    assert statuses(judge(resume_topology, fits, fleet(1), written)) == {"pass"}
    wider = job(**RESUMED, tensor_parallel_size=8, pipeline_parallel_size=2, world_size=16)
    assert (
        "4 tensor-parallel ranks, but the job has 8"
        in one(judge(resume_topology, wider, fleet(1), written), Status.FAIL).message
    )
    flat = job(**RESUMED, tensor_parallel_size=4, world_size=16)
    assert "2 pipeline stages" in one(judge(resume_topology, flat, fleet(1), written), Status.FAIL).message


def test_a_distributed_checkpoint_with_its_index_passes() -> None:
    whole = facts(checkpoint_at("node0", distributed=[0, 1, 2, 3], index=True))
    assert statuses(judge(resume_topology, job(**RESUMED, world_size=16), fleet(1), whole)) == {"pass"}
    cut = facts(checkpoint_at("node0", distributed=[0, 1, 2, 3]))
    found = one(judge(resume_topology, job(**RESUMED, world_size=4), fleet(1), cut), Status.FAIL)
    assert "which is written last, is missing" in found.message


def test_missing_or_empty_pieces_precede_sizes() -> None:
    hole = facts(checkpoint_at("node0", zero=[0, 1, 3], model=[0]))
    found = one(judge(resume_topology, job(**RESUMED, world_size=8), fleet(1), hole), Status.FAIL)
    assert "optimizer states of ranks 2 are missing" in found.message
    hollow = facts(zero(4, hollow=["zero_pp_rank_1_mp_rank_00_optim_states.pt"]))
    found = one(judge(resume_topology, job(**RESUMED, world_size=4), fleet(1), hollow), Status.FAIL)
    assert "files are empty" in found.message


def test_nodes_may_hold_only_their_own_pieces() -> None:
    seen = facts(checkpoint_at("node0", zero=[0, 1], model=[0]), checkpoint_at("node1", zero=[2, 3]))
    assert statuses(judge(resume_topology, job(**RESUMED, world_size=4), fleet(2), seen)) == {"pass"}


def test_a_checkpoint_on_only_some_nodes_is_an_error() -> None:
    seen = facts(zero(4), checkpoint_at("node1", problem="missing", detail="No such file or directory"))
    found = one(judge(resume_topology, job(**RESUMED, world_size=4), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "but on node0" in found.message


def test_a_missing_checkpoint_is_a_warning_unless_it_is_a_first_start() -> None:
    nowhere = facts(*(checkpoint_at(f"node{i}", problem="missing", detail="No such file") for i in range(2)))
    found = one(judge(resume_topology, job(**RESUMED), fleet(2), nowhere), Status.FAIL)
    assert found.severity is Severity.WARNING and "on any node" in found.message
    first = job(**RESUMED, checkpoint_path=RESUME_PATH)
    assert statuses(judge(resume_topology, first, fleet(2), nowhere)) == {"not-applicable"}


def test_a_missing_newest_checkpoint_is_an_error() -> None:
    gone = facts(
        checkpoint_at(
            "node0", problem="tag", detail="global_step10 is recorded as the newest checkpoint, but does not exist"
        )
    )
    first = job(**RESUMED, checkpoint_path=RESUME_PATH)
    assert one(judge(resume_topology, first, fleet(1), gone), Status.FAIL).severity is None


def test_unknown_sizes_are_unknown() -> None:
    assert statuses(judge(resume_topology, job(**RESUMED), fleet(1), facts(zero(4)))) >= {"unknown"}
    open_size = job([claim("tensor_parallel_size", Unresolved("$TP"))], **RESUMED, world_size=4)
    assert "unknown" in statuses(judge(resume_topology, open_size, fleet(1), facts(zero(4))))


def test_no_answer_is_unknown_and_required_with_a_context() -> None:
    late = facts(fact(checkpoint_state, "node0", TIMEOUT, params={"path": RESUME_PATH}))
    assert one(judge(resume_topology, job(**RESUMED), fleet(1), late), Status.UNKNOWN).required
    blind = facts(fact(checkpoint_state, "node0", Unavailable("context", "nothing"), params={"path": RESUME_PATH}))
    assert not one(judge(resume_topology, job(**RESUMED), fleet(1), blind), Status.UNKNOWN).required
    assert statuses(judge(resume_topology, job(), fleet(1), facts())) == {"not-applicable"}


# Folders for temporary files and caches, and models in offline mode.


SCRATCH_GOOD = FolderState(
    "/tmp",
    "/tmp",
    True,
    "/tmp",
    writable=True,
    file_system="ext4",
    mount_point="/",
    total_bytes=100 * GIB,
    free_bytes=50 * GIB,
    inodes_total=10,
    inodes_free=5,
)
GPU = job(backend="nccl")


def scratch_folder_at(
    node: str, what: str = "temporary", *, variable: str = "", instead: str = "", **changes: Any
) -> FactRecord:
    value = Scratch(what, variable, replace(SCRATCH_GOOD, **changes), instead)
    return fact(scratch, node, value, params={"what": what})


def test_folders_are_requested_in_the_job_context() -> None:
    assert all(request.context for request in plan(temporary_folder, job(), fleet(2)))
    assert [r.params["what"] for r in plan(cache_folder, job(), fleet(1))] == ["home"]
    assert [r.params["what"] for r in plan(cache_folder, GPU, fleet(1))] == ["home", "triton", "extensions"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"free_bytes": 0}, "/tmp is full"),
        ({"writable": False}, "is not writable"),
        ({"read_only": True}, "read-only"),
        ({"inodes_free": 0}, "no inodes"),
        ({"exists": False, "resolved": "/scratch/tmp", "nearest": "/"}, "/scratch/tmp does not exist"),
        ({"free_bytes": 20 * 2**20}, "less than 100 MiB left"),
    ],
)
def test_an_unusable_folder_is_a_warning_if_another_is_usable(changes: dict[str, Any], words: str) -> None:
    seen = facts(scratch_folder_at("node0"), scratch_folder_at("node1", instead="/var/tmp", **changes))
    found = one(judge(temporary_folder, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is Severity.WARNING and words in found.message


def test_no_usable_folder_is_an_error() -> None:
    found = one(judge(temporary_folder, job(), fleet(1), facts(scratch_folder_at("node0", free_bytes=0))), Status.FAIL)
    assert found.severity is None and "no other folder" in found.message


def test_noexec_matters_only_with_gpus() -> None:
    closed = facts(scratch_folder_at("node0", no_programs=True))
    assert statuses(judge(temporary_folder, job(), fleet(1), closed)) == {"pass"}
    assert "noexec" in one(judge(temporary_folder, GPU, fleet(1), closed), Status.FAIL).message


def test_a_missing_home_is_a_warning() -> None:
    gone = scratch_folder_at(
        "node0", "home", variable="HOME", exists=False, writable=False, resolved="/nonexistent", nearest="/"
    )
    found = one(judge(cache_folder, job(), fleet(1), facts(gone)), Status.FAIL)
    assert found.severity is None and "/nonexistent (from HOME) does not exist" in found.message
    assert statuses(judge(cache_folder, job(), fleet(1), facts(scratch_folder_at("node0", "home")))) == {"pass"}


def test_a_shared_cache_is_information() -> None:
    shared = [
        scratch_folder_at(f"node{i}", "triton", file_system="nfs4", resolved="/home/a/.triton/cache") for i in range(2)
    ]
    found = one(judge(cache_folder, GPU, fleet(2), facts(*shared)), Status.FAIL)
    assert found.severity is Severity.INFO and "TRITON_CACHE_DIR" in found.remedy
    made = facts(
        scratch_folder_at("node0", "triton", exists=False),
        scratch_folder_at("node0", "home"),
        scratch_folder_at("node0", "extensions"),
    )
    assert statuses(judge(cache_folder, GPU, fleet(1), made)) == {"pass"}


def test_no_answer_is_unknown() -> None:
    for check, what in ((temporary_folder, "temporary"), (cache_folder, "home")):
        late = facts(fact(scratch, "node0", TIMEOUT, params={"what": what}))
        assert statuses(judge(check, job(), fleet(1), late)) == {"unknown"}


NAME = "meta-llama/Llama-2-7b-hf"


def cached_model(node: str, **changes: Any) -> FactRecord:
    usual = HubModel(NAME, "/home/a/hub/x", True, "HF_HUB_OFFLINE", ["abc"], "abc")
    return fact(hub_model, node, replace(usual, **changes), params={"model": NAME})


def test_an_offline_model_must_be_cached() -> None:
    named = job(model_name=NAME)
    seen = facts(cached_model("node0"), cached_model("node1", revisions=[], main=""))
    found = one(judge(offline_model, named, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "HF_HUB_OFFLINE forbids" in found.message
    fetched = facts(cached_model("node0"), cached_model("node1", offline=False, revisions=[], main=""))
    assert statuses(judge(offline_model, named, fleet(2), fetched)) == {"pass"}
    folder = facts(cached_model("node0", revisions=[], local=True))
    assert "fail" not in statuses(judge(offline_model, named, fleet(1), folder))


def test_another_revision_on_one_node_is_a_warning() -> None:
    seen = facts(cached_model("node0"), cached_model("node1", revisions=["def"], main="def"), cached_model("node2"))
    found = one(judge(offline_model, job(model_name=NAME), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is Severity.WARNING


def test_paths_are_not_hub_models() -> None:
    assert plan(offline_model, job(model_name="/models/llama"), fleet(1)) == []
    assert statuses(judge(offline_model, job(model_name="gpt2"), fleet(1), facts())) == {"not-applicable"}


# Data files against the ranks that read them.


SHARD_PATH = "/data/{000..005}.tar"
MIB = 2**20


def shard_path_at(node: str, files: Mapping[str, int], *, path: str = SHARD_PATH, kind: str = "pattern") -> FactRecord:
    entries = [Entry(name, size) for name, size in files.items()]
    state = PathState(path, path, kind, entries=entries, listed=len(entries), size_bytes=sum(files.values()))
    return fact(path_state, node, state, params={"path": path})


def tars(count: int, size: int = MIB) -> dict[str, int]:
    return {f"{index:03}.tar": size for index in range(count)}


def test_fewer_tar_files_than_ranks_are_a_warning() -> None:
    seen = facts(shard_path_at("node0", tars(6)), shard_path_at("node1", tars(6)))
    found = one(judge(too_few_data_files, job(data_path=SHARD_PATH, world_size=8), fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "6 data files on node0, node1, fewer than 8 ranks" in found.message


def test_a_list_divided_by_trainers_makes_it_an_error() -> None:
    files = {f"part-{index}": MIB for index in range(3)}
    divided = job([claim("dataset_files_shared", True)], data_path="/data/train", ps_workers=4)
    seen = facts(shard_path_at("node0", files, path="/data/train", kind="directory"))
    assert one(judge(too_few_data_files, divided, fleet(1), seen), Status.FAIL).severity is None
    enough = facts(shard_path_at("node0", {**files, "part-3": MIB}, path="/data/train", kind="directory"))
    assert statuses(judge(too_few_data_files, divided, fleet(1), enough)) == {"pass"}


def test_fewer_than_the_loader_workers_are_information() -> None:
    loading = job(data_path=SHARD_PATH, world_size=4, dataloader_workers=4)
    found = one(judge(too_few_data_files, loading, fleet(1), facts(shard_path_at("node0", tars(6)))), Status.FAIL)
    assert found.severity is Severity.INFO and "4 loader workers" in found.message


def test_one_rank_with_much_more_than_another() -> None:
    seen = facts(shard_path_at("node0", {**tars(4), "000.tar": 9 * MIB}))
    found = one(judge(too_few_data_files, job(data_path=SHARD_PATH, world_size=4), fleet(1), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "rank 0 reads 9 MiB" in found.message


def test_uneven_files_of_nodes() -> None:
    mine = {f"a-{index}": MIB for index in range(4)}
    yours = {f"b-{index}": MIB for index in range(8)}
    seen = facts(
        shard_path_at("node0", mine, path="/d", kind="directory"),
        shard_path_at("node1", yours, path="/d", kind="directory"),
    )
    found = one(judge(too_few_data_files, job(data_path="/d", world_size=2), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "4 MiB on node0, but 8 MiB on node1" in found.message
    assert statuses(judge(too_few_data_files, job(data_path="/d", world_size=2), local_fleet(2), seen)) == {"pass"}


def test_ordinary_data_passes() -> None:
    images = facts(shard_path_at("node0", {f"{i}.jpg": i for i in range(3)}, path="/d", kind="directory"))
    assert statuses(judge(too_few_data_files, job(data_path="/d", world_size=8), fleet(1), images)) == {"pass"}
    few = facts(shard_path_at("node0", tars(2)))
    drawn = job([claim("dataloader_workers", 1)], data_path=SHARD_PATH, world_size=8)
    assert "fail" in statuses(judge(too_few_data_files, drawn, fleet(1), few))
    assert statuses(judge(too_few_data_files, job(data_path=SHARD_PATH), fleet(1), few)) == {"not-applicable"}
    assert statuses(judge(too_few_data_files, job(data_path=SHARD_PATH, world_size=8), fleet(1), facts())) == {
        "unknown"
    }
