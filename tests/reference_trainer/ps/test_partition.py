"""Parameters are divided and assigned to servers without loss or duplication, equally in every process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.agent import rank_events
from reference_trainer.collective import steps as training
from reference_trainer.common import oracle
from reference_trainer.ps import frames
from reference_trainer.ps.client import Server
from reference_trainer.ps.frames import LARGE_BYTES, Header
from reference_trainer.ps.layout import ParameterLayout
from reference_trainer.ps.partition import (
    OPTIMIZER_SLOTS,
    POLICIES,
    Parameter,
    Table,
    bytes_held,
    cut_into_blocks,
    make_plan,
    product,
    rows_held,
    sizes_of_blocks,
)
from tests.reference_trainer.conftest import Ranks
from tests.reference_trainer.ps.conftest import Answers

SHAPES = st.lists(st.integers(1, 300), min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("shape", "servers", "sizes"),
    [
        ((100,), 4, (100,)),
        ((40000,), 4, (10000, 10000, 10000, 10000)),
        ((20000,), 4, (10000, 10000)),
        ((1000, 64), 4, (16000, 16000, 16000, 16000)),
        ((10, 10000), 8, (20000, 20000, 20000, 20000, 20000)),
        ((3, 8192), 2, (16384, 8192)),
        ((0,), 4, ()),
        ((5,), 0, ()),
    ],
)
def test_blocks_as_the_transpiler_cuts_them(shape: tuple[int, ...], servers: int, sizes: tuple[int, ...]) -> None:
    assert sizes_of_blocks(shape, servers) == sizes


@given(shape=SHAPES, servers=st.integers(1, 40), least=st.integers(1, 5000))
def test_blocks_cover_a_parameter_once(shape: list[int], servers: int, least: int) -> None:
    blocks = cut_into_blocks("w", shape, servers, least)
    assert sum(block.elements for block in blocks) == product(shape)
    assert [block.begin for block in blocks] == [
        sum(block.elements for block in blocks[:index]) for index in range(len(blocks))
    ]
    assert len(blocks) <= servers and all(block.elements > 0 for block in blocks)
    if len(shape) > 1:
        assert all(block.begin % product(shape[1:]) == 0 for block in blocks), "whole rows"


@given(shapes=st.lists(SHAPES, max_size=6), servers=st.integers(1, 12))
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_block_goes_to_one_server(policy: str, shapes: list[list[int]], servers: int) -> None:
    blocks = [
        block for number, shape in enumerate(shapes) for block in cut_into_blocks(str(number), shape, servers, 64)
    ]
    held = POLICIES[policy](blocks, servers)
    assert len(held) == servers
    assert sorted((b.parameter, b.index) for mine in held for b in mine) == sorted(
        (b.parameter, b.index) for b in blocks
    )


def test_largest_block_goes_to_the_least_loaded_server() -> None:
    blocks = [*cut_into_blocks("a", (10,), 1), *cut_into_blocks("b", (30,), 1), *cut_into_blocks("c", (20,), 1)]
    assert [[block.parameter for block in mine] for mine in POLICIES["size"](blocks, 2)] == [["b"], ["c", "a"]]


def test_a_hash_of_names_is_the_same_in_every_process() -> None:
    code = (
        "from reference_trainer.ps.partition import *\n"
        "print([[b.index for b in mine] for mine in assign_by_name(cut_into_blocks('w', (10**6,), 7), 7)])"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and said != {""}


@given(rows=st.integers(0, 10**6), servers=st.integers(1, 50))
def test_rows_are_divided_by_their_number(rows: int, servers: int) -> None:
    held = rows_held(rows, servers)
    assert sum(held) == rows and max(held) - min(held) <= 1
    if rows < 500:
        counted = [0] * servers
        for row in range(rows):
            counted[row % servers] += 1
        assert tuple(counted) == held


def test_bytes_with_the_optimizers_own_values() -> None:
    slots = OPTIMIZER_SLOTS["Adam"]
    held = bytes_held([(1000, 10)], [(1001, 8)], 2, min_elements=None, slots=slots)
    assert held == [(10000 + 501 * 8) * 4 * 3, 500 * 8 * 4 * 3]
    assert bytes_held([(100,)], [], 3) == [400, 0, 0]


# A worker sends the same bytes for its gradients, whether they are copied or sent in place.


class _Told:
    def __init__(self, servers: int, slice_bytes: int) -> None:
        dense = [Parameter("large", (300, 100)), Parameter("bias", (7,)), Parameter("tiny", (3, 5))]
        dense += [Parameter(f"more{number}", (5000 + number,)) for number in range(3)]
        self.plan = make_plan(dense, [Table("rows", 10, 4)], servers, slice_bytes=slice_bytes)


@pytest.mark.thorough
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("slice_bytes", [4 << 20, 40_000])
def test_lent_data_equals_copied_data(servers: int, slice_bytes: int) -> None:
    import torch

    told = _Told(servers, slice_bytes)
    values = [torch.randn(p.shape) for p in told.plan.dense]
    # As a matrix product may leave it: its numbers are not in the order of sending.
    values[0] = torch.randn(100, 300).t()

    def sent(lends: bool) -> list[list[bytes]]:
        ends = [Server(None, told, number) for number in range(servers)]  # type: ignore[arg-type]
        layout = ParameterLayout(told.plan)
        kept = layout.lend(values, ends) if lends else layout.scatter(values, ends)
        found = [[b"".join(map(bytes, parts)) for parts in end.outgoing] for end in ends]
        del kept
        return found

    assert sent(True) == sent(False)
    assert sum(len(shard) for end in sent(True) for shard in end) == sum(4 * p.elements for p in told.plan.dense)


@pytest.mark.thorough
def test_copies_work_after_lending() -> None:
    import torch

    told = _Told(1, 4 << 20)
    end, layout = Server(None, told, 0), ParameterLayout(told.plan)  # type: ignore[arg-type]
    kept = layout.lend([torch.ones(p.shape) for p in told.plan.dense], [end])
    layout.scatter([torch.zeros(p.shape) for p in told.plan.dense], [end])
    assert kept and not any(b"".join(map(bytes, end.outgoing[0])))


# Whole runs on loopback: all modes train a dense and a sparse model, and every bit of the exact phase is right.


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


@pytest.mark.thorough
@pytest.mark.parametrize("model", [DENSE, SPARSE], ids=["dense", "sparse"])
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_learns_and_passes_the_oracle(parts: PushParts, mode: str, model: dict[str, Any]) -> None:
    servers, workers = healthy(parts(2, 3, mode=mode, model=model, staleness=2), 3)
    if mode == "sync":
        assert all(list(server["staleness"]) == ["0"] for server in servers)
    assert workers[0]["difference_to_one_process"] <= training.TOLERANCE
    assert sum(server["dense_bytes"] for server in servers) > 0
    assert all(seen["bytes_in"] > 0 and seen["round_trips"] > 0 for worker in workers for seen in worker["seen"])


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["async", "geo", "sync"])
@pytest.mark.parametrize("workers", [1, 2])
def test_large_shards_learn_like_small_ones(parts: PushParts, workers: int, mode: str) -> None:
    (server,), _ = healthy(parts(1, workers, mode=mode, model=LARGE), workers)
    assert server["shards"] == 1 and server["dense_bytes"] >= LARGE_BYTES


@pytest.mark.thorough
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

    from reference_trainer.ps.exact import digest

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


@pytest.mark.thorough
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


@pytest.mark.thorough
def test_staleness_never_exceeds_its_bound_however_slow_one_worker_is(parts: PushParts) -> None:
    slow = {"kind": "delay", "seconds": 0.02, "phase": "servers"}
    bounded = parts(2, 3, mode="ssp", staleness=2, steps=20, overrides={"worker 1": {"injected_fault": slow}})
    servers, _ = healthy(bounded, 3)
    assert all(max(map(int, server["staleness"])) == 2 for server in servers), "the bound was reached and held"
    free = parts(2, 3, mode="async", steps=20, overrides={"worker 1": {"injected_fault": slow}})
    servers, _ = healthy(free, 3)
    assert max(int(ahead) for server in servers for ahead in server["staleness"]) > 2, "without it they run ahead"


@pytest.mark.thorough
def test_more_workers_than_a_window_of_digits(parts: PushParts) -> None:
    model = {"dense": [["a", [5, 3]], ["b", [1]]]}
    healthy(parts(1, 9, mode="async", model=model, steps=3), 9)


@pytest.mark.thorough
def test_the_run_ends_after_the_exact_phase_on_request(parts: PushParts) -> None:
    servers, workers = parts(1, 2, mode="sync", until="exact").reports
    assert [worker["steps"] for worker in workers] == [0, 0]
    assert servers[0]["expected_pushes"] == 10 == servers[0]["seen"][0]["pushes"]


# Headers survive encoding, and any other bytes are rejected with a reason.


HEADERS = st.builds(
    Header,
    op=st.sampled_from(sorted(frames.NAMES)),
    flags=st.integers(0, 0xFFFF),
    worker=st.integers(0, 2**32 - 1),
    clock=st.integers(-(2**63), 2**63 - 1),
    shard=st.integers(0, 2**32 - 1),
    count=st.integers(0, 2**32 - 1),
    bytes=st.integers(0, frames.MAX_BYTES),
    phase=st.integers(0, 2**32 - 1),
)


@given(HEADERS)
def test_header_round_trip(header: Header) -> None:
    data = frames.encode(header)
    assert len(data) == frames.HEADER_BYTES
    assert frames.decode(data) == header


@given(st.binary(max_size=100))
def test_any_bytes_are_a_header_or_a_frame_error(data: bytes) -> None:
    try:
        header = frames.decode(data)
    except frames.FrameError as error:
        assert str(error)
    else:
        assert frames.encode(header) == data


@given(HEADERS, st.integers(0, frames.HEADER_BYTES * 8 - 1))
def test_one_flipped_bit_of_a_header_is_found(header: Header, bit: int) -> None:
    data = bytearray(frames.encode(header))
    data[bit // 8] ^= 1 << bit % 8
    with pytest.raises(frames.FrameError):
        frames.decode(data)


def test_foreign_protocol_is_quoted() -> None:
    with pytest.raises(frames.FrameError, match="GET / HTTP"):
        frames.decode(b"GET / HTTP/1.1\r\nHost: node-a\r\n\r\n".ljust(frames.HEADER_BYTES))


def test_impossible_payload_is_rejected() -> None:
    with pytest.raises(frames.FrameError, match="announces"):
        frames.decode(frames.encode(Header(frames.PUSH, bytes=frames.MAX_BYTES + 1)))
