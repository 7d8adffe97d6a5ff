"""A mutated agent on one node does not affect the results of other nodes, and ends no check."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.hostile.mutants import MUTANTS
from tests.hostile.mutants_fresh import MUTANTS as FRESH
from tests.hostile.mutants_sealed import MUTANTS as SEALED
from tests.hostile.rank_mutants import MUTANTS as RANK_MUTANTS_MUTANTS
from tests.hostile.rank_mutants import SEALED as RANK_MUTANTS_SEALED
from tests.warm_python import warm_python

ROOT = Path(__file__).parents[2]


#: Nodes of one run: the first and the last are healthy, each of the others has a mutant.
NODES = 8


HEALTHY = ("local0", f"local{NODES - 1}")


JOB = """#!/bin/bash
#SBATCH --nodes=8
#SBATCH --ntasks-per-node=1
srun torchrun --nnodes=8 --nproc-per-node=1 --rdzv-backend=c10d --rdzv-endpoint=localhost:29511 train.py
"""


#: Longer than any node needs on a machine at three times its load; stalled nodes wait for it.
OPEN_DEADLINE_S, NODE_DEADLINE_S = 60, 30


#: The head alone takes about 100 MiB.
MAX_MEMORY_KIB = 700 * 1024


def checked(folder: Path, mutants: Sequence[str]) -> tuple[int, dict[str, Any], str]:
    """The exit code of a check with these mutants on nodes 1 and further, its recording, and all it printed."""
    (folder / "run.sh").write_text(JOB)
    (folder / "train.py").write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    chosen = ",".join(f"local{number}={name}" for number, name in enumerate(mutants, 1))
    command = [sys.executable, "-m", "tests.hostile.mutants", chosen, str(folder / "memory"), "check", "run.sh"]
    done = subprocess.run(
        [
            *command,
            *("--hosts", f"local[0-{NODES - 1}]", "--on", "local", "--until", "node"),
            *("--open-deadline", str(OPEN_DEADLINE_S), "--node-deadline", str(NODE_DEADLINE_S)),
            *("--save", "recording.json"),
            *("--output", "text", "--output", "json:report.json", "--output", "html:report.html"),
        ],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        timeout=500,
        text=True,
    )
    said = done.stdout + done.stderr
    assert done.returncode in (1, 3), said[-4000:]
    if os.environ.get("PREFLIGHT_SHOW_MEMORY"):
        print(mutants, done.returncode, (folder / "memory").read_text())
    assert int((folder / "memory").read_text()) < MAX_MEMORY_KIB
    return done.returncode, json.loads((folder / "recording.json").read_text()), said


def facts_of(recording: dict[str, Any], node: str) -> dict[str, bool]:
    """For each request to a node, whether it was answered."""
    found = {}
    for question in recording["facts"]:
        for row, asked in enumerate(question["nodes"]):
            if asked == node:
                params = json.dumps(recording["params"][question["params"][row]], sort_keys=True)
                found[f"{question['probe']} {params}"] = str(row) not in question.get("unavailable", {})
    return found


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bool]]:
    """The requests answered by the healthy nodes, the first and the last."""
    _, recording, _ = checked(tmp_path_factory.mktemp("healthy"), [])
    found = {node: facts_of(recording, node) for node in HEALTHY}
    assert all(sum(answered.values()) >= 8 for answered in found.values())
    return found


def batches(names: Sequence[str]) -> list[Sequence[str]]:
    """Group the mutants into runs."""
    return [names[begin : begin + NODES - 2] for begin in range(0, len(names), NODES - 2)]


def look(folder: Path, names: Sequence[str], healthy: dict[str, dict[str, bool]]) -> None:
    """Check that these mutants do not affect the healthy nodes."""
    _, recording, said = checked(folder, names)
    for node in HEALTHY:
        assert facts_of(recording, node) == healthy[node]
        assert not next(record for record in recording["nodes"] if record["node"]["name"] == node).get("problem")
    assert "Traceback" not in said
    for printed in (said, (folder / "report.html").read_text()):
        assert "\x1b" not in printed and "\u202e" not in printed


@pytest.mark.thorough
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    "names",
    batches([*MUTANTS, *SEALED, *FRESH]),
    ids=lambda names: names[0],
)
def test_mutated_agents_do_not_affect_other_nodes(
    tmp_path: Path, names: Sequence[str], healthy: dict[str, dict[str, bool]]
) -> None:
    look(tmp_path, names, healthy)


# A mutated rank of a smoke run ends no check, hangs nothing, and does not affect other nodes.


#: A server on the first node, a worker on each other; the worker in the middle is altered.
ALTERED, OTHERS = "local1", ("local0", "local2")


#: Longer than a healthy run needs on a machine at three times its load; a silent rank waits for it.
SMOKE_DEADLINE_S, RANK_MUTANTS_OPEN_DEADLINE_S = 60, 60


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


def smoke(folder: Path, mutant: str) -> tuple[int, dict[str, Any], str]:
    """The exit code, recording and output of a smoke run with this rank."""
    command = [sys.executable, "-m", "tests.hostile.mutants", f"{ALTERED}={mutant}" if mutant else "", "memory"]
    done = subprocess.run(
        [
            *(*command, "smoke", "--hosts", "local[0-2]", "--on", "local", "--servers", "1", "--workers", "2"),
            *("--steps", "3", "--python", warm_python(), "--save", "recording.json"),
            *("--smoke-deadline", str(SMOKE_DEADLINE_S), "--open-deadline", str(RANK_MUTANTS_OPEN_DEADLINE_S)),
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


def rank_mutants_look(folder: Path, mutant: str) -> None:
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


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", [*RANK_MUTANTS_MUTANTS, *RANK_MUTANTS_SEALED])
def test_mutated_rank_does_not_affect_other_nodes(tmp_path: Path, mutant: str) -> None:
    rank_mutants_look(tmp_path, mutant)
