"""One worker of the parameter-server smoke run: reach every server, push what is known, train, compare, leave."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List, Optional

from preflight.node.wire import ProbeUnavailable
from reference_trainer import framework, oracle, phases
from reference_trainer.progress import Emit, Progress
from reference_trainer.ps import alone, hello, settings
from reference_trainer.ps.channel import PeerError
from reference_trainer.ps.client import Client
from reference_trainer.ps.dialling import Dialling
from reference_trainer.ps.drills import Drill
from reference_trainer.ps.layout import digest
from reference_trainer.ps.report import ServerSeen, WorkerReport
from reference_trainer.ps.settings import Settings
from reference_trainer.ps.stepping import Stepping, Trained


def worker(params: Dict[str, Any], emit: Emit) -> WorkerReport:
    """Take part in the smoke run as one worker.

    Args:
        params: as for `server`; `worker_device` instead of `server_device`, no `endpoint`. A worker with `spare` has
            no index of its own: it waits to take the place of one that is lost (modes `async`, `ssp` and `geo`).

    Raises ProbeUnavailable: kind `denied` when a server was told something else or a stranger listens there, `timeout`
    when a server cannot be reached, `blocked` when one is gone, silent, or ended because of somebody else.
    """
    me = Progress(emit, rank=int(params["rank"]))
    me.start()
    try:
        hello.say(params, me, "worker")
        told = settings.read(params, "worker")
        if framework.is_paddle(params):
            if told.spare:
                return _not_needed(told, me)
            from reference_trainer.paddle.worker import worker as train

            return train(told, me)
        return _run(told, me)
    except PeerError as error:
        mismatch = error.kind == "mismatch"
        me.say(
            phases.PROBLEM,
            problem="mismatch" if mismatch else "failed",
            phase=me.phase,
            error=error.text,
            consequence=not mismatch,
            rank=me.rank,
        )
        raise ProbeUnavailable("denied" if mismatch else "blocked", error.text) from error
    finally:
        me.stop()


def _run(told: Settings, me: Progress) -> WorkerReport:
    said = {
        "role": told.role,
        "index": told.index,
        "spare": told.spare,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "run_id": told.run_id,
        "parameters": told.plan.parameters()[:500],
        **told.says(),
    }
    if len(told.endpoints) != told.servers:
        text = "this worker was told of %d servers with %d endpoints" % (told.servers, len(told.endpoints))
        me.say(phases.PROBLEM, problem="mismatch", what="servers", error=text, rank=me.rank)
        raise ProbeUnavailable("denied", text)
    dialling = Dialling(told, me, said)
    torch, _ = framework.load(me)
    oracle.exact_settings()
    me.entering("set-up of the device", loading=True)
    device = framework.device_named(torch, told.device)
    me.left()
    versions = framework.versions(torch, device)
    me.reached(phases.IMPORTED, **versions)
    drill = Drill(told.drill, role="worker", index=told.index, tell=me.drilled)
    channels = dialling.channels()
    client = Client(
        channels,
        told,
        drill,
        index=-1 if told.spare else told.index,
        wait=lambda servers: me.waits_for([told.server_numbers[server] for server in servers]),
    )
    try:
        found = _Run(told, me, client, drill, device, dialling, versions).all()
    except BaseException as error:
        client.give_up("it failed: %s" % (error.text if isinstance(error, PeerError) else error))
        raise
    finally:
        client.close()
    return found


def _not_needed(told: Settings, me: Progress) -> WorkerReport:
    """What a spare worker says of a run over Paddle's own servers, which replace nobody."""
    me.reached(phases.DONE)
    host = socket.gethostname()
    said = (told.rank, -1, told.servers, told.workers, host, told.mode, "cpu", "paddle")
    return WorkerReport(*said, spare=True)


class _Run:
    """The phases of one worker, from the first barrier to goodbye."""

    def __init__(
        self,
        told: Settings,
        me: Progress,
        client: Client,
        drill: Drill,
        device: Any,
        dialling: Dialling,
        versions: Dict[str, str],
    ) -> None:
        self._told = told
        self._me = me
        self._client = client
        self._device = device
        self._dialling = dialling
        self._versions = versions
        self._steps = Stepping(told, client, drill, device, before=self._before, after=me.left)
        self._trained = Trained()
        self._exact_digest = self._digest = ""
        self._unmoved: List[str] = []
        self._losses = (0.0, 0.0)
        self._difference: Optional[float] = None

    def all(self) -> WorkerReport:
        """Everything, and what came of it."""
        told, me, client = self._told, self._me, self._client
        phase, clock = settings.JOINING, 0
        if told.spare:
            me.entering("a place to take", waiting_for=list(told.server_numbers[:1]), idle=True)
            place = client.await_place()
            if place is None:
                me.left()
                client.goodbye()
                me.reached(phases.DONE)
                return self._report(None)
            phase, clock = client.take_place(place)
            client.phase = phase
            me.left()
        if phase == settings.JOINING:
            self._barrier("all workers to join")
            phase = settings.EXACT
        me.reached(phases.JOINED)
        if phase <= settings.EXACT:
            self._steps.exact_steps(clock)
            self._barrier("all workers' exact pushes")
            phase, clock = settings.EXACT_READ, 0
        if phase <= settings.EXACT_READ:
            self._exact_digest = self._steps.exact_read()
            me.reached(phases.EXACT, mismatches=len(self._steps.mismatches))
            self._barrier("all workers to compare")
            phase, clock = settings.TRAINING, 0
        if not told.only_exact:
            self._train(phase, clock)
        client.goodbye()
        me.reached(phases.DONE)
        return self._report(client.index if told.spare else None)

    def _train(self, phase: int, clock: int) -> None:
        told, me = self._told, self._me
        if phase <= settings.TRAINING:
            self._trained = self._steps.train(clock)
            self._barrier("all workers to train")
        me.reached(phases.SERVERS)
        final, self._unmoved = self._steps.last_weights()
        self._losses = self._steps.first_and_last_loss()
        self._digest = digest(final)
        if self._client.index == 0:
            me.entering("training the same steps in one process")
            every = range(told.workers)
            rows = [self._steps.rows_of_training(table, every) for table in range(len(told.plan.tables))]
            self._difference = alone.difference(told, final, rows, self._device, self._still)
            me.left()
        me.reached(phases.PARITY, digest=self._digest, first_loss=self._losses[0], last_loss=self._losses[1])
        self._barrier("all workers to finish")

    def _still(self) -> None:
        self._me.still()
        self._client.keep_alive()

    def _barrier(self, what: str) -> None:
        self._me.entering(what, waiting_for=list(self._told.server_numbers))
        self._client.barrier(self._client.phase)
        self._me.left()

    def _before(self, what: str, step: int) -> None:
        text = what % step if step >= 0 else what
        # For whom it waits is said once it does: most of a step it computes.
        self._me.entering(text, brief=step >= 0)

    def _report(self, replaced: Optional[int]) -> WorkerReport:
        told, trained = self._told, self._trained
        return WorkerReport(
            told.rank,
            self._client.index,
            told.servers,
            told.workers,
            socket.gethostname(),
            told.mode,
            self._versions["device"],
            "torch %s" % self._versions["torch"],
            dict(self._me.phase_at_s),
            self._seen(),
            told.plan.digest(),
            told.exact_steps,
            len(trained.losses),
            self._steps.mismatches,
            _ends(trained.losses),
            *self._losses,
            _ends(trained.pull_s),
            _ends(trained.compute_s),
            _ends(trained.push_s),
            self._unmoved,
            self._exact_digest,
            self._digest,
            self._difference,
            told.spare,
            replaced,
        )

    def _seen(self) -> List[ServerSeen]:
        found = []
        for server, reached in zip(self._client.servers, self._dialling.reached):
            channel = server.channel
            found.append(
                ServerSeen(
                    server.index,
                    reached.endpoint,
                    reached.host,
                    channel.address,
                    channel.source,
                    reached.dialled.result,
                    reached.dialled.error,
                    round(reached.dialled.seconds, 4),
                    channel.bytes_in,
                    channel.bytes_out,
                    server.round_trips,
                    round(server.waited_s, 6),
                    channel.congestion,
                )
            )
        return found


def _ends(values: List[float]) -> List[float]:
    return values if len(values) <= 200 else values[:100] + values[-100:]
