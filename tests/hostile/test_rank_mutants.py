"""A mutated rank of a smoke run ends no check, hangs nothing, and does not affect other nodes."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.rank_mutants import MUTANTS, SEALED
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[2]
#: A server on the first node, a worker on each other; the worker in the middle is altered.
ALTERED, OTHERS = "local1", ("local0", "local2")
#: Longer than a healthy run needs on a machine at three times its load; a silent rank waits for it.
SMOKE_DEADLINE_S, OPEN_DEADLINE_S = 60, 60
#: Harmless mutations, because the computation is judged by the final answers.
HARMLESS = frozenset(
    (
        *("rank-waits-for-nobody-there", "rank-of-another", "rank-answers-huge"),
        *(
            "rank-sealed-twice",
            "rank-sealed-details-wide",
            "rank-sealed-backwards",
            # Only what it says of its way is wrong.
            *("rank-phase-done-at-once", "rank-sealed-lies-about-all", "rank-sealed-enters-out-of-order"),
        ),
    )
)

pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


def smoke(folder: Path, mutant: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, recording and output of a smoke run with this rank."""
    command = [sys.executable, "-m", "tests.hostile.mutants", f"{ALTERED}={mutant}" if mutant else "", "memory"]
    done = subprocess.run(
        [
            *(*command, "smoke", "--hosts", "local[0-2]", "--on", "local", "--servers", "1", "--workers", "2"),
            *("--steps", "3", "--python", warm_python(), "--save", "recording.json"),
            *("--smoke-deadline", str(SMOKE_DEADLINE_S), "--open-deadline", str(OPEN_DEADLINE_S)),
            *("--output", "text", "--output", "html:report.html"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=500,
        text=True,
    )
    printed = done.stdout + done.stderr
    assert (folder / "recording.json").exists(), printed[-4000:]
    return done.returncode, json.loads((folder / "recording.json").read_text()), printed


def look(folder: Path, mutant: str) -> None:
    """Check that this rank did not affect the others."""
    code, recording, printed = smoke(folder, mutant)
    assert code in (1, 3) or (code == 0 and mutant in HARMLESS), printed[-4000:]
    assert "Traceback" not in printed
    for text in (printed, (folder / "report.html").read_text()):
        assert "\x1b" not in text and "\u202e" not in text
    for node in OTHERS:
        assert not next(one for one in recording["nodes"] if one["node"]["name"] == node).get("problem")
        assert any("phase" in event["data"] for event in recording["events"] if event["node"] == node)
    for question in recording["facts"]:
        ranks = question["probe"].startswith("reference_trainer.")
        for row, why in question.get("unavailable", {}).items():
            node = question["nodes"][int(row)]
            # A rank that needs the mutated one ends with it; earlier answers of nodes are kept.
            assert node == ALTERED or (ranks and why["kind"] in ("cancelled", "blocked", "failed")), (question, why)


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", [*MUTANTS, *SEALED])
def test_mutated_rank_does_not_affect_other_nodes(tmp_path: Path, mutant: str) -> None:
    look(tmp_path, mutant)
