"""Whole runs on loopback: all modes train a dense and a sparse model, and every bit of the exact phase is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from preflight.agent import rank_events
from reference_trainer.collective import steps as training
from reference_trainer.common import oracle
from reference_trainer.ps.frames import LARGE_BYTES
from tests.reference_trainer.conftest import Ranks
from tests.reference_trainer.ps.conftest import Answers

pytestmark = pytest.mark.thorough

PushParts = Callable[..., Answers]
MODES = ("sync", "async", "ssp", "geo")
DENSE = {"network": {"inputs": 32, "hidden": 64, "slots": 0}}
#: One shard, which is added and answered while it comes.
LARGE = {"network": {"inputs": 2048, "hidden": 150, "slots": 0}}
SPARSE = {"network": {"inputs": 16, "hidden": 32, "rows": 997, "slots": 6}}


def healthy(answers: Answers, workers: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The reports of a healthy run."""
    servers, found = answers.reports
    for server in servers:
        assert (server["violations"], server["mismatches"], server["strangers"]) == ([], [], [])
        assert [seen["pushes"] for seen in server["seen"]] == [server["expected_pushes"]] * workers
        assert all(int(ahead) <= server["staleness_bound"] for ahead in server["staleness"]) or server["mode"] in (
            "async",
            "geo",
        )
        assert list(server["phase_at_s"]) == list(rank_events.PS_ORDER)
    for worker in found:
        assert (worker["mismatches"], worker["unmoved"]) == ([], [])
        assert worker["last_loss"] < training.MAX_LOSS_RATIO * worker["first_loss"]
        assert list(worker["phase_at_s"]) == list(rank_events.PS_ORDER)
    assert len({worker["digest"] for worker in found}) == 1
    assert len({worker["exact_digest"] for worker in found}) == 1
    return servers, found


@pytest.mark.parametrize("model", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns_and_passes_the_oracle(parts: PushParts, mode: str, model: dict[str, Any]) -> None:
    servers, workers = healthy(parts(2, 3, mode=mode, model=model, staleness=2), 3)
    if mode == "sync":
        assert all(list(server["staleness"]) == ["0"] for server in servers)
    assert workers[0]["difference_to_one_process"] <= training.TOLERANCE
    assert sum(server["dense_bytes"] for server in servers) > 0
    assert all(seen["bytes_in"] > 0 and seen["round_trips"] > 0 for worker in workers for seen in worker["seen"])


@pytest.mark.parametrize("mode", ["async", "geo", "sync"])
@pytest.mark.parametrize("workers", [1, 2])
def test_large_shards_learn_like_small_ones(parts: PushParts, workers: int, mode: str) -> None:
    (server,), _ = healthy(parts(1, workers, mode=mode, model=LARGE), workers)
    assert server["shards"] == 1 and server["dense_bytes"] >= LARGE_BYTES


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
def test_sync_servers_match_collective_ranks_and_one_process(parts: PushParts, ranks: Ranks, workers: int) -> None:
    until = {str(rank): {"until": rank_events.EXACT} for rank in range(workers)}
    collective = {answer["report"]["exact_digest"] for answer in ranks(workers, steps=5, overrides=until)}
    assert collective == {digest_of_one_process(workers, 5)}
    model = {"dense": [["weight", [1, oracle.FEATURES]]]}
    for servers in (1, 2, 3):
        answers = parts(servers, workers, mode="sync", model=model, steps=5, slice_bytes=4096)
        _, found = healthy(answers, workers)
        assert {worker["exact_digest"] for worker in found} == collective, f"{servers} servers"


def digest_of_one_process(workers: int, steps: int) -> str:
    """The SHA-256 of the weights of one process, and of every collective rank, after exact steps."""
    import torch

    from reference_trainer.ps.store import digest

    kept: list[Any] = []

    class Alone:
        """Sums over ranks in this process."""

        def all_reduce(self, tensor: Any, what: str) -> None:
            shares = (
                oracle.contribution(rank, workers, tensor.numel(), oracle.STEPS_SALT, "cpu", len(kept))
                for rank in range(workers)
            )
            total = torch.zeros(tensor.numel())
            for share in shares:
                total += share
            tensor.copy_(total.view_as(tensor))
            kept.append(tensor.clone())

    checked = oracle.check_steps(Alone(), 0, workers, steps, "cpu")
    assert checked.mismatches == [], "what the collective run expects after the same steps"
    weights = oracle.units(oracle.FEATURES, oracle.STEPS_SALT, "cpu") * oracle.START_QUANTA
    for gradient in kept:
        weights -= oracle.LEARNING_RATE * gradient.flatten()
    return digest([weights])


@pytest.mark.parametrize("policy", ["round-robin", "hash", "size"])
@pytest.mark.parametrize("least_block", [None, 64])
def test_every_policy_and_cut_gives_the_same_bits(parts: PushParts, policy: str, least_block: int | None) -> None:
    model = {"dense": [["a", [50, 40]], ["b", [7]], ["c", [1]]], "tables": [["t", 101, 4], ["u", 3, 2]]}
    answers = parts(
        3, 2, mode="ssp", staleness=1, policy=policy, least_block=least_block, model=model, slice_bytes=1024
    )
    _, workers = healthy(answers, 2)
    alone = healthy(parts(1, 2, mode="sync", model=model), 2)[1]
    assert workers[0]["exact_digest"] == alone[0]["exact_digest"]


def test_staleness_never_exceeds_its_bound_however_slow_one_worker_is(parts: PushParts) -> None:
    slow = {"kind": "delay", "seconds": 0.02, "phase": "servers"}
    bounded = parts(2, 3, mode="ssp", staleness=2, steps=20, overrides={"worker 1": {"injected_fault": slow}})
    servers, _ = healthy(bounded, 3)
    assert all(max(map(int, server["staleness"])) == 2 for server in servers), "the bound was reached and held"
    free = parts(2, 3, mode="async", steps=20, overrides={"worker 1": {"injected_fault": slow}})
    servers, _ = healthy(free, 3)
    assert max(int(ahead) for server in servers for ahead in server["staleness"]) > 2, "without it they run ahead"


def test_more_workers_than_a_window_of_digits(parts: PushParts) -> None:
    model = {"dense": [["a", [5, 3]], ["b", [1]]]}
    healthy(parts(1, 9, mode="async", model=model, steps=3), 9)


def test_the_run_ends_after_the_exact_phase_on_request(parts: PushParts) -> None:
    servers, workers = parts(1, 2, mode="sync", until="exact").reports
    assert [worker["steps"] for worker in workers] == [0, 0]
    assert servers[0]["expected_pushes"] == 10 == servers[0]["seen"][0]["pushes"]
