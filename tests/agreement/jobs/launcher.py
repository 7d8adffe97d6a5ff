"""Describes a launcher for tests: where it runs, where it is installed, and how its ranks get their identity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.agreement.jobs.script import GeneratedJob, Ports


class Machines(Enum):
    """The machines that a job is started on."""

    HERE = "this machine"
    NODES = "the head of the virtual cluster"
    SLURM = "sbatch, on the head of the virtual cluster"


@dataclass(frozen=True)
class Launcher:
    """One launcher, in one release.

    Args:
        name: its name in the table.
        make: fills a job.
        rank, local_rank, world: variables with the identity of a rank; empty if there is none.
        where: the machines on which its jobs run.
        environment: the folder below `.venv` that it is installed in; empty for that of the tests.
        program: a program that must exist.
        version: a command that prints its release, with `{bin}` for the folder of programs.
    """

    name: str
    make: Callable[[Random, GeneratedJob, Ports], None]
    rank: str = "RANK"
    local_rank: str = "LOCAL_RANK"
    world: str = "WORLD_SIZE"
    where: Machines = Machines.HERE
    environment: str = ""
    program: str = "python"
    version: tuple[str, ...] = ()


def release_of(distribution: str) -> tuple[str, ...]:
    """The command that prints the release of an installed distribution."""
    return ("{bin}/python", "-c", f"import importlib.metadata as m; print(m.version({distribution!r}))")
