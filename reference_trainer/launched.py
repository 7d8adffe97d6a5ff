"""What a launcher told this process: which rank it is, of how many, and where they meet. Read from the environment."""

from __future__ import annotations

import re
import socket
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from preflight.node.record import dataclass


class Launcher(NamedTuple):
    """The variables by which one launcher numbers its processes, the first that is set counting.

    Args:
        needed: none but processes of this launcher have these; without any, `rank` and `size` decide.
        run: what is the same on all ranks of one run, and another in the next one.
        source: where it says so.
    """

    name: str
    rank: Tuple[str, ...]
    size: Tuple[str, ...]
    local_rank: Tuple[str, ...]
    run: Tuple[str, ...]
    source: str


#: In the order in which they are asked: what a program reads first wins, as in torch's own `env://`, and of nested
#: launchers the inner one sets these for its ranks.
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
#: Where nothing names a port; torch's own default (torch/distributed/run.py).
DEFAULT_PORT = 29500
_HOSTS = re.compile(r"([^,\[]+)(?:\[([^\]]*)\])?")


class NotLaunched(Exception):
    """The environment does not say which rank this is, or where the ranks meet; the message names what is missing."""


@dataclass(frozen=True)
class Place:
    """Which rank this process is. `agent_store`: the launcher serves the store itself, under `prefix` for this try."""

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
        """As `collective.rank` takes it."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            # A launcher may show each of its ranks one device only, so that there are fewer than ranks on a node.
            "local_world_size": 1,
            "master_addr": self.master_addr,
            "master_port": self.master_port,
            "run_id": self.run,
            "agent_store": self.agent_store,
            "store_prefix": self.prefix,
        }


def place(environment: Mapping[str, str]) -> Place:
    """What the launcher says of this process.

    Raises:
        NotLaunched: no launcher says it, it says something that is no number, or ranks of several nodes do not know
            where to meet.
    """
    for launcher in LAUNCHERS:
        rank, size = _first(launcher.rank, environment), _first(launcher.size, environment)
        if rank is None or size is None:
            continue
        number, count = _number(*rank), _number(*size)
        if not 0 <= number < count:
            raise NotLaunched("%s=%s is no rank of %s=%s" % (rank[0], rank[1], size[0], size[1]))
        local = _first(launcher.local_rank, environment)
        address, port = _master(launcher.name, count, environment)
        run = _first(launcher.run, environment)
        restarts = environment.get("TORCHELASTIC_RESTART_COUNT", "0") if launcher.name == "torch" else "0"
        return Place(
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
        return Place("accelerate", 0, 1, 0, address, port)
    known = ", ".join("%s and %s" % (launcher.rank[0], launcher.size[-1]) for launcher in LAUNCHERS)
    raise NotLaunched("no launcher says which rank this is; one of these pairs is expected: %s" % known)


def _first(names: Tuple[str, ...], environment: Mapping[str, str]) -> Optional[Tuple[str, str]]:
    return next(((name, environment[name]) for name in names if environment.get(name, "") != ""), None)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise NotLaunched("%s=%r is no number" % (name, text)) from None


def _master(launcher: str, count: int, environment: Mapping[str, str]) -> Tuple[str, int]:
    """Where the ranks meet: what MASTER_ADDR and MASTER_PORT say, else what training programs take instead."""
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if launcher == "paddle":
        # The first trainer's endpoint: nothing else listens there, as Paddle itself is not started.
        host, _, number = environment.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0].rpartition(":")
        address, port = host.strip("[]") or address, number or port
    if not address and (count == 1 or _one_node(launcher, count, environment)):
        return "127.0.0.1", _number("MASTER_PORT", port) if port else _free_port(count)
    if not address and launcher != "torch":
        # The first task of a step, and the first process of an mpirun within a job, is on the first of its nodes.
        own = environment.get("SLURM_STEP_NODELIST", "") if launcher == "srun" else ""
        address = _first_host(own or environment.get("SLURM_JOB_NODELIST", ""))
        port = port or _slurm_port(environment.get("SLURM_JOB_ID", ""))
    if not address:
        raise NotLaunched("MASTER_ADDR is not set, and %s does not say where its %d ranks meet" % (launcher, count))
    return address, _number("MASTER_PORT", port) if port else DEFAULT_PORT


def _free_port(count: int) -> int:
    """For a rank that is alone any port will do; several must agree on one."""
    if count > 1:
        return DEFAULT_PORT
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _one_node(launcher: str, count: int, environment: Mapping[str, str]) -> bool:
    """Whether all ranks are on this node, by what the launcher says."""
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
    """A port that differs from job to job, as Lightning and others derive it from the last digits of the id."""
    return str(15000 + int(job[-4:])) if job.isdigit() else ""
