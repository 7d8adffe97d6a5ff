"""How one rank meets the others at the master's store, and says why where it does not.

The master's port is taken and dialled before torch is imported, so that a port in use or a closed one is known at
once; the store is where ranks of another run, another size or the same number are told apart.
"""

from __future__ import annotations

import errno
import json
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Dict, List, Optional

from preflight.node.wire import ProbeUnavailable
from reference_trainer import endpoint, phases
from reference_trainer.progress import Progress

#: Waits on the store are cut into pieces of this length, so that a rank can say whom it still waits for.
_SLICE_S = 1.0


def open_listener(params: Dict[str, Any], me: Progress) -> Optional[socket.socket]:
    """Rank 0 takes the master port at once, before the slow import, so that a port in use is known at once.

    Not where the launcher serves the store itself (`agent_store`): its port is rightly in use.
    """
    if me.rank != 0 or params.get("agent_store"):
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


class Dialling:
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


def reach(params: Dict[str, Any], me: Progress, dialling: Dialling) -> None:
    """Wait until the master's port has opened to this rank. Raises ProbeUnavailable with how it did not."""
    host, port = str(params["master_addr"]), int(params["master_port"])
    me.entering("connection to the master %s:%d" % (host, port), waiting_for=[] if me.rank == 0 else [0])
    reached = dialling.result()
    if reached.result != "open":
        raise ProbeUnavailable(
            "timeout",
            "rank %d cannot reach the master %s:%d (%s): %s" % (me.rank, host, port, reached.result, reached.error),
        )
    me.left()


def meet(
    dist: Any,
    params: Dict[str, Any],
    me: Progress,
    listener: Optional[socket.socket],
    dialling: Dialling,
    timeout_s: float,
) -> Any:
    """Connect to the master's store and wait there for everybody.

    `params` may hold `store_prefix`, where others use the store too, and `on_store`, which is called with the store
    before anything is said there.
    """
    host, port = str(params["master_addr"]), int(params["master_port"])
    world_size = int(params["world_size"])
    store = None
    if listener is not None:
        store = _own_store(dist, host, port, listener, timeout_s)
    reach(params, me, dialling)
    if store is None:
        me.entering("store of the master %s:%d" % (host, port), waiting_for=[0])
        store = dist.TCPStore(host, port, None, False, timedelta(seconds=timeout_s), False)
        me.left()
    if params.get("store_prefix"):
        store = dist.PrefixStore(str(params["store_prefix"]), store)
    if params.get("on_store") is not None:
        params["on_store"](store)
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
