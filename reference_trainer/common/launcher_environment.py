"""The rank, world size and rendezvous of this process, from the launcher's variables or for ranks started here.

horovodrun serves a store of keys over HTTP for its own workers (horovod/runner/http/http_server.py, Horovod 0.28): PUT
and GET of /SCOPE/KEY. Rank 0 stores its address there, and the others read it.
"""

from __future__ import annotations

import http.client
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any, Mapping, NamedTuple

from preflight.agent import process


class Launcher(NamedTuple):
    """The variables by which a launcher numbers its processes; of several variables, the first that is set counts.

    Args:
        needed: variables that only this launcher sets; if there are none, `rank` and `size` decide.
        run: variables that are the same on all ranks of one run, and different in the next run.
        source: the documentation.
    """

    name: str
    rank: tuple[str, ...]
    size: tuple[str, ...]
    local_rank: tuple[str, ...]
    run: tuple[str, ...]
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

#: `accelerate launch` sets this for a single process, and no rank (accelerate/utils/launch.py, accelerate 1.15).
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

    def params(self) -> dict[str, Any]:
        """Return the parameters of `rank.rank`."""
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


def launched_rank(environment: Mapping[str, str]) -> LaunchedRank:
    """Return the rank of this process according to the launcher. Raises NotLaunched."""
    for launcher in LAUNCHERS:
        rank, size = _first(launcher.rank, environment), _first(launcher.size, environment)
        if rank is None or size is None:
            continue
        number, count = _number(*rank), _number(*size)
        if not 0 <= number < count:
            raise NotLaunched(f"{rank[0]}={rank[1]} is not a rank of {size[0]}={size[1]}")
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
            f"preflight/{restarts}",
        )
    if environment.get(_ACCELERATE):
        address, port = _master("accelerate", 1, environment)
        return LaunchedRank("accelerate", 0, 1, 0, address, port)
    known = ", ".join(f"{launcher.rank[0]} and {launcher.size[-1]}" for launcher in LAUNCHERS)
    raise NotLaunched(f"no launcher sets the rank of this process; expected one of these pairs of variables: {known}")


def _first(names: tuple[str, ...], environment: Mapping[str, str]) -> tuple[str, str] | None:
    return next(((name, environment[name]) for name in names if environment.get(name, "") != ""), None)


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise NotLaunched(f"{name}={text!r} is not a number") from None


def _master(launcher: str, count: int, environment: Mapping[str, str], rank: int = 0) -> tuple[str, int]:
    """Return the rendezvous: MASTER_ADDR and MASTER_PORT, otherwise the usual fallback of training programs."""
    address, port = environment.get("MASTER_ADDR", ""), environment.get("MASTER_PORT", "")
    if launcher == "paddle":
        # The first trainer's endpoint: nothing else listens there, because Paddle itself is not started.
        host, _, number = environment.get("PADDLE_TRAINER_ENDPOINTS", "").partition(",")[0].rpartition(":")
        address, port = host.strip("[]") or address, number or port
    if not address and (count == 1 or _one_node(launcher, count, environment)):
        return "127.0.0.1", _number("MASTER_PORT", port) if port else _free_port(count)
    if not address and launcher == "horovodrun" and is_served(environment):
        try:
            return master(environment, rank)
        except NoMaster as problem:
            raise NotLaunched(str(problem)) from None
    if not address and launcher != "torch":
        # The first task of a step, and the first process of an mpirun within a job, is on the first of its nodes.
        own = environment.get("SLURM_STEP_NODELIST", "") if launcher == "srun" else ""
        address = _first_host(own or environment.get("SLURM_JOB_NODELIST", ""))
        port = port or _slurm_port(environment.get("SLURM_JOB_ID", ""))
    if not address:
        raise NotLaunched(
            f"MASTER_ADDR is not set, and {launcher} does not set a rendezvous address for its {count} ranks;"
            " export MASTER_ADDR"
        )
    return address, _number("MASTER_PORT", port) if port else DEFAULT_PORT


def _free_port(count: int) -> int:
    """Return a free port for a single rank; several ranks must agree on one."""
    if count > 1:
        return DEFAULT_PORT
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _one_node(launcher: str, count: int, environment: Mapping[str, str]) -> bool:
    """Return whether the launcher started all ranks on this node."""
    names = {
        "mpirun (Open MPI)": "OMPI_COMM_WORLD_LOCAL_SIZE",
        "mpirun_rsh (MVAPICH)": "MV2_COMM_WORLD_LOCAL_SIZE",
        "horovodrun": "HOROVOD_LOCAL_SIZE",
        "mpiexec (PMI)": "MPI_LOCALNRANKS",
    }
    return environment.get(names.get(launcher, ""), "") == str(count)


def _first_host(nodes: str) -> str:
    """Return the first of Slurm's `node[03-07,9],other`."""
    found = _HOSTS.match(nodes)
    if found is None:
        return ""
    return found.group(1) + re.split("[-,]", found.group(2) or "")[0]


def _slurm_port(job: str) -> str:
    """Return a port that differs between jobs, from the last digits of the job's id, as in Lightning."""
    return str(15000 + int(job[-4:])) if job.isdecimal() else ""


_ADDRESS, _PORT = "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_GLOO_RENDEZVOUS_PORT"
_KEY = "/preflight/master"
#: Ranks start at different times; rank 0 announces its address before it imports anything large.
WAIT_S = 60.0
_ANSWER_S = 5.0


class NoMaster(Exception):
    """The ranks cannot learn the address of rank 0; the message gives the reason."""


def is_served(environment: Mapping[str, str]) -> bool:
    """Return whether horovodrun serves a store for this process."""
    return bool(environment.get(_ADDRESS)) and environment.get(_PORT, "").isdecimal()


def master(environment: Mapping[str, str], rank: int, wait_s: float = WAIT_S) -> tuple[str, int]:
    """Return address and port of rank 0, which chooses them and stores them for the others. Raises NoMaster."""
    host, port = environment[_ADDRESS], int(environment[_PORT])
    if rank == 0:
        own = _own_address(host, port), _free_rendezvous_port()
        _request(host, port, "PUT", ("%s %d" % own).encode())
        return own
    ends = time.monotonic() + wait_s
    while True:
        answer = _request(host, port, "GET")
        if answer is not None:
            address, _, number = answer.decode("ascii", "replace").partition(" ")
            if not number.isdecimal():
                raise NoMaster(f"horovodrun's store at {host}:{port} has {answer[:80]!r} instead of an address")
            return address, int(number)
        if time.monotonic() >= ends:
            raise NoMaster(f"rank 0 stored no address in horovodrun's store at {host}:{port} within {wait_s:g} s")
        time.sleep(0.2)


def _request(host: str, port: int, method: str, body: bytes | None = None) -> bytes | None:
    connection = http.client.HTTPConnection(host, port, timeout=_ANSWER_S)
    try:
        connection.request(method, _KEY, body)
        answer = connection.getresponse()
        data = answer.read(4096)
    except (OSError, http.client.HTTPException) as error:
        raise NoMaster(f"horovodrun's store at {host}:{port} does not respond: {error}") from None
    finally:
        connection.close()
    return data if answer.status == 200 else None


def _own_address(host: str, port: int) -> str:
    """Return the address that this node uses to reach the store; the other nodes can reach it too."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, port))
        return str(probe.getsockname()[0])


def _free_rendezvous_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


#: The variable of a spawned rank, which spawns none itself.
MARK = "PREFLIGHT_SPAWNED"
#: Grace period after the deadline of all ranks, at which each rank ends itself.
_GRACE_S = 15.0
#: Instead of a number: one rank per GPU.
PER_GPU = "gpus"


class NoRanks(Exception):
    """No rank can be started; the message gives the reason."""


def run(number: int | str, arguments: list[str], deadline_s: float) -> int:
    """Start this program once for each rank here and wait for all; return 0 if all exit with 0, otherwise 1.

    `number` may be `gpus`. Raises NoRanks if torch then finds no GPU, and if ranks outlive `deadline_s`, after killing
    them.
    """
    count = _gpus() if number == PER_GPU else int(number)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    own = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count), MARK: "1"}
    ranks: list[Any] = []

    def end(number_: int, frame: Any) -> None:
        for rank in ranks:
            rank.send_signal(number_)

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, end)
    for rank in range(count):
        environment = {**own, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        command = [sys.executable, *arguments]
        ranks.append(subprocess.Popen(command, env=environment, preexec_fn=process.die_with_parent))
    ends = time.monotonic() + deadline_s + _GRACE_S
    late: list[str] = []
    for place, rank in enumerate(ranks):
        try:
            rank.wait(max(0.0, ends - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            late.append(str(place))
    if late:
        raise NoRanks("rank {} did not end on its own at its deadline of {:g} s".format(", ".join(late), deadline_s))
    return 1 if any(rank.returncode for rank in ranks) else 0


def _gpus() -> int:
    try:
        import torch
    except ImportError as error:
        raise NoRanks(f"the program starts one rank per GPU, but torch cannot be imported: {error}") from None
    count = int(torch.cuda.device_count())
    if not count:
        raise NoRanks(f"the program starts one rank per GPU, but torch {torch.__version__} finds none")
    return count
