"""Folders for checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.probes.folders import FolderState, Quota, Target, WriteResult, folder_state, write_trial
from preflight_checks.storage.checkpoints import (
    checkpoint_does_not_fit,
    checkpoint_folder_not_shared,
    checkpoint_folder_unusable,
)
from preflight_checks.storage.scratch_folders import checkpoint_size, destinations
from tests.checks.check_builders import (
    LAUNCH,
    TIMEOUT,
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
        ({"writable": False}, "may not write into /scratch/run"),
        ({"writable": False, "exists": False, "nearest": "/scratch"}, "may not make it in /scratch"),
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
    assert found.severity is None and "has 80.0 GiB free" in found.message and "at least 91.3 GiB" in found.message
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
