"""Each launcher's variables give the rank of a process; missing variables are reported."""

from __future__ import annotations

import pytest

from reference_trainer.common.launcher_environment import LAUNCHERS, NotLaunched, place


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (
            {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "n1", "MASTER_PORT": "4000"},
            ("torch", 3, 8, 1, "n1", 4000),
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "4"}, ("torch", 0, 1, 0, "127.0.0.1", 4)),
        ({"ACCELERATE_MIXED_PRECISION": "no", "MASTER_PORT": "4"}, ("accelerate", 0, 1, 0, "127.0.0.1", 4)),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "SLURM_JOB_NODELIST": "n[1-2]",
                "SLURM_JOB_ID": "12",
            },
            ("mpirun (Open MPI)", 3, 4, 0, "n1", 15012),
        ),
        (
            # torchrun's variables override those of the srun that started it.
            {
                "SLURM_PROCID": "1",
                "SLURM_NTASKS": "2",
                "RANK": "9",
                "WORLD_SIZE": "16",
                "LOCAL_RANK": "1",
                "MASTER_ADDR": "n1",
                "MASTER_PORT": "1",
            },
            ("torch", 9, 16, 1, "n1", 1),
        ),
        (
            {
                "SLURM_PROCID": "5",
                "SLURM_NTASKS": "8",
                "SLURM_LOCALID": "1",
                "SLURM_STEP_NODELIST": "gpu[03-04,9],login",
                "SLURM_JOB_ID": "1234567",
            },
            ("srun", 5, 8, 1, "gpu03", 19567),
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_NODELIST": "a,b", "MASTER_PORT": "7"},
            ("srun", 0, 2, 0, "a", 7),
        ),
        (
            {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8", "MASTER_ADDR": "x"},
            ("srun", 0, 4, 0, "x", 29500),
        ),
        (
            {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            ("mpirun (Open MPI)", 1, 2, 0, "127.0.0.1", 29500),
        ),
        (
            {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MASTER_ADDR": "a"},
            ("mpiexec (PMI)", 1, 2, 1, "a", 29500),
        ),
        (
            {
                "PADDLE_TRAINER_ID": "1",
                "PADDLE_TRAINERS_NUM": "2",
                "PADDLE_RANK_IN_NODE": "1",
                "PADDLE_TRAINER_ENDPOINTS": "10.0.0.1:6170,10.0.0.1:6171",
            },
            ("paddle", 1, 2, 1, "10.0.0.1", 6170),
        ),
    ],
)
def test_rank_size_and_rendezvous(environment: dict[str, str], expected: tuple[str, int, int, int, str, int]) -> None:
    found = place(environment)
    shown = (found.launcher, found.rank, found.world_size, found.local_rank, found.master_addr, found.master_port)
    assert shown == expected


def test_torchrun_serves_the_store_for_each_attempt() -> None:
    own = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    assert not place(own).agent_store
    agent = {**own, "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "2"}
    assert place(agent).agent_store
    assert place(agent).prefix == "preflight/2"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "no launcher sets the rank of this process"),
        ({"RANK": "0"}, "no launcher sets the rank of this process"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 is not a rank of WORLD_SIZE=2"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "RANK='a' is not a number"),
        (
            {"RANK": "0", "WORLD_SIZE": "2"},
            "MASTER_ADDR is not set, and torch gives no rendezvous address for its 2 ranks",
        ),
        ({"RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": "x"}, "MASTER_PORT='x' is not a number"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4"}, "MASTER_ADDR is not set"),
    ],
)
def test_missing_variables_are_named(environment: dict[str, str], message: str) -> None:
    with pytest.raises(NotLaunched) as caught:
        place(environment)
    assert message in str(caught.value)


def test_every_launcher_names_its_source() -> None:
    assert all(launcher.source and launcher.rank and launcher.size for launcher in LAUNCHERS)
