"""Jobs for real launchers, generated from a seed, in the many ways people write them: one module for each family."""

from __future__ import annotations

from random import Random

from tests.agreement.jobs import accelerate, deepspeed, horovod, mpi, paddle, python, ray, slurm, torch
from tests.agreement.jobs.script import GeneratedJob, Launcher, Ports

__all__ = ["LAUNCHERS", "generated_job"]

#: By name, in the order of the table of `python -m tests.agreement`.
LAUNCHERS: dict[str, Launcher] = {
    launcher.name: launcher
    for family in (torch, deepspeed, accelerate, mpi, slurm, horovod, paddle, python, ray)
    for launcher in family.LAUNCHERS
}


def generated_job(launcher: Launcher, seed: int, ports: Ports) -> GeneratedJob:
    """The job of this seed, which uses free ports."""
    job = GeneratedJob(launcher)
    launcher.make(Random(f"{launcher.name} {seed}"), job, ports)
    return job
