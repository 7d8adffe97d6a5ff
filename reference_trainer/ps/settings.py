"""What a process of a parameter-server run was told, read once: counts, places, mode, limits, and who is who."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

from preflight.node.record import dataclass, field
from preflight.node.wire import ProbeUnavailable
from reference_trainer import oracle
from reference_trainer.ps import clocks, tasks
from reference_trainer.ps.plan import Plan, from_params

#: Phases of a run as servers and workers count them; a barrier leads from each to the next.
JOINING, EXACT, EXACT_READ, TRAINING, READ, OVER = range(6)
STEPS = 10
GEO_STEPS = 5
STALENESS = 3
#: No answer is waited for less than this; more only where steps take longer than a fifth of it.
LEAST_LIMIT_S = 10.0
#: Of NVIDIA's resiliency extension: so many times what was seen so far.
LIMIT_FACTOR = 5.0
#: After holding others up for so long a worker is replaced by a spare one.
LAG_S = 5.0
#: Rows of a table that one worker may touch on one server in one step.
MOST_IDS = 65536


@dataclass(frozen=True)
class Settings:
    """One process's view. `numbers` name the processes for supervision: servers and workers by index."""

    rank: int
    role: str
    index: int
    servers: int
    workers: int
    endpoints: Tuple[str, ...]
    endpoint: str
    mode: str
    staleness: int
    geo_steps: int
    steps: int
    timeout_s: float
    least_limit_s: float
    lag_s: float
    spares: int
    spare: bool
    until: str
    run_id: str
    listen_host: str
    device: str
    secret: bytes
    plan: Plan
    task: Any
    server_numbers: Tuple[int, ...]
    worker_numbers: Tuple[int, ...]
    spare_numbers: Tuple[int, ...] = ()
    drill: Dict[str, Any] = field(default_factory=dict)

    @property
    def exact_steps(self) -> int:
        """Steps of the exact phase."""
        return min(self.steps, oracle.MOST_EXACT_STEPS)

    def rounds(self, steps: int) -> int:
        """Pushes of one worker for so many steps."""
        return -(-steps // self.geo_steps) if self.mode == clocks.GEO else steps

    @property
    def steps_a_push(self) -> Tuple[int, ...]:
        """How many steps one push stands for: `geo_steps`, and what remains for the last one."""
        if self.mode != clocks.GEO:
            return (1,)
        return tuple(size for size in (self.geo_steps, self.exact_steps % self.geo_steps, 1) if size)

    @property
    def only_exact(self) -> bool:
        """The run ends after the exact phase."""
        return self.until == "exact"

    def capacity(self, server: int, table: int) -> int:
        """Rows of a table that may be spoken of at once with one server."""
        return min(MOST_IDS, self.plan.rows_of(server, self.plan.tables[table]))

    def says(self) -> Dict[str, Any]:
        """What every process of this run must have been told alike."""
        return {
            "servers": self.servers,
            "workers": self.workers,
            "server_endpoints": list(self.endpoints),
            "mode": self.mode,
            "staleness": self.staleness if self.mode == clocks.SSP else 0,
            "geo_steps": self.geo_steps if self.mode == clocks.GEO else 0,
            "steps": self.steps,
            "until": self.until,
            "policy": self.plan.policy,
            "plan": self.plan.digest(),
        }


def read(params: Dict[str, Any], role: str) -> Settings:
    """The settings in `params`. Raises ProbeUnavailable of kind `denied` for what cannot be."""
    try:
        return _read(params, role)
    except (TypeError, ValueError, KeyError) as error:
        what = "%s is missing" % error if isinstance(error, KeyError) else str(error)
        raise ProbeUnavailable("denied", "the %s was told something that cannot be: %s" % (role, what)) from error


def _read(params: Dict[str, Any], role: str) -> Settings:
    servers, workers = int(params["servers"]), int(params["workers"])
    if servers < 1 or workers < 1:
        raise ValueError("%d servers and %d workers" % (servers, workers))
    mode = str(params.get("mode") or clocks.SYNC)
    if mode not in clocks.MODES:
        raise ValueError("there is no mode %r; there are %s" % (mode, ", ".join(clocks.MODES)))
    task = _task(params)
    numbers = params.get("numbers") or {}
    spares = int(params.get("spares") or (1 if params.get("backup") else 0))
    secret = bytes.fromhex(str(params["secret"]))
    if len(secret) < 16:
        raise ValueError("the secret of the run has less than 16 bytes")
    return Settings(
        rank=int(params["rank"]),
        role=str(params.get("role", role)),
        index=int(params["index"]),
        servers=servers,
        workers=workers,
        endpoints=tuple(str(endpoint) for endpoint in params["server_endpoints"]),
        endpoint=str(params.get("endpoint") or ""),
        mode=mode,
        staleness=int(params.get("staleness", STALENESS)),
        geo_steps=max(1, int(params.get("geo_steps") or GEO_STEPS)),
        steps=int(params.get("steps", STEPS)),
        timeout_s=float(params.get("timeout_s", 60.0)),
        least_limit_s=float(params.get("least_limit_s") or LEAST_LIMIT_S),
        lag_s=float(params.get("lag_s") or LAG_S),
        spares=spares if mode != clocks.SYNC else 0,
        spare=bool(params.get("spare")),
        until=str(params.get("until") or ""),
        run_id=str(params.get("run_id", "")),
        listen_host=str(params.get("listen_host") or ""),
        device=str(params.get(role + "_device") or "cpu"),
        secret=secret,
        plan=from_params(params, task.dense, task.tables),
        task=task,
        server_numbers=_numbers(numbers.get("server"), 0, servers),
        worker_numbers=_numbers(numbers.get("worker"), servers, workers),
        spare_numbers=_numbers(numbers.get("spare"), servers + workers, spares),
        drill=dict(params.get("drill") or {}),
    )


def plan_of(params: Dict[str, Any]) -> Plan:
    """Who holds what by what was told. Raises ValueError, TypeError or KeyError where that cannot be."""
    task = _task(params)
    return from_params(params, task.dense, task.tables)


def _task(params: Dict[str, Any]) -> Any:
    return tasks.from_params(params.get("model"))


def _numbers(given: Any, first: int, count: int) -> Tuple[int, ...]:
    if given:
        return tuple(int(number) for number in given)
    return tuple(range(first, first + count))


def split(endpoint: str) -> Tuple[str, int]:
    """Host and port of `host:port`. Raises ValueError."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("%r is no endpoint: host:port is needed" % endpoint)
    return host.strip("[]"), int(port)


class Patience:
    """How long to wait for others: five times the longest step seen so far, at least `least_s`."""

    def __init__(self, least_s: float) -> None:
        self._least_s = least_s
        self._longest_s = 0.0

    def note(self, seconds: float) -> None:
        """A step took so long."""
        self._longest_s = max(self._longest_s, seconds)

    @property
    def limit_s(self) -> float:
        """The limit now."""
        return max(self._least_s, LIMIT_FACTOR * self._longest_s)


def numbers_of(indices: List[int], numbers: Tuple[int, ...]) -> List[int]:
    """The numbers of processes given by index; indices that nobody has are left out."""
    return [numbers[index] for index in indices if 0 <= index < len(numbers)]
