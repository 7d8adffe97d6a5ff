"""Executors: each opens a two-way channel to an agent on each node of a job."""

from __future__ import annotations

#: The built-in executors, imported by name when needed. If preflight runs inside several at once (a Slurm job that is a
#: Kubernetes pod), the first that detects it is used.
PACK = (
    "preflight.executors.pipe:EXECUTOR",
    "preflight.executors.slurm:EXECUTOR",
    "preflight.executors.mpi:EXECUTOR",
    "preflight.executors.ssh:EXECUTOR",
    "preflight.executors.kubernetes:EXECUTOR",
    "preflight.executors.ray:EXECUTOR",
    "preflight.executors.replay:EXECUTOR",
)
