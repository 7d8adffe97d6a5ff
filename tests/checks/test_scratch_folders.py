"""Folders for temporary files and caches, and models that may not be fetched."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.outcome import Severity, Status
from preflight.recording import FactRecord
from preflight_checks.probes.folders import FolderState
from preflight_checks.probes.scratch import HubModel, Scratch, hub_model, scratch
from preflight_checks.storage.scratch_folders import cache_folder, offline_model, temporary_folder

from .build import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

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


def at(node: str, what: str = "temporary", *, variable: str = "", instead: str = "", **changes: Any) -> FactRecord:
    value = Scratch(what, variable, replace(GOOD, **changes), instead)
    return fact(scratch, node, value, params={"what": what})


def test_folders_are_looked_at_in_the_job_context_and_compilers_with_gpus_alone() -> None:
    assert all(request.context for request in plan(temporary_folder, job(), fleet(2)))
    assert [r.params["what"] for r in plan(cache_folder, job(), fleet(1))] == ["home"]
    assert [r.params["what"] for r in plan(cache_folder, GPU, fleet(1))] == ["home", "triton", "extensions"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"free_bytes": 0}, "/tmp is full"),
        ({"writable": False}, "may not be written"),
        ({"read_only": True}, "read-only"),
        ({"inodes_free": 0}, "no inodes"),
        ({"exists": False, "resolved": "/scratch/tmp", "nearest": "/"}, "/scratch/tmp is not there"),
        ({"free_bytes": 20 * 2**20}, "less than 100 MiB left"),
    ],
)
def test_a_folder_of_no_use_is_a_warning_where_another_serves(changes: dict[str, Any], words: str) -> None:
    seen = facts(at("node0"), at("node1", instead="/var/tmp", **changes))
    found = one(judge(temporary_folder, job(), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is Severity.WARNING and words in found.message


def test_no_folder_of_any_use_is_an_error() -> None:
    found = one(judge(temporary_folder, job(), fleet(1), facts(at("node0", free_bytes=0))), Status.FAIL)
    assert found.severity is None and "no other folder" in found.message


def test_programs_are_run_from_there_with_gpus_alone() -> None:
    closed = facts(at("node0", no_programs=True))
    assert statuses(judge(temporary_folder, job(), fleet(1), closed)) == {"pass"}
    assert "noexec" in one(judge(temporary_folder, GPU, fleet(1), closed), Status.FAIL).message


def test_a_home_that_is_not_there_is_a_warning() -> None:
    gone = at("node0", "home", variable="HOME", exists=False, writable=False, resolved="/nonexistent", nearest="/")
    found = one(judge(cache_folder, job(), fleet(1), facts(gone)), Status.FAIL)
    assert found.severity is None and "/nonexistent (from HOME) is not there" in found.message
    assert statuses(judge(cache_folder, job(), fleet(1), facts(at("node0", "home")))) == {"pass"}


def test_a_cache_that_nodes_share_is_information_and_one_to_be_made_is_fine() -> None:
    shared = [at(f"node{i}", "triton", file_system="nfs4", resolved="/home/a/.triton/cache") for i in range(2)]
    found = one(judge(cache_folder, GPU, fleet(2), facts(*shared)), Status.FAIL)
    assert found.severity is Severity.INFO and "TRITON_CACHE_DIR" in found.remedy
    made = facts(at("node0", "triton", exists=False), at("node0", "home"), at("node0", "extensions"))
    assert statuses(judge(cache_folder, GPU, fleet(1), made)) == {"pass"}


def test_no_answer_is_unknown() -> None:
    for check, what in ((temporary_folder, "temporary"), (cache_folder, "home")):
        late = facts(fact(scratch, "node0", TIMEOUT, params={"what": what}))
        assert statuses(judge(check, job(), fleet(1), late)) == {"unknown"}


NAME = "meta-llama/Llama-2-7b-hf"


def kept(node: str, **changes: Any) -> FactRecord:
    usual = HubModel(NAME, "/home/a/hub/x", True, "HF_HUB_OFFLINE", ["abc"], "abc")
    return fact(hub_model, node, replace(usual, **changes), params={"model": NAME})


def test_a_model_that_may_not_be_fetched_must_be_there() -> None:
    named = job(model_name=NAME)
    seen = facts(kept("node0"), kept("node1", revisions=[], main=""))
    found = one(judge(offline_model, named, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "HF_HUB_OFFLINE forbids" in found.message
    fetched = facts(kept("node0"), kept("node1", offline=False, revisions=[], main=""))
    assert statuses(judge(offline_model, named, fleet(2), fetched)) == {"pass"}
    folder = facts(kept("node0", revisions=[], local=True))
    assert "fail" not in statuses(judge(offline_model, named, fleet(1), folder))


def test_another_revision_on_one_node_is_a_warning() -> None:
    seen = facts(kept("node0"), kept("node1", revisions=["def"], main="def"), kept("node2"))
    found = one(judge(offline_model, job(model_name=NAME), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is Severity.WARNING


def test_paths_are_no_models_of_the_hub() -> None:
    assert plan(offline_model, job(model_name="/models/llama"), fleet(1)) == []
    assert statuses(judge(offline_model, job(model_name="gpt2"), fleet(1), facts())) == {"not-applicable"}
