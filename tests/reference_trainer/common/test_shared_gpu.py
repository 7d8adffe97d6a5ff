"""Several ranks on one GPU: the variables for each NCCL version, and a whole smoke run if there is a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reference_trainer.collective import steps as sharded
from reference_trainer.common.framework import environment

Ranks = Callable[..., list[dict[str, Any]]]


@pytest.mark.parametrize("nccl", [(2, 30), (2, 30, 3), (2, 31, 0), (3, 0, 1)])
def test_new_nccl_versions_are_configured_to_share_a_gpu(nccl: tuple[int, ...]) -> None:
    given = environment(1, 2, nccl)
    assert given["NCCL_MULTI_RANK_GPU_ENABLE"] == "1" and "NCCL_HOSTID" not in given


@pytest.mark.parametrize("nccl", [(2, 18, 1), (2, 27, 5), (2, 29, 7), (2, 4)])
def test_old_nccl_versions_get_one_host_id_per_rank(nccl: tuple[int, ...]) -> None:
    both = [environment(rank, 2, nccl) for rank in range(2)]
    assert both[0]["NCCL_HOSTID"] != both[1]["NCCL_HOSTID"]
    assert all(given["NCCL_SOCKET_IFNAME"] == "lo" for given in both)
    assert not any("NCCL_MULTI_RANK_GPU_ENABLE" in given for given in both)


def test_single_rank_needs_no_variables() -> None:
    assert environment(0, 1, (2, 27, 5)) == {}


def nccl_version() -> tuple[int, ...]:
    """NCCL's version; skips without a GPU that torch can use over NCCL."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available() or not torch.distributed.is_nccl_available():
        pytest.skip("no NVIDIA GPU that torch can use over NCCL")
    return tuple(torch.cuda.nccl.version())


@pytest.mark.thorough
@pytest.mark.parametrize("sharding", [False, True])
@pytest.mark.parametrize("world_size", [1, 2])
def test_ranks_on_one_gpu_are_exact_and_report_their_transport(ranks: Ranks, world_size: int, sharding: bool) -> None:
    nccl = nccl_version()
    answers = ranks(
        world_size,
        steps=10,
        overrides={str(r): {"backend": "nccl", "interface": "", "sharding": sharding} for r in range(world_size)},
        environment={str(r): environment(r, world_size, nccl) for r in range(world_size)},
    )
    for answer in answers:
        assert "report" in answer, answer
        report = answer["report"]
        assert report["mismatches"] == [] and report["unmoved"] == [] and len(set(report["digests"])) == 1
        assert report["backend"] == "nccl" and report["nccl_version"]
        assert report["trainer"] == (sharded.DDP if not sharding else report["trainer"])
        if world_size > 1:
            assert report["transport"]["nccl"]["network"] and report["transport"]["nccl"]["version"]
            assert [t["operation"] for t in report["sweep"]["timed"][:5]] and report["sweep"]["unsupported"] == []
