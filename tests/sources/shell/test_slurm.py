"""The #SBATCH header and the variables that follow from it."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, OneOf, Unresolved, Value
from preflight.sources.base import Script, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.shell import evaluate


def script(text: str) -> Script:
    return evaluate(SourceFile("job.sbatch", text, "", len(text)), MemoryTree({"job.sbatch": text}))


def variable(header: str, name: str) -> Value:
    lines = "\n".join(f"#SBATCH {line}" for line in header.split("\n"))
    return script(f'#!/bin/bash\n{lines}\ncmd "${name}"\n').commands[0].words[1].value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("#SBATCH --nodes=4", [("--nodes", "4")]),
        ("#SBATCH --nodes 4", [("--nodes", "4")]),
        ("#SBATCH -N 4", [("-N", "4")]),
        ("#SBATCH -N4", [("-N", "4")]),
        ("#SBATCH -N 4 -n 8   # why", [("-N", "4"), ("-n", "8")]),
        ('#SBATCH --job-name="my job"', [("--job-name", "my job")]),
        ("#SBATCH --comment 'a b' -N 2", [("--comment", "a b"), ("-N", "2")]),
        ("#SBATCH --exclusive", [("--exclusive", None)]),
        ("#SBATCH --exclusive --nodes=2", [("--exclusive", None), ("--nodes", "2")]),
        ("#SBATCH --gres=gpu:a100:8", [("--gres", "gpu:a100:8")]),
        ("#SBATCH\t--time=1:00:00", [("--time", "1:00:00")]),
        ("##SBATCH --nodes=4", []),
        ("# SBATCH --nodes=4", []),
        ("#SBATCHX --nodes=4", []),
        ("#SBATCH", []),
    ],
)
def test_directives(line: str, expected: list[tuple[str, str | None]]) -> None:
    assert [(d.option, d.value) for d in script(f"#!/bin/bash\n\n{line}\ncmd").directives] == expected


def test_directives_end_at_the_first_command() -> None:
    found = script("#!/bin/bash\n# words\n\n#SBATCH -N 1\necho\n#SBATCH -N 2\n").directives
    assert [d.value for d in found] == ["1"]
    assert (found[0].span.line, found[0].span.column, found[0].span.end_column) == (4, 9, 13)
    assert found[0].spelling == "-N 1"


@pytest.mark.parametrize(
    ("header", "name", "expected"),
    [
        ("--nodes=4", "SLURM_NNODES", "4"),
        ("-N 4", "SLURM_JOB_NUM_NODES", "4"),
        ("-N 4\n--nodes=2", "SLURM_NNODES", "2"),
        ("--nodes=2-2", "SLURM_NNODES", "2"),
        ("--nodes=4\n--ntasks-per-node=8", "SLURM_NTASKS", "32"),
        ("--nodes=4\n--ntasks=4", "SLURM_NTASKS", "4"),
        ("--ntasks-per-node=8", "SLURM_NTASKS_PER_NODE", "8"),
        ("-c 12", "SLURM_CPUS_PER_TASK", "12"),
        ("--gres=gpu:8", "SLURM_GPUS_ON_NODE", "8"),
        ("--gres=gpu:a100:4,nvme:1", "SLURM_GPUS_ON_NODE", "4"),
        ("--gpus-per-node=a100:4", "SLURM_GPUS_ON_NODE", "4"),
        ("--gpus-per-node=4", "SLURM_GPUS_PER_NODE", "4"),
        ("--gpus-per-task=2\n--ntasks-per-node=4", "SLURM_GPUS_ON_NODE", "8"),
        ("-J train", "SLURM_JOB_NAME", "train"),
        ("-N 1", "SLURM_JOB_NAME", "job.sbatch"),
    ],
)
def test_variables_follow_from_the_header(header: str, name: str, expected: str) -> None:
    assert variable(header, name) == Known(expected)


def test_variables_without_their_option() -> None:
    found = variable("--nodes=4", "SLURM_NTASKS_PER_NODE")
    assert isinstance(found, Unresolved)
    assert "--ntasks-per-node" in found.why
    assert isinstance(variable("--gres=gpu:8", "SLURM_GPUS_PER_NODE"), Unresolved)


def test_node_range_gives_alternatives() -> None:
    assert variable("--nodes=2-4", "SLURM_NNODES") == OneOf(("2", "3", "4"))
    assert isinstance(variable("--nodes=1-100", "SLURM_NNODES"), Unresolved)


def test_without_a_header_the_variables_come_from_outside() -> None:
    value = script("cmd $SLURM_NNODES").commands[0].words[1].value
    assert value == Unresolved("$SLURM_NNODES, which the caller sets", ("SLURM_NNODES",))


def test_the_script_may_override_a_variable() -> None:
    found = script("#!/bin/bash\n#SBATCH -N 4\nSLURM_NNODES=2\ncmd $SLURM_NNODES").commands[0]
    assert found.words[1].value == Known("2")
