"""Folders for temporary files and caches, and models in offline mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.probes.folders import FolderState, HubModel, Scratch, hub_model, scratch
from preflight_checks.storage.scratch_folders import cache_folder, offline_model, temporary_folder
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

GIB = 2**30
GOOD = FolderState(
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


def folder_at(
    node: str, what: str = "temporary", *, variable: str = "", instead: str = "", **changes: Any
) -> FactRecord:
    value = Scratch(what, variable, replace(GOOD, **changes), instead)
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
    seen = facts(folder_at("node0"), folder_at("node1", instead="/var/tmp", **changes))
    found = one(judge(temporary_folder, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is Severity.WARNING and words in found.message


def test_no_usable_folder_is_an_error() -> None:
    found = one(judge(temporary_folder, job(), fleet(1), facts(folder_at("node0", free_bytes=0))), Status.FAIL)
    assert found.severity is None and "no other folder" in found.message


def test_noexec_matters_only_with_gpus() -> None:
    closed = facts(folder_at("node0", no_programs=True))
    assert statuses(judge(temporary_folder, job(), fleet(1), closed)) == {"pass"}
    assert "noexec" in one(judge(temporary_folder, GPU, fleet(1), closed), Status.FAIL).message


def test_a_missing_home_is_a_warning() -> None:
    gone = folder_at(
        "node0", "home", variable="HOME", exists=False, writable=False, resolved="/nonexistent", nearest="/"
    )
    found = one(judge(cache_folder, job(), fleet(1), facts(gone)), Status.FAIL)
    assert found.severity is None and "/nonexistent (from HOME) does not exist" in found.message
    assert statuses(judge(cache_folder, job(), fleet(1), facts(folder_at("node0", "home")))) == {"pass"}


def test_a_shared_cache_is_information() -> None:
    shared = [folder_at(f"node{i}", "triton", file_system="nfs4", resolved="/home/a/.triton/cache") for i in range(2)]
    found = one(judge(cache_folder, GPU, fleet(2), facts(*shared)), Status.FAIL)
    assert found.severity is Severity.INFO and "TRITON_CACHE_DIR" in found.remedy
    made = facts(
        folder_at("node0", "triton", exists=False), folder_at("node0", "home"), folder_at("node0", "extensions")
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
