"""Ranks that a program starts by itself: their variables, their exit codes, and one that does not end."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from reference_trainer.common import launcher_environment

PROGRAM = """
import os, sys, time
rank = int(os.environ["RANK"])
print(rank, os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"], os.environ["PREFLIGHT_SPAWNED"], flush=True)
if "hang" in sys.argv and rank == 1:
    time.sleep(60)
sys.exit("fail" in sys.argv and rank == 2)
"""


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The handlers that a run sets are those of this process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(PROGRAM)
    return str(tmp_path / "train.py")


def test_every_rank_gets_its_variables(program: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert launcher_environment.run(3, [program], 60.0) == 0
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "0 0 3 1", "1 1 3 1", "2 2 3 1"]


def test_the_failure_of_one_rank_is_that_of_all(program: str) -> None:
    assert launcher_environment.run(3, [program, "fail"], 60.0) == 1


def test_a_rank_that_does_not_end_is_named(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher_environment, "_GRACE_S", 0.5)
    with pytest.raises(launcher_environment.NoRanks, match=r"rank 1 did not end by itself at its deadline of 2 s"):
        launcher_environment.run(2, [program, "hang"], 2.0)
