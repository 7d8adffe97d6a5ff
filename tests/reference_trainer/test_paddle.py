"""Whole ranks in Paddle over Gloo on loopback, with each release that is installed for the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight.agent import rank_events
from reference_trainer.collective import steps

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
#: `make test` installs each of these into its own environment; differences between them are tested with both.
NEWEST, OLDEST = "3.3.1", "2.6.2"
both = pytest.mark.parametrize("interpreter", (NEWEST, OLDEST), indirect=True)
#: Importing Paddle takes ten seconds on a busy machine.
_LIMIT_S = 120.0


@pytest.fixture
def interpreter(request: pytest.FixtureRequest) -> Path:
    """A Python that has this Paddle, and no torch."""
    version = str(getattr(request, "param", NEWEST))
    path = ROOT / ".venv" / "paddle" / version / "bin" / "python"
    if not path.exists():
        pytest.skip(f"no paddlepaddle {version} in .venv/paddle (make test installs it)")
    return path


def ranks(
    interpreter: Path,
    port: int,
    each: Sequence[Mapping[str, Any]],
    **common: Any,
) -> list[dict[str, Any]]:
    """Run these ranks together, each with its own parameters; their answers in the same order."""
    started = []
    for number, own in enumerate(each):
        fault = own.get("fault")
        params = {
            "rank": number,
            "world_size": len(each),
            "local_rank": number,
            "local_world_size": len(each),
            "master_addr": "127.0.0.1",
            "master_port": port,
            "backend": "gloo",
            "steps": 5,
            "timeout_s": 60,
            "run_id": "one",
            **common,
            **{name: value for name, value in own.items() if name != "fault"},
        }
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        argument = json.dumps({"params": params, "fault": fault})
        program = [str(interpreter), str(Path(__file__).with_name("paddle_rank.py")), argument]
        started.append(subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment))
    try:
        return [json.loads(process.communicate(timeout=_LIMIT_S)[0]) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()


@both
@pytest.mark.parametrize("world_size", [1, 3])
def test_a_healthy_run_is_exact_and_learns(interpreter: Path, free_port: int, world_size: int) -> None:
    answers = ranks(interpreter, free_port, [{}] * world_size, steps=10)
    assert [answer.get("error") for answer in answers] == [None] * world_size
    reports = [answer["report"] for answer in answers]
    assert all(report["mismatches"] == [] and report["unmoved"] == [] for report in reports)
    assert all(report["operations"] >= 4 + world_size + 10 for report in reports)
    assert all(report["framework"] == f"paddle {interpreter.parts[-3]}" for report in reports)
    assert len({digest for report in reports for digest in report["digests"]}) == 1
    assert all(report["losses"][-1] < steps.MAX_LOSS_RATIO * report["losses"][0] for report in reports)
    assert reports[0]["difference_to_one_process"] <= steps.TOLERANCE
    assert all((report["drift"]["largest"], report["drift"]["elements"]) == (0.0, 0) for report in reports)
    reached = [phase for phase in rank_events.ORDER if phase in reports[0]["phase_at_s"]]
    assert list(reports[0]["phase_at_s"]) == reached
    assert {rank_events.RENDEZVOUS, rank_events.EXACT, rank_events.DDP, rank_events.PARITY, rank_events.DONE} <= set(
        reached
    )


def test_a_lost_contribution_is_attributed_to_its_rank(interpreter: Path, free_port: int) -> None:
    fault = {"kind": "lost", "elements": 1000}
    for answer in ranks(interpreter, free_port, [{}, {"fault": fault}], until=rank_events.EXACT):
        (mismatch,) = answer["report"]["mismatches"]
        assert mismatch["contributions"] == {"1": 0}
        assert mismatch["explanation"] == "the contribution of rank 1 is missing"


@pytest.mark.parametrize(
    ("kind", "says"), [("loss", "the contribution of rank 1 is missing"), ("flip", ""), ("delay", "")]
)
def test_injected_fault_is_applied_and_reported(interpreter: Path, free_port: int, kind: str, says: str) -> None:
    fault = {"kind": kind, "step": 3, "seconds": 0.05}
    answers = ranks(interpreter, free_port, [{}, {"injected_fault": fault}], until=rank_events.EXACT)
    played = [event for event in answers[1]["events"] if event["event"] == rank_events.FAULT_INJECTED]
    assert [(event["kind"], event["step"] >= 3) for event in played] == [(kind, True)]
    for answer in answers:
        found = [mismatch["explanation"] for mismatch in answer["report"]["mismatches"]]
        assert len(found) == (0 if kind == "delay" else 1) and all(says in text for text in found)


def test_flipped_bit_is_found_on_its_rank(interpreter: Path, free_port: int) -> None:
    fault = {"kind": "flipped", "elements": 4096, "index": 77, "bit": 13}
    answers = ranks(interpreter, free_port, [{}, {"fault": fault}], until=rank_events.EXACT)
    assert answers[0]["report"]["mismatches"] == []
    (mismatch,) = answers[1]["report"]["mismatches"]
    assert (mismatch["rank"], mismatch["index"], mismatch["flipped_bits"]) == (1, 77, "0x00002000")


def test_ranks_of_two_runs_do_not_mix(interpreter: Path, free_port: int) -> None:
    answers = ranks(interpreter, free_port, [{}, {"run_id": "another"}], timeout_s=30)
    for answer in answers:
        assert "processes of one run disagree" in answer["error"]
        assert any(event.get("problem") == "mismatch" and event["what"] == "run_id" for event in answer["events"])


def test_missing_rank_is_named(interpreter: Path, free_port: int) -> None:
    answers = ranks(interpreter, free_port, [{"world_size": 3}, {"world_size": 3}], timeout_s=6)
    assert "ranks [2] did not connect" in answers[0]["error"]
    assert "rank 0 gave up waiting for the other ranks" in answers[1]["error"]
    waited = [event["waiting_for"] for event in answers[1]["events"] if "waiting_for" in event]
    assert [2] in waited


def test_paddle_is_chosen_without_torch() -> None:
    from reference_trainer.common import framework

    assert framework.is_paddle({"framework": "paddle"})
    assert not framework.is_paddle({"framework": "torch"})
    assert framework.is_paddle({}) is ("torch" not in sys.modules and not _has("torch") and _has("paddle"))


def _has(module: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(module) is not None
