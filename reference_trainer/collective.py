"""One rank of the collective smoke run: join, sum what is known, train a few steps, compare.

It runs in the job context under an agent and says through `emit` where it is. Whatever may block is announced
before and reported after, with the ranks it needs, so that the head can name the one that everybody waits for.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Tuple

from preflight.node.wire import ProbeUnavailable
from reference_trainer import endpoint, oracle, phases, training
from reference_trainer.oracle import Mismatch
from reference_trainer.progress import Emit, Progress

#: Waits on the store are cut into pieces of this length, so that a rank can say whom it still waits for.
_SLICE_S = 1.0
#: Taking the group down must not outlast this: everything that matters was said before.
_TEARDOWN_S = 5.0


@dataclass(frozen=True)
class RankReport:
    """What one rank can say at the end of a smoke run. Times are seconds since this rank started.

    Of many DDP steps, `losses` and `step_s` hold the first and the last hundred; `steps` says how many there were.
    """

    rank: int
    world_size: int
    host: str
    backend: str
    device: str
    torch_version: str
    cuda_version: str = ""
    nccl_version: str = ""
    phase_at_s: Dict[str, float] = field(default_factory=dict)
    operations: int = 0
    mismatches: List[Mismatch] = field(default_factory=list)
    unsupported: List[str] = field(default_factory=list)
    exact_steps: int = 0
    steps: int = 0
    losses: List[float] = field(default_factory=list)
    step_s: List[float] = field(default_factory=list)
    unmoved: List[str] = field(default_factory=list)
    digests: List[str] = field(default_factory=list)
    difference_to_one_process: Optional[float] = None
    teardown: str = ""


def rank(params: Dict[str, Any], emit: Emit) -> RankReport:
    """Take part in the smoke run as one rank.

    Args:
        params: `rank`, `world_size`, `local_rank`, `local_world_size`, `master_addr`, `master_port`, `backend`
            (`auto`: nccl where there is a device for each local rank, else gloo), `interface`, `steps`,
            `timeout_s`, `run_id`. `force_interface` puts `interface` above what the environment chooses, for
            ranks on one machine that stand in for several nodes. `drill`: `{"stall_before": k}` lets this rank
            stand still before collective k, to see that it is named.

    Raises ProbeUnavailable: kind `missing` without torch, `denied` when rank 0 cannot listen, `blocked` when the
    rank ended because another one did.
    """
    me = Progress(emit, rank=int(params["rank"]))
    me.start()
    try:
        return _run(params, me)
    except ProbeUnavailable:
        raise
    except Exception as error:
        text = "%s: %s" % (type(error).__name__, str(error).strip().split("\n")[0])
        consequence = any(mark in str(error).lower() for mark in phases.CONSEQUENCES)
        me.say(
            phases.PROBLEM,
            problem="failed",
            phase=me.phase,
            error=text,
            consequence=consequence,
            rank=me.rank,
        )
        if consequence:
            raise ProbeUnavailable("blocked", "the other side went away: %s" % text) from error
        raise
    finally:
        me.stop()


def _run(params: Dict[str, Any], me: Progress) -> RankReport:
    world_size = int(params["world_size"])
    steps = int(params.get("steps", training.MOST_COMPARED_STEPS))
    timeout_s = float(params.get("timeout_s", 60.0))
    host = socket.gethostname()
    me.reached(
        phases.STARTED,
        rank=me.rank,
        world_size=world_size,
        pid=os.getpid(),
        host=host,
        python=sys.version.split()[0],
        executable=sys.executable,
        master="%s:%s" % (params["master_addr"], params["master_port"]),
    )
    listener = _open_listener(params, me)
    dialling = _Dialling(params, me, timeout_s)
    torch, dist = _import(me)
    oracle.exact_settings()
    me.entering("set-up of the device", loading=True)
    backend, device = _backend(torch, params)
    me.left()
    _set_interface(params, backend)
    me.reached(phases.IMPORTED, backend=backend, **_versions(torch, device))
    store = _meet(dist, params, me, listener, dialling, timeout_s)
    me.reached(phases.RENDEZVOUS)
    collectives = _join(dist, torch, params, me, store, backend, device, timeout_s)
    me.reached(phases.GROUP)
    first = oracle.check_collectives(collectives, me.rank, world_size, device)
    second = oracle.check_steps(collectives, me.rank, world_size, steps, device)
    mismatches = first.mismatches + second.mismatches
    me.reached(phases.EXACT, mismatches=len(mismatches))
    model, trained = _train_ddp(torch, me, steps, device)
    me.reached(phases.DDP, first_loss=trained.losses[0], last_loss=trained.losses[-1])
    digests = _digests(torch, collectives, trained.digest, world_size, device)
    difference = None
    if me.rank == 0:
        me.entering("training the same steps in one process")
        difference = training.difference_to_one_process(model, world_size, steps, device)
        me.left()
    me.reached(phases.PARITY, equal=len(set(digests)) == 1)
    collectives.barrier("last barrier")
    teardown = _take_down(dist, me)
    me.reached(phases.DONE)
    versions = _versions(torch, device)
    return RankReport(
        me.rank,
        world_size,
        host,
        backend,
        versions["device"],
        versions["torch"],
        versions["cuda"],
        versions["nccl"],
        dict(me.phase_at_s),
        len(first.operations) + len(second.operations),
        mismatches,
        first.unsupported,
        min(steps, oracle.MOST_EXACT_STEPS),
        len(trained.losses),
        _ends(trained.losses),
        _ends(trained.step_s),
        trained.unmoved,
        digests,
        difference,
        teardown,
    )


def _ends(values: List[float]) -> List[float]:
    return values if len(values) <= 200 else values[:100] + values[-100:]


def _open_listener(params: Dict[str, Any], me: Progress) -> Optional[socket.socket]:
    """Rank 0 takes the master port at once, before the slow import, so that a port in use is known at once."""
    if me.rank != 0:
        return None
    port = int(params["master_port"])
    try:
        listener = endpoint.listen(port)
    except OSError as error:
        kind = "in-use" if error.errno == errno.EADDRINUSE else "denied"
        me.say(
            phases.PROBLEM,
            problem="listen",
            result=kind,
            port=port,
            error=error.strerror or str(error),
            rank=0,
        )
        raise ProbeUnavailable("denied", error.strerror or str(error)) from None
    me.say(phases.PHASE, phase=phases.LISTENING, details={"port": port})
    return listener


class _Dialling:
    """Dials the master's port while torch is imported, so that a closed port is told before that slow import ends."""

    def __init__(self, params: Dict[str, Any], me: Progress, timeout_s: float) -> None:
        self._host, self._port = str(params["master_addr"]), int(params["master_port"])
        self._me = me
        self._timeout_s = timeout_s
        self._outcome = endpoint.Dialled("failed", "it was not tried")
        self._thread = threading.Thread(target=self._run, name="preflight-dial", daemon=True)
        self._thread.start()

    def result(self) -> endpoint.Dialled:
        """The last outcome, after it opened or the time was over."""
        self._thread.join(self._timeout_s + 2 * endpoint.ATTEMPT_S)
        return self._outcome

    def _run(self) -> None:
        self._outcome = endpoint.dial_until(self._host, self._port, timeout_s=self._timeout_s, tell=self._tell)

    def _tell(self, dialled: endpoint.Dialled) -> None:
        self._me.say(
            phases.DIAL,
            rank=self._me.rank,
            to=0,
            endpoint="%s:%d" % (self._host, self._port),
            result=dialled.result,
            error=dialled.error,
            address=dialled.address,
            source=dialled.source,
            seconds=round(dialled.seconds, 4),
        )


def _import(me: Progress) -> Tuple[Any, Any]:
    me.entering("import of torch", loading=True)
    try:
        import torch
        import torch.distributed as dist
    except ImportError as error:
        me.say(phases.PROBLEM, problem="import", error=str(error), rank=me.rank)
        raise ProbeUnavailable("missing", "torch cannot be imported by %s: %s" % (sys.executable, error)) from error
    if not dist.is_available():
        raise ProbeUnavailable("missing", "this torch %s was built without torch.distributed" % torch.__version__)
    # The first optimizer imports a second and a half of compiler modules: here, not in the midst of a step.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    me.left()
    return torch, dist


def _backend(torch: Any, params: Dict[str, Any]) -> Tuple[str, Any]:
    """The backend and device of this rank. `auto` takes NCCL only where each local rank has a device of its own."""
    wanted = str(params.get("backend", "auto"))
    local_rank, local_size = int(params.get("local_rank", 0)), int(params.get("local_world_size", 1))
    devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto":
        wanted = "nccl" if devices >= local_size and torch.distributed.is_nccl_available() else "gloo"
    if wanted == "nccl":
        if not devices:
            raise ProbeUnavailable("missing", "backend nccl is asked for, but torch sees no GPU")
        device = torch.device("cuda", local_rank % devices)
        torch.cuda.set_device(device)
        return wanted, device
    return wanted, torch.device("cpu")


def _set_interface(params: Dict[str, Any], backend: str) -> None:
    name = "NCCL_SOCKET_IFNAME" if backend == "nccl" else "GLOO_SOCKET_IFNAME"
    if params.get("interface") and (params.get("force_interface") or not os.environ.get(name)):
        os.environ[name] = str(params["interface"])


def _versions(torch: Any, device: Any) -> Dict[str, str]:
    on_gpu = device.type == "cuda"
    nccl = ".".join(str(part) for part in torch.cuda.nccl.version()) if on_gpu else ""
    name = torch.cuda.get_device_name(device) if on_gpu else "cpu"
    return {
        "torch": str(torch.__version__),
        "cuda": str(torch.version.cuda or ""),
        "nccl": nccl,
        "device": "%s %s" % (device, name) if on_gpu else "cpu",
    }


def _meet(
    dist: Any,
    params: Dict[str, Any],
    me: Progress,
    listener: Optional[socket.socket],
    dialling: _Dialling,
    timeout_s: float,
) -> Any:
    """Connect to the master's store and wait there for everybody."""
    host, port = str(params["master_addr"]), int(params["master_port"])
    world_size = int(params["world_size"])
    store = None
    if listener is not None:
        store = _own_store(dist, host, port, listener, timeout_s)
    me.entering("connection to the master %s:%d" % (host, port), waiting_for=[] if me.rank == 0 else [0])
    reached = dialling.result()
    if reached.result != "open":
        raise ProbeUnavailable(
            "timeout",
            "rank %d cannot reach the master %s:%d (%s): %s" % (me.rank, host, port, reached.result, reached.error),
        )
    if store is None:
        store = dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s), False)
    me.left()
    _introduce(store, params, me, world_size)
    me.entering("all ranks to reach the store", waiting_for=[r for r in range(world_size) if r != me.rank])
    ends = time.monotonic() + timeout_s
    missing = [r for r in range(world_size) if r != me.rank]
    while missing:
        missing = _await_some(store, missing)
        me.waits_for(missing)
        if missing and time.monotonic() >= ends:
            raise ProbeUnavailable("timeout", "ranks %s did not reach the store within %g s" % (missing, timeout_s))
    me.left()
    return store


def _own_store(dist: Any, host: str, port: int, listener: socket.socket, timeout_s: float) -> Any:
    """The store of rank 0, on the socket it already listens on."""
    patience = timedelta(seconds=timeout_s)
    try:
        store = dist.TCPStore("127.0.0.1", port, None, True, patience, False, master_listen_fd=listener.fileno())
    except TypeError:  # a torch that cannot take over a socket
        listener.close()
        return dist.TCPStore(host, port, None, True, patience, False)
    listener.detach()
    return store


def _introduce(store: Any, params: Dict[str, Any], me: Progress, world_size: int) -> None:
    """Say who this is, and find out whether the others are of the same run. Mismatches are told and end the rank."""
    own = {"world_size": world_size, "run_id": str(params.get("run_id", "")), "host": socket.gethostname()}
    if store.add("preflight/claimed/%d" % me.rank, 1) > 1:
        _mismatch(me, "rank", "rank %d" % me.rank, "the same, by another process", me.rank)
    first = json.loads(store.compare_set("preflight/run", "", json.dumps(own)).decode())
    for name in ("world_size", "run_id"):
        if first[name] != own[name]:
            _mismatch(me, name, own[name], "%s (first said on %s)" % (first[name], first["host"]), me.rank)
    store.set("preflight/here/%d" % me.rank, "1")


def _mismatch(me: Progress, what: str, mine: Any, theirs: Any, rank_: int) -> None:
    text = "this rank has %s %s, another one of the same master has %s" % (what, mine, theirs)
    me.say(phases.PROBLEM, problem="mismatch", what=what, mine=mine, theirs=theirs, error=text, rank=rank_)
    raise ProbeUnavailable("denied", text)


def _await_some(store: Any, missing: List[int]) -> List[int]:
    """Those of `missing` that are still not there, after waiting for the first of them for a moment."""
    try:
        store.wait(["preflight/here/%d" % missing[0]], timedelta(seconds=_SLICE_S))
    except Exception as error:
        if "timeout" not in str(error).lower() and "timed out" not in str(error).lower():
            raise
    return [other for other in missing if not store.check(["preflight/here/%d" % other])]


def _join(
    dist: Any,
    torch: Any,
    params: Dict[str, Any],
    me: Progress,
    store: Any,
    backend: str,
    device: Any,
    timeout_s: float,
) -> Collectives:
    """The process group, and a first sum through it, because NCCL connects only then."""
    world_size = int(params["world_size"])
    interface = os.environ.get("GLOO_SOCKET_IFNAME" if backend == "gloo" else "NCCL_SOCKET_IFNAME", "")
    me.entering(
        "set-up of the %s process group" % backend,
        collective=True,
        details={"hostname_resolves_to": _resolve_self(), "interface": interface},
    )
    dist.init_process_group(
        backend, store=store, rank=me.rank, world_size=world_size, timeout=timedelta(seconds=timeout_s)
    )
    me.left(collective=True)
    collectives = Collectives(dist, torch, me, stall_before=int(params.get("drill", {}).get("stall_before", 0)))
    collectives.barrier("first collective", device)
    return collectives


def _resolve_self() -> str:
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError as error:
        return "unresolved: %s" % error


class Collectives:
    """torch's collectives, counted and announced one by one; all of them wait for their end."""

    def __init__(self, dist: Any, torch: Any, me: Progress, *, stall_before: int = 0) -> None:
        self._stall_before = stall_before
        self._dist = dist
        self._torch = torch
        self._me = me
        self._device: Any = None

    def all_reduce(self, tensor: Any, what: str) -> None:
        """Sum over all ranks, in place."""
        self._counted(what, tensor, lambda: self._dist.all_reduce(tensor))

    def broadcast(self, tensor: Any, root: int, what: str) -> None:
        """The root's tensor everywhere, in place."""
        self._counted(what, tensor, lambda: self._dist.broadcast(tensor, src=root))

    def all_gather(self, outputs: List[Any], tensor: Any, what: str) -> None:
        """Everybody's tensor into `outputs`, by rank."""
        self._counted(what, tensor, lambda: self._dist.all_gather(outputs, tensor))

    def reduce_scatter(self, output: Any, inputs: List[Any], what: str) -> bool:
        """The sum of everybody's `inputs[own rank]` into `output`; False when the backend has no such thing."""
        try:
            self._counted(what, output, lambda: self._dist.reduce_scatter(output, inputs))
        except (RuntimeError, NotImplementedError) as error:
            text = str(error).lower()
            if "not support" in text or "not implemented" in text or isinstance(error, NotImplementedError):
                self._me.left(collective=True)
                return False
            raise
        return True

    def barrier(self, what: str, device: Any = None) -> None:
        """Everybody comes here before anybody goes on: a sum of one element."""
        self._device = device if device is not None else self._device
        tensor = self._torch.ones(1, device=self._device)
        self.all_reduce(tensor, what)

    def _counted(self, what: str, tensor: Any, run: Callable[[], Any]) -> None:
        if self._me.collective + 1 == self._stall_before:
            time.sleep(3600.0)
        self._me.entering(what, collective=True)
        run()
        if tensor.is_cuda:
            self._torch.cuda.synchronize(tensor.device)
        self._me.left(collective=True)


def _train_ddp(torch: Any, me: Progress, steps: int, device: Any) -> Tuple[Any, training.Trained]:
    """Ordinary DDP steps; each counts as one collective, since each needs every rank."""
    model = training.build(device)
    me.entering("DistributedDataParallel set-up", collective=True)
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    me.left(collective=True)
    data = training.shard(me.rank, device)
    trained = training.train(
        wrapped,
        data,
        steps,
        before=lambda step: me.entering("DDP step %d" % step, collective=True, brief=True),
        after=lambda step: me.left(collective=True),
    )
    return model, trained


def _digests(torch: Any, collectives: Collectives, own: str, world_size: int, device: Any) -> List[str]:
    """The SHA-256 of every rank's weights, by rank."""
    mine = torch.tensor(list(bytes.fromhex(own)), dtype=torch.uint8, device=device)
    found = [torch.zeros_like(mine) for _ in range(world_size)]
    collectives.all_gather(found, mine, "digests of the weights")
    return [bytes(tensor.tolist()).hex() for tensor in found]


def _take_down(dist: Any, me: Progress) -> str:
    """Destroy the process group within a limit; returns what was odd about it, empty when nothing."""
    problems: List[str] = []

    def destroy() -> None:
        try:
            dist.destroy_process_group()
        except Exception as error:
            problems.append("%s: %s" % (type(error).__name__, str(error).split("\n")[0]))

    me.entering("destruction of the process group")
    thread = threading.Thread(target=destroy, name="preflight-teardown", daemon=True)
    thread.start()
    thread.join(_TEARDOWN_S)
    me.left()
    if thread.is_alive():
        return "destroy_process_group did not return within %g s" % _TEARDOWN_S
    return problems[0] if problems else ""
