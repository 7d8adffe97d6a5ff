"""Real collective ranks under real agents on this machine: a fault of one rank is named in time.

The cases are those in which torch and Paddle hang without a message.
"""

from __future__ import annotations

import signal
from typing import Any

import pytest

from preflight.agent import rank_events
from preflight.model.requests import Request, probe_name
from reference_trainer.collective.rank import rank as run_rank
from tests.ports import free_ports
from tests.reference_trainer.live import (
    LAUNCHED,
    SignalTrigger,
    Trial,
    live,
)

pytestmark = pytest.mark.thorough

WORLD_SIZE = 2
MANY_STEPS = 5000


def ranks(count: int = WORLD_SIZE, *, odd: dict[int, dict[str, Any]] | None = None, steps: int = 6) -> list[Request]:
    """This many ranks, some of them with other parameters."""
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
    trial = live(ranks(), fresh=True)
    assert (trial.culprit, trial.failures) == (None, [])
    assert [record.value["mismatches"] for record in trial.records] == [[], []]


# With two steps the known sums are collectives 1 to 11; the timed ones follow, mostly reported only by heartbeats.
@pytest.mark.parametrize(("steps", "number"), [(10, 4), (2, 15)])
def test_a_stuck_rank_is_named_with_its_stack(steps: int, number: int) -> None:
    trial = live(ranks(odd={1: {"injected_fault": {"stall_before": number}}}, steps=steps))
    found = trial.require_culprit()
    assert (found.rank, found.kind) == (1, "stuck") and f"did not enter collective {number}" in found.because
    assert not trial.cut_off
    assert any("_counted" in e.data["stacks"] for e in trial.events if "stacks" in e.data and e.node == found.node)


def contradiction(requests: list[Request]) -> Trial:
    """A run that ends as soon as all ranks have reported their identity."""
    trial = live(requests)
    assert not trial.cut_off
    return trial


@pytest.mark.parametrize("absent", [0, 1])
def test_rank_that_never_starts_is_named_at_once(absent: int) -> None:
    found = contradiction([request for request in ranks() if request.params["rank"] != absent]).require_culprit()
    assert (found.rank, found.kind) == (None, "missing")
    assert f"no process was started as rank {absent}: all were configured with 2 ranks" in found.because


def test_a_rank_with_another_port_of_the_master() -> None:
    found = contradiction(ranks(3, odd={1: {"master_port": 9}})).require_culprit()
    assert (found.rank, found.kind) == (1, "mismatch") and "the master at 127.0.0.1:9," in found.because


@pytest.mark.parametrize("number", [0, 1])
def test_two_ranks_with_one_number(number: int) -> None:
    found = contradiction(ranks(odd={1 - number: {"rank": number}})).require_culprit()
    assert found.kind == "mismatch"
    assert f"are both rank {number}; no process is rank {1 - number}" in found.because
    assert f"node{1 - number}-{1 - number}" in found.because and f"node{number}-{number}" in found.because


def test_ranks_that_disagree_on_their_number() -> None:
    found = contradiction(ranks(odd={1: {"world_size": 3}})).require_culprit()
    assert (found.rank, found.kind) == (1, "mismatch")
    assert "was configured with 3 ranks, but rank 0 with 2 ranks" in found.because


def test_a_surplus_rank_is_named() -> None:
    found = contradiction(ranks(3, odd={number: {"world_size": 2} for number in range(3)})).require_culprit()
    assert (found.rank, found.kind) == (2, "mismatch") and "is one too many" in found.because


PHASES = {"start": LAUNCHED, "middle": rank_events.EXACT, "end": rank_events.PARITY}


@pytest.mark.parametrize("when", PHASES)
@pytest.mark.parametrize("trigger", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("number", [0, 1])
def test_a_rank_that_is_killed_or_stopped_is_named(number: int, when: str, trigger: signal.Signals) -> None:
    requests = ranks(steps=MANY_STEPS if when == "middle" else 6)
    node = f"node{number}-{number}"
    trial = live(requests, trigger=SignalTrigger(node, trigger, PHASES[when]))
    assert trial.signal_sent_s, "it was through before the signal came"
    found = trial.require_culprit()
    assert (found.name, found.node) == (f"rank {number}", node), found
    assert found.kind == ("dead" if trigger is signal.SIGKILL else "stopped"), found
    assert not trial.cut_off
    others = [failure for failure in trial.failures if not failure.startswith(node)]
    assert all(f"because of {found.title}" in failure for failure in others), trial.failures
