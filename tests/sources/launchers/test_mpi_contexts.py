"""`mpirun -np 1 a : -np 2 b`: several programs of one world."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from preflight.model.job import Known, Unresolved
from tests.sources.launchers.reading_lines import only, read, values

LINE = "mpirun -np 1 -x A=1 -x B=2 {program} : -np 2 -x A=2 -x B=2 {program}\n"


def test_the_processes_of_all_programs_are_one_world() -> None:
    reading = read(LINE.format(program="python train.py"), train_dot_py="import horovod.torch\n")
    assert len(reading.launches) == 1
    assert values(reading)["tasks"] == 3
    assert isinstance(only(reading, "env.A").value, Unresolved)
    assert only(reading, "env.B").value == Known("2")
    assert reading.notes == ()


def test_a_program_without_a_count_leaves_the_world_open() -> None:
    reading = read("mpirun -np 1 python a.py : -H x,y python a.py\n", a_dot_py="import mpi4py\n")
    assert isinstance(only(reading, "tasks").value, Unresolved)


def test_other_programs_are_named() -> None:
    reading = read("mpirun -np 1 python a.py : -np 2 python b.py\n", a_dot_py="import mpi4py\n")
    assert values(reading)["tasks"] == 3
    assert "1 more program" in reading.notes[0].message


HETEROGENEOUS = "#!/bin/bash\n#SBATCH --nodes=1\n#SBATCH hetjob\n#SBATCH --nodes=2\n"


def test_the_components_of_a_heterogeneous_job_are_one_world() -> None:
    line = "srun --het-group=0 -n 2 python train.py : --het-group=1 -n 8 python train.py\n"
    reading = read(HETEROGENEOUS + line, train_dot_py="import torch\n")
    assert [launch.program for launch in reading.launches] == ["train.py"]
    assert values(reading)["tasks"] == 10
    assert not [note for note in reading.notes if "not read" in note.message]


@pytest.mark.parametrize(
    ("line", "programs"),
    [
        ("srun --het-group=0 -n 2 python a.py : --het-group=1 python a.py\n", 0),
        ("srun -n 2 python a.py : -n 8 python b.py\n", 1),
    ],
)
def test_components_without_a_count_and_with_other_programs(line: str, programs: int) -> None:
    reading = read(HETEROGENEOUS + line, a_dot_py="import torch\n", b_dot_py="import torch\n")
    assert isinstance(only(reading, "tasks").value, Unresolved) is (programs == 0)
    assert len([note for note in reading.notes if "of this srun not read" in note.message]) == programs


@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="Open MPI is not installed")
def test_open_mpi_makes_one_world_of_them() -> None:
    program = "sh -c 'echo $OMPI_COMM_WORLD_SIZE $A $B'"
    line = LINE.format(program=program).replace("mpirun", "mpirun.openmpi --allow-run-as-root --oversubscribe")
    found = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=True)
    assert sorted(found.stdout.split("\n")) == ["", "3 1 2", "3 2 2", "3 2 2"]
