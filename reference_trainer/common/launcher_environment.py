"""The rank, world size and rendezvous of this process, from the launcher's environment variables."""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from reference_trainer.common import horovod_rendezvous


class Launcher(NamedTuple):
    """The variables by which one launcher numbers its processes; the first that is set counts.

    Args:
        needed: variables that only this launcher sets; if there are none, `rank` and `size` decide.
        run: variables that are the same on all ranks of one run, and different in the next one.
        source: the documentation.
    """

    name: str
    rank: Tuple[str, ...]
    size: Tuple[str, ...]
    local_rank: Tuple[str, ...]
    run: Tuple[str, ...]
    source: str


#: In order of precedence, as in torch's own `env://`; of nested launchers the inner one sets these for its ranks.
LAUNCHERS = (
    Launcher(
        "torch",  # torchrun, accelerate, deepspeed, composer, fabric, a script's own exports
        ("RANK",),
        ("WORLD_SIZE",),
        ("LOCAL_RANK",),
        ("TORCHELASTIC_RUN_ID",),
        "PyTorch documentation, torchrun (Elastic Launch), Environment Variables; deepspeed/launcher/launch.py",
    ),
    Launcher(
        "paddle",
        ("PADDLE_TRAINER_ID",),
        ("PADDLE_TRAINERS_NUM",),
        ("PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK"),
        ("PADDLE_JOB_ID",),
        "paddle/distributed/launch/controllers/collective.py, PaddlePaddle 3.0",
    ),
    Launcher(
        "horovodrun",
        ("HOROVOD_RANK",),
        ("HOROVOD_SIZE",),
        ("HOROVOD_LOCAL_RANK",),
        (),
        "horovod/runner/gloo_run.py, Horovod 0.28",
    ),
    Launcher(
        "mpirun (Open MPI)",
        ("OMPI_COMM_WORLD_RANK",),
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_LOCAL_RANK",),
        ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
        "Open MPI 5.0 documentation, Environment variables set for MPI applications",
    ),
    Launcher(
        "mpirun_rsh (MVAPICH)",
        ("MV2_COMM_WORLD_RANK",),
        ("MV2_COMM_WORLD_SIZE",),
        ("MV2_COMM_WORLD_LOCAL_RANK",),
        (),
        "MVAPICH2 user guide, MPIRUN_RSH parameters",
    ),
    Launcher(
        "srun",
        ("SLURM_PROCID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_LOCALID",),
        ("SLURM_JOB_ID",),
        "srun(1), OUTPUT ENVIRONMENT VARIABLES, Slurm 23.11",
    ),
    Launcher(
        "mpiexec (PMI)",
        ("PMI_RANK",),
        ("PMI_SIZE",),
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("PMI_ID",),
        "MPICH 4 and Intel MPI, mpiexec.hydra",
    ),
)

#: `accelerate launch` gives a single process this and no rank (accelerate/utils/launch.py, accelerate 1.15).
_ACCELERATE = "ACCELERATE_MIXED_PRECISION"
#: The default port; torch's own default (torch/distributed/run.py).
DEFAULT_PORT = 29500
_HOSTS = re.compile(r"([^,\[]+)(?:\[([^\]]*)\])?")


class NotLaunched(Exception):
    """The environment lacks the rank or the rendezvous of this process; the message names what is missing."""


@dataclass(frozen=True)
class LaunchedRank:
    """The rank of this process. `agent_store`: the launcher serves the store, under `prefix` for this attempt."""

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    master_addr: str
    master_port: int
    run: str = ""
    agent_store: bool = False
    prefix: str = "preflight"

    def params(self) -> Dict[str, Any]:
        """The parameters of `rank.rank`."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            # A launcher may show each of its ranks only one device, so that there are fewer than ranks on a node.
            "local_world_size": 1,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "run_id": self.run,
            "agent_store": self.agent_store,
            "store_prefix": self.prefix,
        }


def place(environment: Mapping[str, str]) -> LaunchedRank:
    """The rank of this process according to the launcher.

    Raises:
        NotLaunched: no launcher sets it, a variable is not a number, or ranks of several nodes have no rendezvous.
    """
    for launcher in LAUNCHERS:
        rank, size = _first(launcher.rank, environment), _first(launcher.size, environment)
        if rank is None or size is None:
            continue
        number, count = _number(*rank), _number(*size)
        if not 0 <= number < count:
            raise NotLaunched("%s=%s is not a rank of %s=%s" % (rank[0], rank[1], size[0], size[1]))
        local = _first(launcher.local_rank, environment)
        address, port = _master(launcher.name, count, environment, number)
        run = _first(launcher.run, environment)
        restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0") if launcher.name == "torch" else "0"
        return LaunchedRank(
            launcher.name,
            number,
            count,
            _number(*local) if local is not None else 0,
            address,
            port,
            run[1] if run is not None else "",
            launcher.name == "torch" and environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            "preflight/%s" % restarts,
        )
    if environment.get(_ACCELERATE):
        address, port = _master("accelerate", 1, environment)
        return LaunchedRank("accelerate", 0, 1, 0, address, port)
    known = ", ".join("%s and %s" % (launcher.rank[0], launcher.size[-1]) for launcher in LAUNCHERS)
    raise NotLaunched("no launcher sets the rank of this process; expected one of these pairs of variables: %s" % known)


def _first(names: Tuple[str, ...], environment: Mapping[str, str]) -> Optional[Tuple[str, str]]:
    return next(((name, environment[name]) for name in names if environment.get(name, "") != ""), None)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise NotLaunched("%s=%r is not a number" % (name, text)) from None


def _master(launcher: str, count: int, environment: Mapping[str, str], rank: int = 0) -> Tuple[str, int]:
    """The rendezvous: MASTER_ADDR and MASTER_PORT, otherwise the usual fallback of training programs."""
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if launcher == "paddle":
        # The first trainer's endpoint: nothing else listens there, because Paddle itself is not started.
        host, _, number = environment.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0].rpartition(":")
        address, port = host.strip("[]") or address, number or port
    if not address and (count == 1 or _one_node(launcher, count, environment)):
        return "127.0.0.1", _number("MASTER_PORT", port) if port else _free_port(count)
    if not address and launcher == "horovodrun" and horovod_rendezvous.is_served(environment):
        try:
            return horovod_rendezvous.master(environment, rank)
        except horovod_rendezvous.NoMaster as problem:
            raise NotLaunched(str(problem)) from None
    if not address and launcher != "torch":
        # The first task of a step, and the first process of an mpirun within a job, is on the first of its nodes.
        own = environment.get("SLURM_STEP_NODELIST", "") if launcher == "srun" else ""
        address = _first_host(own or environment.get("SLURM_JOB_NODELIST", ""))
        port = port or _slurm_port(environment.get("SLURM_JOB_ID", ""))
    if not address:
        raise NotLaunched(
            "MASTER_ADDR is not set, and %s gives no rendezvous address for its %d ranks; export MASTER_ADDR"
            % (launcher, count)
        )
    return address, _number("MASTER_PORT", port) if port else DEFAULT_PORT


def _free_port(count: int) -> int:
    """A free port for a single rank; several ranks must agree on one."""
    if count > 1:
        return DEFAULT_PORT
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _one_node(launcher: str, count: int, environment: Mapping[str, str]) -> bool:
    """Whether all ranks are on this node, according to the launcher."""
    names = {
        "mpirun (Open MPI)": "OMPI_COMM_WORLD_LOCAL_SIZE",
        "mpirun_rsh (MVAPICH)": "MV2_COMM_WORLD_LOCAL_SIZE",
        "horovodrun": "HOROVOD_LOCAL_SIZE",
        "mpiexec (PMI)": "MPI_LOCALNRANKS",
    }
    return environment.get(names.get(launcher, ""), "") == str(count)


def _first_host(nodes: str) -> str:
    """The first of Slurm's `node[03-07,9],other`."""
    found = _HOSTS.match(nodes)
    if found is None:
        return ""
    return found.group(1) + re.split("[-,]", found.group(2) or "")[0]


def _slurm_port(job: str) -> str:
    """A port that differs from job to job, derived from the last digits of the id as in Lightning and others."""
    return str(15000 + int(job[-4:])) if job.isdecimal() else ""
