"""Real ranks of a collective under real agents on this machine: whatever is wrong with one of them is named, in time.

The rows are those that leave torch and Paddle hanging without a word.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from preflight.request import Request, probe_name
from reference_trainer import phases
from reference_trainer.collective import rank as run_rank
from tests.ports import free_ports
from tests.reference_trainer.live import (
    DEAD_WITHIN_S,
    LAUNCHED,
    STOPPED_WITHIN_S,
    STUCK_WITHIN_S,
    TOLD_WITHIN_S,
    Strike,
    Trial,
    in_time,
    live,
)

pytestmark = [pytest.mark.smoke, pytest.mark.slow]

WORLD_SIZE = 2
MANY_STEPS = 5000


def ranks(count: int = WORLD_SIZE, *, odd: dict[int, dict[str, Any]] | None = None, steps: int = 6) -> list[Request]:
    """So many ranks, of which some are told something else."""
    pytest.importorskip("torch")
    (port,) = free_ports(1)
    found = []
    for number in range(count):
        params: dict[str, Any] = {
            "rank": number,
            "world_size": count,
            "local_rank": 0,
            "local_world_size": 1,
            "master_addr": "127.0.0.1",
            "master_port": port,
            "backend": "gloo",
            "interface": "lo",
            "steps": steps,
            **(odd or {}).get(number, {}),
        }
        found.append(Request(probe_name(run_rank), f"node{number}", params, context=True, group="g"))
    return found


def test_a_healthy_run_ends_with_a_report_from_every_rank() -> None:
    trial = live(ranks())
    assert (trial.blamed, trial.failures) == (None, [])
    assert [record.value["mismatches"] for record in trial.records] == [[], []]


# With two steps the known sums are collectives 1 to 11; the timed ones follow, mostly told by heartbeats alone.
@pytest.mark.parametrize(("steps", "number"), [(10, 4), (2, 15)])
def test_a_stuck_rank_is_named_with_its_stack(steps: int, number: int) -> None:
    trial = live(ranks(odd={1: {"drill": {"stall_before": number}}}, steps=steps))
    found = trial.named()
    assert (found.rank, found.kind) == (1, "stuck") and f"did not enter collective {number}" in found.because
    assert in_time(trial.decided_s - found.since_s, STUCK_WITHIN_S)
    assert any("_counted" in e.data["stacks"] for e in trial.events if "stacks" in e.data and e.node == found.node)


def contradiction(requests: list[Request]) -> Trial:
    """A run that ends as soon as all ranks have said who they are."""
    trial = live(requests)
    assert in_time(trial.decided_s - trial.spoke_s, TOLD_WITHIN_S)
    return trial


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_is_never_started_is_missed_at_once(absent: int) -> None:
    found = contradiction([request for request in ranks() if request.params["rank"] != absent]).named()
    assert (found.rank, found.kind) == (None, "missing")
    assert f"nobody was started as rank {absent}: everybody was told of 2 ranks" in found.because


def test_a_rank_with_another_port_of_the_master() -> None:
    found = contradiction(ranks(3, odd={1: {"master_port": 9}})).named()
    assert (found.rank, found.kind) == (1, "mismatch") and "the master at 127.0.0.1:9," in found.because


@pytest.mark.parametrize("number", [0, 1])
def test_two_ranks_with_one_number(number: int) -> None:
    found = contradiction(ranks(odd={1 - number: {"rank": number}})).named()
    assert found.kind == "mismatch"
    assert f"are both rank {number}; nobody is rank {1 - number}" in found.because
    assert f"node{1 - number}-{1 - number}" in found.because and f"node{number}-{number}" in found.because


def test_ranks_that_disagree_on_their_number() -> None:
    found = contradiction(ranks(odd={1: {"world_size": 3}})).named()
    assert (found.rank, found.kind) == (1, "mismatch")
    assert "was told of 3 ranks, but rank 0 of 2 ranks" in found.because


def test_one_rank_too_many() -> None:
    found = contradiction(ranks(3, odd={number: {"world_size": 2} for number in range(3)})).named()
    assert (found.rank, found.kind) == (2, "mismatch") and "is one too many" in found.because


WHEN = {"start": LAUNCHED, "middle": phases.EXACT, "end": phases.PARITY}


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("strike", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_is_killed_or_stopped_is_named(number: int, when: str, strike: signal.Signals) -> None:
    requests = ranks(steps=MANY_STEPS if when == "middle" else 6)
    node = f"node{number}-{number}"
    trial = live(requests, strike=Strike(node, strike, WHEN[when]))
    assert trial.struck_s, "it was through before the signal came"
    found = trial.named()
    assert (found.name, found.node) == (f"rank {number}", node), found
    assert found.kind == ("dead" if strike is signal.SIGKILL else "stopped"), found
    within_s = DEAD_WITHIN_S if strike is signal.SIGKILL else STOPPED_WITHIN_S
    assert in_time(trial.decided_s - trial.struck_s, within_s)
    others = [failure for failure in trial.failures if not failure.startswith(node)]
    assert all(f"because of {found.title}" in failure for failure in others), trial.failures
