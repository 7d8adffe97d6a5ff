"""How the job's launcher reaches the other nodes from its own, and the tools it needs for that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from preflight.model.job import Claim, Job, Known, Launch
from preflight_checks.requirements.claims import known_int

#: Batch systems whose own daemons start mpirun's ranks, and whose batch script runs on the first node.
_SCHEDULERS = ("slurm", "pbs", "lsf", "sge", "cobalt", "flux", "kubernetes")
_OVER_SSH = ("pdsh", "clush", "ssh", "pssh")
#: Prefixes of the variables that DeepSpeed's launcher forwards: EXPORT_ENVS of deepspeed/launcher/runner.py (with NCCL
#: before 0.9) and what its CUDA accelerator adds (accelerator/cuda_accelerator.py, export_envs).
DEEPSPEED_EXPORTS = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "DLTS_")


@dataclass(frozen=True, slots=True)
class RemoteLaunch:
    """A launch that starts ranks on all nodes from one of them.

    Args:
        launch: the launch.
        by: the programs it uses, for messages: `deepspeed (pdsh)`, `mpirun`.
        first: tools needed on the node where it starts; `a|b` means either.
        others: tools needed on every other node, in a shell without a terminal.
        logs_in: whether it logs in to the other nodes by ssh.
        ssh_options: the arguments it passes to ssh that affect the login.
        exports: prefixes of the variables it forwards; None if it forwards all.
    """

    launch: Launch
    by: str
    first: tuple[str, ...]
    others: tuple[str, ...] = ()
    logs_in: bool = True
    ssh_options: tuple[str, ...] = ()
    exports: tuple[str, ...] | None = ()


def in_batch(job: Job) -> bool:
    """Whether a batch system runs the start script, on the first node."""
    return any(claim.source in _SCHEDULERS and not claim.scope.launch for claim in job.claims)


def remote_launches(job: Job) -> Iterator[RemoteLaunch]:
    """Every launch of the job that starts ranks on other nodes."""
    for launch in job.launches:
        found_launch = _remote_launch(job, launch)
        if found_launch is not None and (known_int(job, "nodes", launch.scope) or 2) > 1:
            yield found_launch


def _remote_launch(job: Job, launch: Launch) -> RemoteLaunch | None:
    around = (launch.launcher, *launch.wrappers)
    over = next((name for name in around if name in _OVER_SSH), None)
    if over is not None:
        tools = (over,) if over in ("ssh", "pdsh", "clush") else ("pssh|parallel-ssh",)
        return RemoteLaunch(launch, over, tuple(dict.fromkeys((*tools, "ssh"))))
    if "srun" in around:
        return None
    if launch.launcher == "deepspeed":
        return _deepspeed(job, launch, _selected_launcher(job, launch) or "pdsh")
    if launch.launcher == "accelerate":
        chosen = _selected_launcher(job, launch)
        return _deepspeed(job, launch, chosen) if chosen and chosen != "standard" else None
    if "horovodrun" in around:
        return RemoteLaunch(
            launch,
            "horovodrun",
            ("horovodrun", "ssh"),
            # horovod/runner/util/remote.py; the null file keeps ssh from writing the user's known_hosts.
            ssh_options=("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"),
            exports=None,
        )
    if "mpirun" in around and not in_batch(job):
        open_mpi = job.value("mpi_implementation", launch.scope) == Known("openmpi")
        if open_mpi:
            return RemoteLaunch(
                launch,
                "mpirun",
                ("mpirun", "ssh"),
                ("orted|prted",),
                exports=("OMPI_", *_passed_variables(job, launch)),
            )
        return RemoteLaunch(launch, "mpirun", ("mpirun|mpiexec", "ssh"), exports=None)
    return None


def _deepspeed(job: Job, launch: Launch, by: str) -> RemoteLaunch | None:
    if job.value("each_node_itself", launch.scope) == Known(True) or by == "slurm":
        return None
    if by == "pdsh":
        return RemoteLaunch(launch, "deepspeed (pdsh)", ("pdsh", "ssh"), exports=DEEPSPEED_EXPORTS)
    if by == "openmpi":
        return RemoteLaunch(
            launch, "deepspeed (mpirun)", ("mpirun", "ssh"), ("orted|prted",), exports=DEEPSPEED_EXPORTS
        )
    return RemoteLaunch(launch, f"deepspeed ({by})", ("mpirun|mpiexec", "ssh"), exports=None)


def _selected_launcher(job: Job, launch: Launch) -> str:
    """The launcher that the job chooses for DeepSpeed; empty if it chooses none."""
    stated = job.value("multinode_launcher", launch.scope)
    return str(stated.value).lower() if isinstance(stated, Known) else ""


def _passed_variables(job: Job, launch: Launch) -> tuple[str, ...]:
    return tuple(
        str(name)
        for claim in job.setting("passed_variables", launch.scope)
        for value in claim.alternatives
        if isinstance(value, tuple)
        for name in value
    )


def claims_of(job: Job, found_launch: RemoteLaunch) -> tuple[Claim, ...]:
    """The claims that the launch has several nodes."""
    scope = found_launch.launch.scope
    return tuple(dict.fromkeys((*job.setting("hosts", scope), *job.setting("nodes", scope))))
