"""How the job's launcher gets from the node where it is started to the others, and what it needs for that."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Known, Launch
from preflight.lazy.dataclasses import dataclass
from preflight_checks.demands import known_int

#: Batch systems whose own daemons start mpirun's ranks, and whose batch script runs on the first node.
_SCHEDULERS = ("slurm", "pbs", "lsf", "sge", "cobalt", "flux", "kubernetes")
_OVER_SSH = ("pdsh", "clush", "ssh", "pssh")
#: What DeepSpeed's launcher hands on by the beginnings of names: EXPORT_ENVS of deepspeed/launcher/runner.py (with NCCL
#: before 0.9) and what its CUDA accelerator adds (accelerator/cuda_accelerator.py, export_envs).
DEEPSPEED_EXPORTS = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "DLTS_")


@dataclass(frozen=True, slots=True)
class Way:
    """One launch that reaches its nodes from one of them.

    Args:
        launch: the launch.
        by: what it uses, for messages: `deepspeed (pdsh)`, `mpirun`.
        first: tools on the node where it is started; `a|b` is either of two.
        others: tools on every other node, in a shell without a terminal.
        logs_in: whether it logs in to the other nodes by ssh.
        ssh_options: words it gives to ssh, as far as they decide about a login.
        exports: beginnings of the names it hands on; None when it hands on everything.
    """

    launch: Launch
    by: str
    first: tuple[str, ...]
    others: tuple[str, ...] = ()
    logs_in: bool = True
    ssh_options: tuple[str, ...] = ()
    exports: tuple[str, ...] | None = ()


def in_batch(job: Job) -> bool:
    """Whether the start script is given to a batch system, which runs it on the first node."""
    return any(claim.source in _SCHEDULERS and not claim.scope.launch for claim in job.claims)


def ways(job: Job) -> Iterator[Way]:
    """Every launch of the job that starts ranks on other nodes than its own."""
    for launch in job.launches:
        way = _way(job, launch)
        if way is not None and (known_int(job, "nodes", launch.scope) or 2) > 1:
            yield way


def _way(job: Job, launch: Launch) -> Way | None:
    around = (launch.launcher, *launch.wrappers)
    over = next((name for name in around if name in _OVER_SSH), None)
    if over is not None:
        tools = (over,) if over in ("ssh", "pdsh", "clush") else ("pssh|parallel-ssh",)
        return Way(launch, over, tuple(dict.fromkeys((*tools, "ssh"))))
    if "srun" in around:
        return None
    if launch.launcher == "deepspeed":
        return _deepspeed(job, launch, _chosen(job, launch) or "pdsh")
    if launch.launcher == "accelerate":
        chosen = _chosen(job, launch)
        return _deepspeed(job, launch, chosen) if chosen and chosen != "standard" else None
    if "horovodrun" in around:
        return Way(
            launch,
            "horovodrun",
            ("horovodrun", "ssh"),
            # horovod/runner/util/remote.py; the null file keeps the user's own from being written.
            ssh_options=("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            exports=None,
        )
    if "mpirun" in around and not in_batch(job):
        open_mpi = job.value("mpi_implementation", launch.scope) == Known("openmpi")
        if open_mpi:
            return Way(launch, "mpirun", ("mpirun", "ssh"), ("orted|prted",), exports=("OMPI_", *_passed(job, launch)))
        return Way(launch, "mpirun", ("mpirun|mpiexec", "ssh"), exports=None)
    return None


def _deepspeed(job: Job, launch: Launch, by: str) -> Way | None:
    if job.value("each_node_itself", launch.scope) == Known(True) or by == "slurm":
        return None
    if by == "pdsh":
        return Way(launch, "deepspeed (pdsh)", ("pdsh", "ssh"), exports=DEEPSPEED_EXPORTS)
    if by == "openmpi":
        return Way(launch, "deepspeed (mpirun)", ("mpirun", "ssh"), ("orted|prted",), exports=DEEPSPEED_EXPORTS)
    return Way(launch, f"deepspeed ({by})", ("mpirun|mpiexec", "ssh"), exports=None)


def _chosen(job: Job, launch: Launch) -> str:
    """What the job says DeepSpeed's launcher is to use; empty when nothing does."""
    said = job.value("multinode_launcher", launch.scope)
    return str(said.value).lower() if isinstance(said, Known) else ""


def _passed(job: Job, launch: Launch) -> tuple[str, ...]:
    return tuple(
        str(name)
        for claim in job.setting("passed_variables", launch.scope)
        for value in claim.alternatives
        if isinstance(value, tuple)
        for name in value
    )


def claims_of(job: Job, way: Way) -> tuple[Claim, ...]:
    """What says that the launch has several nodes."""
    scope = way.launch.scope
    return tuple(dict.fromkeys((*job.setting("hosts", scope), *job.setting("nodes", scope))))
