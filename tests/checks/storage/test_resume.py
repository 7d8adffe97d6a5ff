"""Checkpoints to resume from."""

from __future__ import annotations

from typing import Any

from preflight.model.findings import Severity, Status
from preflight.model.job import Unresolved
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.probes.checkpoints import CheckpointState, checkpoint_state
from preflight_checks.storage.checkpoints import resume_topology
from tests.checks.check_builders import TIMEOUT, claim, fact, facts, fleet, job, judge, one, plan, statuses

PATH = "/ckpt/run"
RESUMED: dict[str, Any] = {"resume_path": PATH}


def checkpoint_at(node: str, **state: Any) -> FactRecord:
    return fact(checkpoint_state, node, CheckpointState(PATH, PATH, **state), params={"path": PATH})


def zero(ranks: int, node: str = "node0", **more: Any) -> FactRecord:
    return checkpoint_at(node, tag="global_step10", zero=list(range(ranks)), model=[0], **more)


def test_the_checkpoint_is_requested_in_every_job_context() -> None:
    wanted = plan(resume_topology, job(**RESUMED), fleet(2))
    assert [(r.node, r.context, r.required) for r in wanted] == [("node0", True, True), ("node1", True, True)]
    assert plan(resume_topology, job(resume_path="s3://bucket/run"), fleet(2)) == []


def test_optimizer_states_of_another_number_of_ranks_are_an_error() -> None:
    found = one(judge(resume_topology, job(**RESUMED, world_size=128), fleet(1), facts(zero(32))), Status.FAIL)
    assert found.severity is None
    assert "written by 32 data-parallel ranks, and the job has 128" in found.message
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
        "4 tensor-parallel ranks, and the job has 8"
        in one(judge(resume_topology, wider, fleet(1), written), Status.FAIL).message
    )
    flat = job(**RESUMED, tensor_parallel_size=4, world_size=16)
    assert "2 pipeline stages" in one(judge(resume_topology, flat, fleet(1), written), Status.FAIL).message


def test_a_distributed_checkpoint_with_its_index_passes() -> None:
    whole = facts(checkpoint_at("node0", distributed=[0, 1, 2, 3], index=True))
    assert statuses(judge(resume_topology, job(**RESUMED, world_size=16), fleet(1), whole)) == {"pass"}
    cut = facts(checkpoint_at("node0", distributed=[0, 1, 2, 3]))
    found = one(judge(resume_topology, job(**RESUMED, world_size=4), fleet(1), cut), Status.FAIL)
    assert ".metadata is missing" in found.message


def test_missing_or_empty_pieces_precede_sizes() -> None:
    hole = facts(checkpoint_at("node0", zero=[0, 1, 3], model=[0]))
    found = one(judge(resume_topology, job(**RESUMED, world_size=8), fleet(1), hole), Status.FAIL)
    assert "optimizer states of ranks 2 are missing" in found.message
    hollow = facts(zero(4, hollow=["zero_pp_rank_1_mp_rank_00_optim_states.pt"]))
    found = one(judge(resume_topology, job(**RESUMED, world_size=4), fleet(1), hollow), Status.FAIL)
    assert "pieces are empty" in found.message


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
    first = job(**RESUMED, checkpoint_path=PATH)
    assert statuses(judge(resume_topology, first, fleet(2), nowhere)) == {"not-applicable"}


def test_a_missing_newest_checkpoint_is_an_error() -> None:
    gone = facts(
        checkpoint_at(
            "node0", problem="tag", detail="global_step10 is recorded as the newest checkpoint, but does not exist"
        )
    )
    first = job(**RESUMED, checkpoint_path=PATH)
    assert one(judge(resume_topology, first, fleet(1), gone), Status.FAIL).severity is None


def test_unknown_sizes_are_unknown() -> None:
    assert statuses(judge(resume_topology, job(**RESUMED), fleet(1), facts(zero(4)))) >= {"unknown"}
    open_size = job([claim("tensor_parallel_size", Unresolved("$TP"))], **RESUMED, world_size=4)
    assert "unknown" in statuses(judge(resume_topology, open_size, fleet(1), facts(zero(4))))


def test_no_answer_is_unknown_and_required_with_a_context() -> None:
    late = facts(fact(checkpoint_state, "node0", TIMEOUT, params={"path": PATH}))
    assert one(judge(resume_topology, job(**RESUMED), fleet(1), late), Status.UNKNOWN).required
    blind = facts(fact(checkpoint_state, "node0", Unavailable("context", "nothing"), params={"path": PATH}))
    assert not one(judge(resume_topology, job(**RESUMED), fleet(1), blind), Status.UNKNOWN).required
    assert statuses(judge(resume_topology, job(), fleet(1), facts())) == {"not-applicable"}
