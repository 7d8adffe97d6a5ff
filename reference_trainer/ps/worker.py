"""One worker of the parameter-server smoke run, and a replay of its training in one process for comparison.

Each server records, for each part of its store, the order of pushes and of the workers' reads. So in any mode the
weights of every step of every worker can be reconstructed, and with them its gradients. The same sums in the same order
give the same bits; the comparison has a tolerance because processors differ.
"""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any, Callable, Sequence, Tuple

from preflight.agent import rank_events
from preflight.agent.wire import ProbeUnavailable
from reference_trainer.common import framework, oracle
from reference_trainer.common.progress import Emit, Progress
from reference_trainer.ps import clocks, run_report, settings, tasks
from reference_trainer.ps.client import Client, Rows
from reference_trainer.ps.exact import (
    EVENT_NUMBERS,
    PUSHED,
    READ,
    ROUND,
    deduplicate,
    digest,
    history_of,
    parts_of,
    piece_size,
)
from reference_trainer.ps.frames import PeerError, ServerDialer
from reference_trainer.ps.layout import ParameterLayout
from reference_trainer.ps.run_report import IMPOSSIBLE, ServerStats, WorkerReport
from reference_trainer.ps.settings import ProcessFault, Settings
from reference_trainer.ps.worker_steps import WorkerSteps, WorkerTraining, gradients_of, rows_of_round, train_locally

#: Worker, clock and generation of a push, and of the read before it.
Key = Tuple[int, int, int]


class _Part:
    """A part of one server's store: its numbers, and its history."""

    def __init__(self, values: Any, events: list[tuple[int, int, int, int]]) -> None:
        self.values = values
        self.events = events
        self.next = 0
        #: The sum of the pushes of the current round.
        self.total: Any = None
        #: The numbers at each read that is needed.
        self.seen: dict[Key, Any] = {}


class Replay:
    """One replay of a training.

    Args:
        histories: the data of each server.
        rows: for each table the rows that the training touches, sorted.
        after: called after each piece of the work, which takes long on a busy node.
    """

    def __init__(
        self,
        config: Settings,
        histories: Sequence[bytes],
        rows: Sequence[Any],
        device: Any,
        after: Callable[[], Any] = lambda: None,
    ) -> None:
        self._config = config
        self._rows = rows
        self._device = device
        self._after = after
        self._layout = ParameterLayout(config.plan)
        self._memory = [
            SimpleNamespace(
                pulled=SimpleNamespace(tensor=_zeros(config.plan.elements_of(server))),
                pushed=SimpleNamespace(tensor=_zeros(config.plan.elements_of(server))),
                send_pushed_buffer=lambda: None,
            )
            for server in range(config.servers)
        ]
        self._layout.scatter(
            [config.task.initial(p.name).view(p.shape) for p in config.plan.dense],
            self._memory,  # type: ignore[arg-type]
        )
        #: The numbers of each row among all touched ones of its server.
        self._places: list[list[Any]] = []
        self._slices: list[list[tuple[int, int]]] = []
        self._parts: list[list[_Part]] = [self._parts_of(server, data) for server, data in enumerate(histories)]
        self._gradients: dict[Key, list[list[Any]]] = {}

    def difference(self, final: Sequence[Any]) -> float:
        """Return the largest difference of these parameters and rows from those of the replay."""
        import torch

        if not self._run():
            return IMPOSSIBLE
        for server, parts in enumerate(self._parts):
            for part, (begin, end) in zip(parts, self._slices[server]):
                self._memory[server].pulled.tensor[begin:end] = part.values
        expected: list[Any] = list(self._layout.gather(self._memory))  # type: ignore[arg-type]
        for table, rows in enumerate(self._rows):
            whole = torch.zeros(rows.numel(), self._config.plan.tables[table].width)
            for server in range(self._config.servers):
                whole[self._places[server][table]] = self._table_part(server, table).values
            expected.append(whole)
        pairs = [(a, b) for a, b in zip(final, expected) if b.numel()]
        return float(torch.stack([(a.cpu() - b).abs().max() for a, b in pairs]).max())

    def _parts_of(self, server: int, data: bytes) -> list[_Part]:
        config = self._config
        slices: list[tuple[int, int]] = []
        for shard in config.plan.shards[server]:
            count = parts_of(shard.elements, config.stream_bytes)
            size = shard.elements if count == 1 else piece_size(shard.elements)
            end = shard.begin + shard.elements
            slices += [(at, min(at + size, end)) for at in range(shard.begin, end, size)]
        self._slices.append(slices)
        events = history_of(data, len(slices) + len(config.plan.tables))
        pushed = self._memory[server].pushed.tensor
        parts = [_Part(pushed[begin:end].clone(), mine) for (begin, end), mine in zip(slices, events)]
        places = [(rows.remainder(config.servers) == server).nonzero().flatten() for rows in self._rows]
        self._places.append(places)
        for table, mine in enumerate(events[len(slices) :]):
            parts.append(_Part(config.task.initial_rows(table, self._rows[table][places[table]]), mine))
        return parts

    def _table_part(self, server: int, table: int) -> _Part:
        return self._parts[server][len(self._slices[server]) + table]

    def _run(self) -> bool:
        """Replay all events; return whether each push was added once, in order, and each event could be repeated."""
        parts = [part for mine in self._parts for part in mine]
        if self._config.mode == clocks.SYNC and not all(map(self._has_whole_rounds, self._dense_parts())):
            return False
        due = [(w, c) for w in range(self._config.workers) for c in range(self._config.rounds(self._config.steps))]
        for part in parts:
            pushes = [event[1:3] for event in part.events if event[0] == PUSHED]
            # Sorting keeps the order of each worker.
            if sorted(pushes, key=lambda push: push[0]) != due:
                return False
        needed = list(dict.fromkeys(event[1:] for part in parts for event in part.events if event[0] == PUSHED))
        needed_parts = set(needed)
        goes_on = True
        while goes_on:
            goes_on = False
            for server, mine in enumerate(self._parts):
                for number, part in enumerate(mine):
                    goes_on |= self._advance(server, number, part, needed_parts)
            for key in needed:
                if key not in self._gradients and all(key in part.seen for part in parts):
                    self._gradients[key] = self._push(key)
                    goes_on = True
                    self._after()
        return all(part.next == len(part.events) for part in parts)

    def _dense_parts(self) -> list[_Part]:
        return [part for server, mine in enumerate(self._parts) for part in mine[: len(self._slices[server])]]

    def _has_whole_rounds(self, part: _Part) -> bool:
        """Return whether each round consists of one push of each worker, all with its clock."""
        workers, pushed = list(range(self._config.workers)), []
        for kind, worker, clock, _ in part.events:
            if kind == PUSHED:
                pushed.append((clock, worker))
            elif kind == ROUND:
                if sorted(pushed) != [(clock, each) for each in workers]:
                    return False
                pushed = []
        return not pushed

    def _advance(self, server: int, number: int, part: _Part, wanted: Any) -> bool:
        began, config = part.next, self._config
        base = 1.0 if config.mode == clocks.GEO else -config.task.base_rate
        factor = tasks.rate(base, config.workers)
        while part.next < len(part.events):
            kind, key = part.events[part.next][0], part.events[part.next][1:]
            if kind == READ:
                if key in wanted:
                    part.seen.setdefault(key, part.values.clone())
            elif kind == ROUND:
                part.values.add_(part.total)
                part.total = None
            elif key not in self._gradients:
                break
            else:
                self._add(part, self._gradients[key][server][number], factor)
            part.next += 1
        return part.next > began

    def _add(self, part: _Part, numbers: Any, factor: float) -> None:
        if isinstance(numbers, tuple):
            places, values = numbers
            part.values.index_add_(0, places, values, alpha=factor)
        elif self._config.mode != clocks.SYNC:
            part.values.add_(numbers, alpha=factor)
        elif part.total is None:
            part.total = numbers * factor
        else:
            part.total.add_(numbers, alpha=factor)

    def _push(self, key: Key) -> list[list[Any]]:
        """Return the pushes of a worker to each part of each server, computed from the weights that it had read."""
        import torch

        config, (worker, clock, _) = self._config, key
        tables = range(len(config.plan.tables))
        for server, parts in enumerate(self._parts):
            for part, (begin, end) in zip(parts, self._slices[server]):
                self._memory[server].pulled.tensor[begin:end] = part.seen[key]
        weights = self._layout.gather(self._memory)  # type: ignore[arg-type]
        geo = config.mode == clocks.GEO
        if geo:
            distinct = [rows_of_round(config, worker, clock, table) for table in tables]
            inverses = [None] * len(distinct)
        else:
            found = [deduplicate(config.task.ids(table, worker, clock)) for table in tables]
            distinct, inverses = [each[0] for each in found], [each[1] for each in found]
        values = [self._rows_seen(key, table, rows) for table, rows in enumerate(distinct)]
        leaves = [tensor.to(self._device) for tensor in (*weights, *values)]
        if geo:
            local = [tensor.clone() for tensor in leaves]
            train_locally(config, worker, clock, local, [Rows(rows, 1) for rows in distinct], len(weights))
            gradients = [(new.cpu() - old) for new, old in zip(local, (*weights, *values))]
        else:
            leaves = [leaf.detach().requires_grad_() for leaf in leaves]
            requested = list(zip(distinct, inverses))
            _, gradients = gradients_of(config.task, worker, clock, leaves, requested, len(weights))
            gradients = [gradient.cpu() for gradient in gradients]
        self._layout.scatter(gradients[: len(weights)], self._memory)  # type: ignore[arg-type]
        pushed: list[list[Any]] = []
        for server in range(config.servers):
            tensor = self._memory[server].pushed.tensor
            mine: list[Any] = [tensor[begin:end].clone() for begin, end in self._slices[server]]
            for table, rows in enumerate(distinct):
                here = rows.remainder(config.servers) == server
                known = self._rows[table][self._places[server][table]]
                mine.append((torch.searchsorted(known, rows[here]), gradients[len(weights) + table][here]))
            pushed.append(mine)
        return pushed

    def _rows_seen(self, key: Key, table: int, rows: Any) -> Any:
        import torch

        found = torch.zeros(rows.numel(), self._config.plan.tables[table].width)
        for server in range(self._config.servers):
            here = rows.remainder(self._config.servers) == server
            known = self._rows[table][self._places[server][table]]
            found[here] = self._table_part(server, table).seen[key][torch.searchsorted(known, rows[here])]
        return found


def difference(
    config: Settings,
    client: Client,
    final: Sequence[Any],
    rows: Sequence[Any],
    device: Any,
    after: Callable[[], Any] = lambda: None,
) -> float | None:
    """Return the largest difference between `final` and one process that trained on all shards in the servers' order.

    Args:
        final: dense parameters, then for each table the values of `rows` (all that the training touches).

    Returns None if the training is too long to be compared, and `IMPOSSIBLE` if the recorded order contradicts itself.
    """
    if not config.is_replayed:
        return None
    histories = []
    for server in client.servers:
        parts = len(config.plan.tables) + sum(parts_of(s.elements, config.stream_bytes) for s in server.shards)
        # Each worker pushes and reads once a round; a backup worker may read twice.
        events = 2 * (config.workers + 1) * (config.rounds(config.steps) + 2)
        histories.append(client.history(server, 4 * parts * (1 + EVENT_NUMBERS * events)))
    try:
        replay = Replay(config, histories, rows, device, after)
    except ValueError:
        return IMPOSSIBLE
    return replay.difference(final)


def _zeros(count: int) -> Any:
    import torch

    return torch.zeros(count)


def worker(params: dict[str, Any], emit: Emit) -> WorkerReport:
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
                return _unneeded_report(config, progress)
            from reference_trainer.paddle.paddle_server import worker as train

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


def _silent_server(error: PeerError, config: Settings) -> list[int]:
    """Return the number of the server that did not answer the worker; empty if the error is another one."""
    if error.kind != "silent":
        return []
    return [n for index, n in enumerate(config.server_numbers) if error.peer.startswith(f"server {index} ")]


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
        text = f"the configuration of this worker has {config.servers} servers but {len(config.endpoints)} endpoints"
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


def _unneeded_report(config: Settings, progress: Progress) -> WorkerReport:
    """Return the result of a backup worker for Paddle's own servers, which do not replace workers."""
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
        versions: dict[str, str],
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
        self._unmoved: list[str] = []
        self._losses = (0.0, 0.0)
        self._difference: float | None = None

    def run_phases(self) -> WorkerReport:
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
        if not config.ends_after_exact:
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
            self._difference = difference(config, self._client, final, rows, self._device, self._report_alive)
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

    def _report(self, replaced: int | None) -> WorkerReport:
        config, trained = self._config, self._trained
        return WorkerReport(
            config.rank,
            self._client.index,
            config.servers,
            config.workers,
            socket.gethostname(),
            config.mode,
            self._versions["device"],
            "torch {}".format(self._versions["torch"]),
            dict(self._progress.phase_at_s),
            self._server_stats(),
            config.plan.digest(),
            config.exact_steps,
            len(trained.losses),
            self._steps.mismatches,
            _first_and_last(trained.losses),
            *self._losses,
            _first_and_last(trained.pull_s),
            _first_and_last(trained.compute_s),
            _first_and_last(trained.push_s),
            self._unmoved,
            self._exact_digest,
            self._digest,
            self._difference,
            config.spare,
            replaced,
        )

    def _server_stats(self) -> list[ServerStats]:
        stats = []
        for server, reached in zip(self._client.servers, self._dialling.reached):
            channel = server.channel
            stats.append(
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
        return stats


def _first_and_last(values: list[float]) -> list[float]:
    return values if len(values) <= 200 else values[:100] + values[-100:]
