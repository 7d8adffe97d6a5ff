"""Faults of single updates between real servers and workers are found and attributed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Status
from preflight.model.recording import Facts
from preflight.plugins.authoring import Check, Verdict
from preflight_checks.smoke.server_results import (
    server_or_worker_did_not_finish,
    servers_trained_nothing,
    updates_lost_doubled_or_stale,
    wrong_server_result,
)
from preflight_checks.smoke.server_run import group_of, plan_servers
from preflight_checks.smoke.server_traffic import server_load_uneven
from tests.checks.check_builders import job, local_fleet
from tests.ports import free_ports
from tests.reference_trainer.live import Trial, live

pytestmark = pytest.mark.thorough

NODES = 4
RESULTS = (wrong_server_result, updates_lost_doubled_or_stale, server_load_uneven, servers_trained_nothing)


class FaultyRun:
    """A run of two servers and two workers with a fault in one of them, and its findings."""

    def __init__(self, mode: str, **fault: Any) -> None:
        pytest.importorskip("torch")
        endpoints = tuple(f"127.0.0.1:{port}" for port in free_ports(2))
        self.job = job(ps_mode=True, ps_update_mode=mode, ps_server_endpoints=endpoints, ps_workers=2)
        requests = plan_servers(self.job, local_fleet(NODES), Facts())
        self.trial: Trial = live(
            [
                replace(r, params={**r.params, "steps": 8, "injected_fault": fault}, group=group_of(self.job))
                for r in requests
            ]
        )

    def messages_of(self, check: Check) -> list[Verdict]:
        return list(check.judge(self.job, local_fleet(NODES), self.trial.facts))

    def faults(self) -> dict[str, list[str]]:
        """The messages of all findings, by check."""
        found: dict[str, list[str]] = {}
        for check in (server_or_worker_did_not_finish, *RESULTS):
            for verdict in self.messages_of(check):
                if verdict.status is Status.FAIL:
                    found.setdefault(check.meta.name, []).append(verdict.message)
        return found


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_a_healthy_run_passes_every_check(mode: str) -> None:
    played = FaultyRun(mode)
    assert played.faults() == {}
    for check in (server_or_worker_did_not_finish, *RESULTS):
        assert {verdict.status for verdict in played.messages_of(check)} == {Status.PASS}, check.meta.name


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_bit_flipped_in_transit_is_found(mode: str) -> None:
    found = FaultyRun(mode, kind="flip", role="worker", index=1, step=2, server=0).faults()
    (message,) = found["wrong-server-result"]
    assert "elements are wrong" in message, message


def test_a_bit_that_flips_in_a_servers_memory_is_found() -> None:
    found = FaultyRun("async", kind="flip", role="server", index=0, step=2).faults()
    assert "wrong-server-result" in found


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize(("kind", "word"), [("loss", "never came"), ("double", "arrived twice")])
def test_lost_or_doubled_push_is_attributed_to_its_worker(mode: str, kind: str, word: str) -> None:
    found = FaultyRun(mode, kind=kind, role="worker", index=1, step=2, server=0).faults()
    messages = " ".join(found.get("updates-lost-doubled-or-stale", []))
    assert word in messages and "worker 1" in messages, found


def test_a_push_that_a_server_applies_twice_is_found() -> None:
    found = FaultyRun("async", kind="double", role="server", index=0, step=2).faults()
    assert "wrong-server-result" in found
