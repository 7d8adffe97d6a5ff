"""The examples that ship with preflight: good ones have no findings, and every planted fault is found at its
location.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from preflight import api
from preflight.engine.report import Report
from preflight.model.findings import Severity, VerdictKind

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/good"))


@dataclass(frozen=True)
class Planted:
    """A fault that only `broken` has; `word` is the text at its location in the file."""

    id: str
    path: str
    line: int
    column: int
    word: str


PLANTED: dict[str, tuple[Planted, ...]] = {
    "deepspeed-hostfile": (
        Planted("BAT001", "ds_config.json", 2, 23, "100"),
        Planted("HST001", "hostfile", 3, 1, "node1 "),
        Planted("PRT001", "run.sh", 15, 5, "--master_port 295010"),
        Planted("DAT001", "train.py", 22, 15, "DistributedSampler("),
    ),
    "kubernetes-job": (
        Planted("WLD001", "job.yaml", 28, 15, "--nnodes=4"),
        Planted("GPU001", "job.yaml", 29, 15, "--nproc_per_node=8"),
        Planted("KUB002", "job.yaml", 40, 31, "4"),
    ),
    "megatron-slurm": (
        Planted("BAT004", "pretrain_gpt.sbatch", 32, 5, "--global-batch-size 250"),
        Planted("IFN001", "env.sh", 2, 8, "NCCL_SOCKET_IFNAME=lo"),
        Planted("WLD001", "pretrain_gpt.sbatch", 19, 5, "--nnodes 8"),
        Planted("ENV001", "env.sh", 4, 8, "NCCL_IB_TIMEOUTT=22"),
    ),
    "paddle-ps": (
        Planted("PPS001", "start.sh", 9, 8, "PADDLE_TRAINER_ENDPOINTS="),
        Planted("PPS002", "start.sh", 24, 31, "PADDLE_TRAINER_ID=2"),
        Planted("PPS004", "start.sh", 18, 31, "POD_IP=10.77.0.9"),
    ),
    "torchrun-two-nodes": (
        Planted("RDV001", "run.sh", 7, 5, "--master_addr=localhost"),
        Planted("ENV001", "run.sh", 4, 8, "GLOO_SOCKET_IFNAM=eth0"),
    ),
}

#: Consequences of a planted fault: a host listed twice leaves the launch one host short.
CONSEQUENCES: dict[str, tuple[Planted, ...]] = {
    "deepspeed-hostfile": (Planted("WLD002", "run.sh", 12, 5, "--num_nodes 2"),),
    # The misspelt variable leaves gloo without an interface.
    "torchrun-two-nodes": (Planted("PGR001", "train.py", 18, 29, '"gloo"'),),
}


def lint_report(folder: Path) -> Report:
    return api.lint([folder], root=folder)


def places(report: Report) -> set[tuple[str, str, int, int]]:
    """Rule and first location of every finding above info."""
    return {
        (f.id, f.locations[0].path, f.locations[0].line, f.locations[0].column)
        for f in report.findings
        if f.severity is not Severity.INFO
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_good_example_is_silent(name: str) -> None:
    report = lint_report(EXAMPLES / name / "good")
    assert places(report) == set()
    assert (report.verdict, report.exit_code) == (VerdictKind.GO, 0)


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_planted_faults_are_found(name: str) -> None:
    folder = EXAMPLES / name / "broken"
    report = lint_report(folder)
    expected = (*PLANTED[name], *CONSEQUENCES.get(name, ()))
    assert places(report) == {(fault.id, fault.path, fault.line, fault.column) for fault in expected}
    assert (report.verdict, report.exit_code) == (VerdictKind.NO_GO, 1)


@pytest.mark.parametrize("fault", [f for name in NAMES for f in PLANTED[name]], ids=lambda f: f"{f.id}-{f.path}")
def test_the_listed_locations_are_those_of_the_faulty_words(fault: Planted) -> None:
    (folder,) = (EXAMPLES / name / "broken" for name in NAMES if fault in PLANTED[name])
    line = (folder / fault.path).read_text().splitlines()[fault.line - 1]
    assert line[fault.column - 1 :].startswith(fault.word)


@pytest.mark.parametrize("name", NAMES)
def test_a_caret_covers_the_faulty_word(name: str) -> None:
    by_place = {(f.id, f.locations[0].line): f.locations[0] for f in lint_report(EXAMPLES / name / "broken").findings}
    for fault in PLANTED[name]:
        shown = by_place[fault.id, fault.line]
        if shown.end_line == fault.line:
            marked = shown.snippet[shown.column - 1 : shown.end_column - 1]
            assert marked.startswith(fault.word.rstrip("(= ")), (fault, marked)
