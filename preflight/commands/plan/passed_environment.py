"""Which variables of a launch its launcher passes to ranks on other hosts."""

from __future__ import annotations

from collections.abc import Sequence

from preflight.model.job import Job, Known, Launch
from preflight.model.job.hosts import host_slots

#: Prefixes of the variables that DeepSpeed exports over pdsh: EXPORT_ENVS of deepspeed/launcher/runner.py, and NCCL on
#: CUDA.
_DEEPSPEED = ("MLFLOW", "PYTHON", "MV2", "UCX", "NCCL")
_HERE = frozenset(("localhost", "127.0.0.1"))


def kept_variables(job: Job, launch: Launch, names: Sequence[str]) -> tuple[str, ...]:
    """The variables that the launcher does not pass to other machines; none if that is unknown."""
    if not set(host_slots(job, launch) or _hosts(job, launch)) - _HERE:
        return ()
    if launch.launcher == "deepspeed" and not job.value_claims("each_node_itself", launch.scope):
        claims = {name: job.value_claims(f"env.{name}", launch.scope) for name in names}
        return tuple(
            name
            for name in names
            if not name.startswith(_DEEPSPEED) and all(_is_exported_here(one.span.path) for one in claims[name])
        )
    if launch.launcher == "mpirun" and job.value("mpi_implementation", launch.scope) == Known("openmpi"):
        passed = job.value("passed_variables", launch.scope)
        if isinstance(passed, Known) and isinstance(passed.value, tuple):
            return tuple(name for name in names if name not in passed.value and not name.startswith("OMPI_"))
    return ()


def _is_exported_here(path: str) -> bool:
    """Whether it is set in the shell, and not in a file that DeepSpeed passes to all hosts."""
    return not path.endswith(".deepspeed_env")


def _hosts(job: Job, launch: Launch) -> tuple[str, ...]:
    value = job.value("hosts", launch.scope)
    return tuple(map(str, value.value)) if isinstance(value, Known) and isinstance(value.value, tuple) else ()
