"""One worker of the parameter-server smoke run: connect to every server, push known values, train, compare, leave."""

from __future__ import annotations

import os
import socket
from typing import Any, Dict, List, Optional

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import framework, oracle
from reference_trainer.common.progress import Emit, Progress
from reference_trainer.ps import replay, run_report, settings
from reference_trainer.ps.client import Client
from reference_trainer.ps.frames import PeerError
from reference_trainer.ps.handshake import ServerDialer
from reference_trainer.ps.memory import digest
from reference_trainer.ps.run_report import ServerStats, WorkerReport
from reference_trainer.ps.settings import ProcessFault, Settings
from reference_trainer.ps.worker_steps import WorkerSteps, WorkerTraining


def worker(params: Dict[str, Any], emit: Emit) -> WorkerReport:
    """Take part in the smoke run as one worker.

    Args:
        params: as for `server`; `worker_device` instead of `server_device`, no `endpoint`. A worker with `spare` has no
        index: it waits to replace a lost one (modes `async`, `ssp` and `geo`).

    Raises ProbeUnavailable: kind `denied` when a server has another configuration or another program listens there,
    `timeout` when a server cannot be reached, `blocked` when one is gone, silent, or ended because of another process.
    """
    progress = Progress(emit, rank=int(params["rank"]))
    progress.start()
    try:
        run_report.send(params, progress, "worker")
        config = settings.read(params, "worker")
        if framework.is_paddle(params):
            if config.spare:
                return _not_needed(config, progress)
            from reference_trainer.paddle.paddle_worker import worker as train

            return train(config, progress)
        return _run(config, progress)
    except PeerError as error:
        mismatch = error.kind == "mismatch"
        progress.send(
            rank_events.PROBLEM,
            problem="mismatch" if mismatch else "failed",
            phase=progress.phase,
            error=error.text,
            consequence=not mismatch,
            rank=progress.rank,
            because=_silent_server(error, config),
        )
        raise ProbeUnavailable("denied" if mismatch else "blocked", error.text) from error
    finally:
        progress.stop()


def _silent_server(error: PeerError, config: Settings) -> List[int]:
    """The number of the server that the worker waited for in vain; empty for any other problem."""
    if error.kind != "silent":
        return []
    return [n for index, n in enumerate(config.server_numbers) if error.peer.startswith("server %d " % index)]


def _run(config: Settings, progress: Progress) -> WorkerReport:
    values = {
        "role": config.role,
        "index": config.index,
        "spare": config.spare,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "run_id": config.run_id,
        "parameters": config.plan.parameters()[:500],
        **config.shared_values(),
    }
    if len(config.endpoints) != config.servers:
        text = "the configuration of this worker has %d servers, but %d endpoints" % (
            config.servers,
            len(config.endpoints),
        )
        progress.send(rank_events.PROBLEM, problem="mismatch", what="servers", error=text, rank=progress.rank)
        raise ProbeUnavailable("denied", text)
    dialling = ServerDialer(config, progress, values)
    torch, _ = framework.load(progress)
    oracle.exact_settings()
    progress.entering("setup of the device", loading=True)
    device = framework.device_named(torch, config.device, config.local_index)
    progress.left()
    versions = framework.versions(torch, device)
    progress.reached(rank_events.IMPORTED, **versions)
    fault = ProcessFault(config.injected_fault, role="worker", index=config.index, on_fault=progress.on_fault_injected)
    channels = dialling.channels()
    client = Client(
        channels,
        config,
        fault,
        index=-1 if config.spare else config.index,
        pinned=device.type == "cuda",
        wait=lambda servers: progress.waits_for([config.server_numbers[server] for server in servers]),
    )
    try:
        found = _Run(config, progress, client, fault, device, dialling, versions).run_phases()
    except BaseException as error:
        client.give_up("it failed: %s" % (error.text if isinstance(error, PeerError) else error))
        raise
    finally:
        client.close()
    return found


def _not_needed(config: Settings, progress: Progress) -> WorkerReport:
    """The result of a backup worker of Paddle's own servers, which replace no worker."""
    progress.reached(rank_events.DONE)
    host = socket.gethostname()
    values = (config.rank, -1, config.servers, config.workers, host, config.mode, "cpu", "paddle")
    return WorkerReport(*values, spare=True)


class _Run:
    """The phases of one worker, from the first barrier to its end."""

    def __init__(
        self,
        config: Settings,
        progress: Progress,
        client: Client,
        fault: ProcessFault,
        device: Any,
        dialling: ServerDialer,
        versions: Dict[str, str],
    ) -> None:
        self._config = config
        self._progress = progress
        self._client = client
        self._device = device
        self._dialling = dialling
        self._versions = versions
        self._steps = WorkerSteps(
            config, client, fault, device, before=self._before, after=progress.left, alive=self._report_alive
        )
        self._trained = WorkerTraining()
        self._exact_digest = self._digest = ""
        self._unmoved: List[str] = []
        self._losses = (0.0, 0.0)
        self._difference: Optional[float] = None

    def run_phases(self) -> WorkerReport:
        """Run all phases and return the results."""
        config, progress, client = self._config, self._progress, self._client
        phase, clock = settings.JOINING, 0
        if config.spare:
            progress.entering("a worker to replace", waiting_for=list(config.server_numbers[:1]), idle=True)
            place = client.await_vacancy()
            if place is None:
                progress.left()
                client.send_goodbye()
                progress.reached(rank_events.DONE)
                return self._report(None)
            phase, clock = client.become_worker(place)
            client.phase = phase
            progress.left()
        if phase == settings.JOINING:
            self._barrier("all workers to join")
            phase = settings.EXACT
        progress.reached(rank_events.JOINED)
        if phase <= settings.EXACT:
            self._steps.exact_steps(clock)
            self._barrier("all workers' exact pushes")
            phase, clock = settings.EXACT_READ, 0
        if phase <= settings.EXACT_READ:
            self._exact_digest = self._steps.check_exact_weights()
            progress.reached(rank_events.EXACT, mismatches=len(self._steps.mismatches))
            self._barrier("all workers to compare")
            phase, clock = settings.TRAINING, 0
        if not config.only_exact:
            self._train(phase, clock)
        client.send_goodbye()
        progress.reached(rank_events.DONE)
        return self._report(client.index if config.spare else None)

    def _train(self, phase: int, clock: int) -> None:
        config, progress = self._config, self._progress
        if phase <= settings.TRAINING:
            self._trained = self._steps.train(clock)
            self._barrier("all workers to train")
        progress.reached(rank_events.SERVERS)
        final, self._unmoved = self._steps.last_weights()
        self._losses = self._steps.first_and_last_loss()
        self._digest = digest(final)
        if self._client.index == 0:
            progress.entering("training the same steps in one process")
            every = range(config.workers)
            rows = [self._steps.rows_of_training(table, every) for table in range(len(config.plan.tables))]
            self._difference = replay.difference(config, self._client, final, rows, self._device, self._report_alive)
            progress.left()
        progress.reached(rank_events.PARITY, digest=self._digest, first_loss=self._losses[0], last_loss=self._losses[1])
        self._barrier("all workers to finish")

    def _report_alive(self) -> None:
        self._progress.report_progress()
        self._client.keep_alive()

    def _barrier(self, what: str) -> None:
        self._progress.entering(what, waiting_for=list(self._config.server_numbers))
        self._client.barrier(self._client.phase)
        self._progress.left()

    def _before(self, what: str, step: int) -> None:
        text = what % step if step >= 0 else what
        # The awaited servers are reported during the wait: most of a step is computing.
        self._progress.entering(text, brief=step >= 0)

    def _report(self, replaced: Optional[int]) -> WorkerReport:
        config, trained = self._config, self._trained
        return WorkerReport(
            config.rank,
            self._client.index,
            config.servers,
            config.workers,
            socket.gethostname(),
            config.mode,
            self._versions["device"],
            "torch %s" % self._versions["torch"],
            dict(self._progress.phase_at_s),
            self._seen(),
            config.plan.digest(),
            config.exact_steps,
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
            config.spare,
            replaced,
        )

    def _seen(self) -> List[ServerStats]:
        found = []
        for server, reached in zip(self._client.servers, self._dialling.reached):
            channel = server.channel
            found.append(
                ServerStats(
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
