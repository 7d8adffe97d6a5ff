"""The configuration of a process of a parameter-server run, read once, and the faults that it may inject into itself.

`{"kind": "flip", "role": "worker", "index": 1, "phase": "exact", "step": 2, "server": 0, "shard": 0}`. Without `role`
or `index` it applies to the process that receives it. Kinds: `delay` (`seconds` before each step, from `step` on),
`loss` (a push never sent), `double` (a push sent twice, or applied twice by a server), `flip` (one bit of a push, or of
a server's weights), `kill`, `stop` (SIGKILL, SIGSTOP on itself; `mid_push` for a worker in the middle of a push), and
`stall_before` or `stall` (this process hangs and keeps its connections).
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, field
from typing import Any, Callable, Sequence

from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import oracle
from reference_trainer.ps import clocks, tasks
from reference_trainer.ps.exact import LARGE_BYTES, ExactValues
from reference_trainer.ps.partition import Plan, from_params

#: Phases of a run as servers and workers count them; a barrier leads from each to the next.
JOINING, EXACT, EXACT_READ, TRAINING, READ, OVER = range(6)
STEPS = 10
GEO_STEPS = 5
STALENESS = 3
#: The minimum time limit of an answer; longer only if steps take longer than a fifth of it.
MIN_LIMIT_S = 10.0
#: From NVIDIA's resiliency extension: the factor on the longest time so far.
LIMIT_FACTOR = 5.0
#: A worker that delays others for this long is replaced by a backup worker.
LAG_S = 5.0
#: Largest number of pushes, and of numbers in them, for which the training is repeated in one process.
MAX_REPLAYED_PUSHES, MAX_REPLAYED_NUMBERS = 1280, 1 << 28
#: Largest number of rows of a table that one worker may touch on one server in one step.
MAX_IDS = 65536


@dataclass(frozen=True)
class Settings:
    """One process's configuration. `numbers` are the numbers of servers and workers for supervision, by index."""

    rank: int
    role: str
    index: int
    servers: int
    workers: int
    endpoints: tuple[str, ...]
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
    local_index: int
    secret: bytes
    plan: Plan
    task: Any
    server_numbers: tuple[int, ...]
    worker_numbers: tuple[int, ...]
    spare_numbers: tuple[int, ...] = ()
    injected_fault: dict[str, Any] = field(default_factory=dict)
    stream_bytes: int = LARGE_BYTES
    most_exact_steps: int = oracle.MAX_EXACT_STEPS

    @property
    def exact_steps(self) -> int:
        return min(self.steps, self.most_exact_steps)

    def rounds(self, steps: int) -> int:
        """Return the number of pushes of one worker for this many steps."""
        return -(-steps // self.geo_steps) if self.mode == clocks.GEO else steps

    def steps_of(self, clock: int, steps: int) -> Sequence[int]:
        """Return the steps of one push, out of `steps` in total."""
        if self.mode != clocks.GEO:
            return range(clock, clock + 1)
        return range(clock * self.geo_steps, min(steps, (clock + 1) * self.geo_steps))

    def exact_values(self, device: Any) -> ExactValues:
        return ExactValues(
            self.plan,
            self.workers,
            device,
            steps_of=lambda clock: self.steps_of(clock, self.exact_steps),
            pushes=self.rounds(self.exact_steps),
        )

    @property
    def is_replayed(self) -> bool:
        """Return whether one process repeats the training: it is short enough, with few enough workers."""
        pushes = self.workers * self.rounds(self.steps)
        numbers = sum(self.plan.elements_of(server) for server in range(self.servers))
        return pushes <= MAX_REPLAYED_PUSHES and pushes * numbers <= MAX_REPLAYED_NUMBERS

    @property
    def ends_after_exact(self) -> bool:
        return self.until == "exact"

    def capacity(self, server: int, table: int) -> int:
        """Return the maximum number of rows of a table in one exchange with one server."""
        return min(MAX_IDS, self.plan.rows_of(server, self.plan.tables[table]))

    def shared_values(self) -> dict[str, Any]:
        """Return the settings that must be equal in every process of this run."""
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
            "stream_bytes": self.stream_bytes,
            "plan": self.plan.digest(),
        }


def read(params: dict[str, Any], role: str) -> Settings:
    """Return the settings in `params`. Raises ProbeUnavailable of kind `denied` for invalid ones."""
    try:
        return _read(params, role)
    except (TypeError, ValueError, KeyError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ProbeUnavailable("denied", f"the configuration of the {role} is invalid: {what}") from error


def _read(params: dict[str, Any], role: str) -> Settings:
    servers, workers = int(params["servers"]), int(params["workers"])
    if servers < 1 or workers < 1:
        raise ValueError(f"{servers} servers and {workers} workers")
    mode = str(params.get("mode") or clocks.SYNC)
    if mode not in clocks.MODES:
        raise ValueError("unknown mode {!r}; expected one of {}".format(mode, ", ".join(clocks.MODES)))
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
        least_limit_s=float(params.get("least_limit_s") or MIN_LIMIT_S),
        lag_s=float(params.get("lag_s") or LAG_S),
        spares=spares if mode != clocks.SYNC else 0,
        spare=bool(params.get("spare")),
        until=str(params.get("until") or ""),
        run_id=str(params.get("run_id", "")),
        listen_host=str(params.get("listen_host") or ""),
        device=str(params.get(role + "_device") or "cpu"),
        local_index=int(params.get("local_index") or 0),
        secret=secret,
        plan=from_params(params, task.dense, task.tables),
        task=task,
        server_numbers=_numbers(numbers.get("server"), 0, servers),
        worker_numbers=_numbers(numbers.get("worker"), servers, workers),
        spare_numbers=_numbers(numbers.get("spare"), servers + workers, spares),
        injected_fault=dict(params.get("injected_fault") or {}),
        stream_bytes=int(params.get("stream_bytes") or LARGE_BYTES),
        most_exact_steps=max(1, int(params.get("exact_steps") or oracle.MAX_EXACT_STEPS)),
    )


def plan_of(params: dict[str, Any]) -> Plan:
    """Return the plan from the configuration. Raises ValueError, TypeError or KeyError for an invalid one."""
    task = _task(params)
    return from_params(params, task.dense, task.tables)


def _task(params: dict[str, Any]) -> Any:
    return tasks.from_params(params.get("model"))


def _numbers(given: Any, first: int, count: int) -> tuple[int, ...]:
    if given:
        return tuple(int(number) for number in given)
    return tuple(range(first, first + count))


def split_endpoint(endpoint: str) -> tuple[str, int]:
    """Return host and port of `host:port`. Raises ValueError."""
    host, colon, port = endpoint.rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{endpoint!r} is not an endpoint; expected host:port")
    return host.strip("[]"), int(port)


class AdaptiveTimeout:
    """The time limit of waits for others: five times the longest step so far, but at least `min_s`."""

    def __init__(self, min_s: float) -> None:
        self._min_s = min_s
        self._longest_s = 0.0

    def note(self, seconds: float) -> None:
        self._longest_s = max(self._longest_s, seconds)

    @property
    def limit_s(self) -> float:
        return max(self._min_s, LIMIT_FACTOR * self._longest_s)


def numbers_of(indices: list[int], numbers: tuple[int, ...]) -> list[int]:
    """Return the numbers of the processes with these indices; invalid indices are left out."""
    return [numbers[index] for index in indices if 0 <= index < len(numbers)]


KINDS = ("delay", "loss", "double", "flip", "kill", "stop", "stall", "stall_before")
_PHASES = {"exact": EXACT, "servers": TRAINING}
_STALL_S = 3600.0


class ProcessFault:
    """The fault that this process injects, if any."""

    def __init__(
        self, config: dict[str, Any], *, role: str, index: int, on_fault: Callable[..., None] | None = None
    ) -> None:
        self._on_fault = on_fault
        concerned = config.get("role", role) == role and int(config.get("index", index)) == index
        self.kind = str(config.get("kind", "")) if concerned else ""
        if self.kind and self.kind not in KINDS:
            raise ValueError("unknown fault {!r}; expected one of {}".format(self.kind, ", ".join(KINDS)))
        self.step = int(config.get("step", 0 if self.kind == "delay" else 1))
        self.server = int(config.get("server", 0))
        self.shard = int(config.get("shard", 0))
        self.element = int(config.get("element", 0))
        self.bit = int(config.get("bit", 20))
        self.seconds = float(config.get("seconds", 0.05))
        self.mid_push = bool(config.get("mid_push"))
        self._phase = _PHASES.get(str(config.get("phase", "exact")), EXACT)

    def due(self, kind: str, phase: int, step: int) -> bool:
        """Return whether the fault is due at `step` of `phase`."""
        due = self.kind == kind and phase == self._phase and step == self.step
        if due:
            self._report(step)
        return due

    def before_step(self, phase: int, step: int) -> None:
        """Apply faults of the process itself at the beginning of a step."""
        if not self.kind:
            return
        if self.kind == "delay" and phase == self._phase and step >= self.step:
            self._report(step)
            time.sleep(self.seconds)
        if not self.mid_push:
            self.trigger(phase, step)

    def trigger(self, phase: int, step: int) -> None:
        """Die, stop or stall here if this is the fault and this is its step."""
        if self.due("kill", phase, step):
            os.kill(os.getpid(), signal.SIGKILL)
        if self.due("stop", phase, step):
            os.kill(os.getpid(), signal.SIGSTOP)
        if self.due("stall", phase, step) or self.due("stall_before", phase, step):
            time.sleep(_STALL_S)

    def _report(self, step: int) -> None:
        """Report the injection of the fault; only once, even if it happens several times."""
        on_fault, self._on_fault = self._on_fault, None
        if on_fault is not None:
            on_fault(kind=self.kind, step=step)

    def flip(self, numbers: Any) -> None:
        """Flip the bit of the fault in flat float32 numbers."""
        import torch

        raw = numbers.view(torch.int32)
        place = self.element % max(1, raw.numel())
        raw[place] = raw[place] ^ (1 << self.bit if self.bit < 31 else -(1 << 31))
