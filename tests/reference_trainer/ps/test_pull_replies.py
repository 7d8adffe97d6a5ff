"""Large pushes are added, and if no worker must wait for others also answered, while they arrive."""

from __future__ import annotations

import array
import select
import signal
import socket
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from reference_trainer.ps import exact, frames
from reference_trainer.ps.connection import versions_bytes
from reference_trainer.ps.exact import PIECE, Source, Store, bytes_of, piece_size
from reference_trainer.ps.frames import Channel, FairLock, Header, NoLock, PeerError, Released
from reference_trainer.ps.partition import Shard
from tests.reference_trainer.ps.conftest import Answers
from tests.reference_trainer.ps.scripted_worker import ScriptedWorker, connected

#: One shard of several pieces, and three shards.
ODD, SHARDS = 9 * PIECE + 3, 2_500_001


def model(elements: int) -> dict[str, Any]:
    """One dense parameter."""
    return {"dense": [["a", [elements]]], "tables": []}


def pushed(scripted: ScriptedWorker, clock: int) -> tuple[Any, list[memoryview]]:
    """Numbers for all shards, and the frames of a push of them that requests an answer."""
    import torch

    numbers = torch.arange(scripted.host.store.dense.numel(), dtype=torch.float32) + clock
    whole = bytes_of(numbers)[0]
    parts: list[memoryview] = []
    for shard in scripted.host.store.shards:
        last = shard is scripted.host.store.shards[-1]
        op, flags = (frames.PUSHPULL, frames.LAST) if last else (frames.PUSH, 0)
        header = Header(op, flags, clock=clock, shard=shard.number, count=shard.elements, bytes=shard.bytes)
        begin = 4 * shard.begin
        parts += [memoryview(frames.encode(header)), whole[begin : begin + shard.bytes]]
    return numbers, parts


def answered(scripted: ScriptedWorker, pushes: int) -> Any:
    """All shards of one answer, which contain so many pushes of the only worker."""
    import torch

    found = torch.zeros(scripted.host.store.dense.numel())
    for shard in scripted.host.store.shards:
        header = scripted.channel.receive()
        size = versions_bytes(scripted.host.config, shard)
        assert (header.op, header.shard, header.bytes) == (frames.DATA, shard.number, shard.bytes + size)
        scripted.channel.read_payload(bytes_of(found)[0][4 * shard.begin : 4 * shard.begin + shard.bytes])
        versions = bytearray(size)
        scripted.channel.read_payload(memoryview(versions))
        each = array.array("I", bytes(versions)).tolist()
        workers = scripted.host.config.workers
        assert each == [pushes, *[0] * (workers - 1)] * (len(each) // workers), "pushes of worker 0 alone"
    return found


def channels() -> tuple[Channel, Channel]:
    """A server's end of a connection, and a worker's."""
    ours, theirs = connected()
    return Channel(ours, peer="worker 0", limit_s=5), Channel(theirs, peer="server 0", limit_s=5)


@pytest.mark.thorough
@pytest.mark.parametrize("elements", [4 * PIECE, ODD, SHARDS])
@pytest.mark.parametrize("buffer_bytes", [0, 1 << 16], ids=["any-buffers", "small-buffers"])
@pytest.mark.parametrize(("mode", "workers"), [("async", 1), ("async", 2), ("geo", 1), ("geo", 2), ("ssp", 1)])
def test_reply_contains_the_complete_large_push(mode: str, buffer_bytes: int, workers: int, elements: int) -> None:
    import torch

    scripted = ScriptedWorker(mode, model=model(elements), workers=workers, buffer_bytes=buffer_bytes)
    expected = scripted.host.store.dense.clone()
    for clock in range(2):
        numbers, parts = pushed(scripted, clock)
        scripted.channel.send_all(parts)
        expected.add_(numbers, alpha=scripted.host.factor)
        assert torch.equal(answered(scripted, clock + 1), expected)
    # A reply may be complete before the server has counted it.
    scripted.leave()
    assert scripted.host.clocks.updates == scripted.worker.pulls == 2
    # No other worker pushed in between, and one that never pushed falls behind.
    assert scripted.host.clocks.overtaken == {0: 2}
    assert scripted.host.clocks.staleness == ({0: 2} if workers == 1 else {1: 1, 2: 1})


class LateStore(Store):
    """A store that, as on a GPU, copies and adds pieces later than it was told to, from wherever they were."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.on_host = False
        self.queued: list[Callable[[], Any]] = []

    def run_queue(self) -> None:
        """What a GPU has done when an event is over, or a copy to the host."""
        queued, self.queued = self.queued, []
        for operation in queued:
            operation()

    def event(self) -> Any:
        return SimpleNamespace(synchronize=self.run_queue)

    def on_device(self, numbers: Any) -> Any:
        self.run_queue()
        return numbers.clone()

    def apply_piece(self, shard: Shard, piece: int, numbers: Any, factor: float, source: Source) -> None:
        with self._locks[shard.number]:
            self._added(shard, piece, source)
            self.queued.append(lambda: self._add(shard, piece, numbers, factor))

    def add_round(self, clock: int) -> None:
        self.run_queue()
        super().add_round(clock)

    def read_piece(self, shard: Shard, piece: int, into: Any, reader: Source | None = None) -> bytes:
        self.run_queue()
        return super().read_piece(shard, piece, into, reader)

    def read(self, shard: Shard, into: Any, reader: Source | None = None) -> bytes:
        self.run_queue()
        return super().read(shard, into, reader)

    def view(self, shard: Shard) -> memoryview:
        raise AssertionError("a GPU's memory cannot be sent in place")

    view_of_piece = view  # type: ignore[assignment]


@pytest.mark.thorough
@pytest.mark.parametrize("elements", [4 * PIECE, ODD, SHARDS])
@pytest.mark.parametrize(("mode", "workers"), [("async", 1), ("async", 2), ("geo", 1), ("ssp", 1), ("sync", 1)])
def test_server_that_copies_later_adds_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, mode: str, workers: int, elements: int
) -> None:
    import torch

    monkeypatch.setattr(exact, "Store", LateStore)
    scripted = ScriptedWorker(mode, model=model(elements), workers=workers)
    expected = scripted.host.store.dense.clone()
    for clock in range(2):
        numbers, parts = pushed(scripted, clock)
        scripted.channel.send_all(parts)
        expected.add_(numbers, alpha=scripted.host.factor)
        assert torch.equal(answered(scripted, clock + 1), expected)
    scripted.leave()


@pytest.mark.thorough
def test_server_that_copies_later_adds_pushes_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(exact, "Store", LateStore)
    scripted = ScriptedWorker("async", model={"dense": [["a", [ODD]], ["b", [5]]], "tables": []})
    expected = scripted.host.store.dense.clone()
    for clock in range(3):
        numbers, parts = pushed(scripted, clock)
        # PUSHPULL becomes PUSH: the next one follows at once.
        last = scripted.host.store.shards[-1]
        header = Header(frames.PUSH, frames.LAST, clock=clock, shard=last.number, count=last.elements, bytes=last.bytes)
        parts[-2] = memoryview(frames.encode(header))
        scripted.channel.send_all(parts)
        expected.add_(numbers, alpha=scripted.host.factor)
    scripted.send(Header(frames.PULL, clock=3))
    assert torch.equal(answered(scripted, 3), expected)
    scripted.leave()


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("mode", "workers", "elements", "spares", "early"),
    [
        ("async", 1, ODD, 0, True),
        ("geo", 1, ODD, 0, True),
        ("async", 2, ODD, 0, True),
        ("async", 1, SHARDS, 0, True),
        # Shards must be copied, and there is memory for only one.
        ("async", 2, SHARDS, 0, False),
        # The worker has to wait for others before it reads.
        ("ssp", 1, ODD, 0, False),
        # Another worker may send the same push again.
        ("async", 1, ODD, 1, False),
    ],
)
def test_reply_is_sent_while_the_push_arrives(mode: str, workers: int, elements: int, spares: int, early: bool) -> None:
    scripted = ScriptedWorker(mode, model=model(elements), workers=workers, spares=spares)
    _, parts = pushed(scripted, 0)
    held = scripted.host.store
    first = held.shards[0]
    last = 4 * piece_size(held.shards[-1].elements)
    # All but half a piece of the last shard.
    rest, parts[-1] = parts[-1][-last // 2 :], parts[-1][: -last // 2]
    scripted.channel.send_all(parts)
    readable, _, _ = select.select([scripted.raw], [], [], 5.0 if early else 0.3)
    assert bool(readable) is early
    if early:
        header = scripted.channel.receive()
        assert (header.op, header.shard) == (frames.DATA, 0)
        assert header.bytes == first.bytes + versions_bytes(scripted.host.config, first)
        begin = bytearray(4 * piece_size(first.elements))
        scripted.channel.read_payload(memoryview(begin))
        import torch

        added = torch.frombuffer(begin, dtype=torch.float32)
        assert torch.equal(added, held.dense[: added.numel()])
        assert added[-1] != 0
    scripted.raw.sendall(rest)
    scripted.close()


@pytest.mark.thorough
def test_frame_is_not_interrupted_by_an_error() -> None:
    ours, theirs = channels()
    header = memoryview(frames.encode(Header(frames.DATA, bytes=8)))
    ours.offer([header, memoryview(b"1234")], whole=False)
    ours.send_error("the run ends")
    ours.offer([memoryview(b"5678")], whole=True)
    ours.send_error("the run ends")
    assert theirs.receive().bytes == 8
    taken = bytearray(8)
    theirs.read_payload(memoryview(taken))
    assert taken == b"12345678"
    with pytest.raises(PeerError, match="server 0 says: the run ends"):
        theirs.receive()
    ours.close()
    theirs.close()


@pytest.mark.thorough
def test_offered_data_is_sent_in_order_without_waiting() -> None:
    ours, theirs = channels()
    size, times = 1 << 20, 32
    ours.offer([memoryview(frames.encode(Header(frames.DATA, bytes=size * times)))], whole=False)
    for number in range(times):
        ours.offer([memoryview(bytes([number]) * size)], whole=number + 1 == times)
    flushing = threading.Thread(target=ours.flush)
    flushing.start()
    assert theirs.receive().bytes == size * times
    for number in range(times):
        taken = bytearray(size)
        theirs.read_payload(memoryview(taken))
        assert taken == bytes([number]) * size
    flushing.join(10)
    assert ours.bytes_out == theirs.bytes_in == frames.HEADER_BYTES + size * times
    ours.close()
    theirs.close()


# A backup worker replaces a lost or lagging one; the others continue, and no push is lost or applied twice.


PushParts = Callable[..., Answers]
MODEL = {"dense": [["a", [30, 20]], ["b", [40]]], "tables": [["t", 211, 4]]}


def recovered(parts: PushParts, fault: dict[str, Any], mode: str, **params: Any) -> Answers:
    """A run of two servers and three workers in which worker 1 injects a fault and one backup worker waits."""
    given = {"model": MODEL, "slice_bytes": 1024, "steps": 8, "staleness": 2, "mode": mode, **params}
    return parts(2, 3, spares=1, overrides={"worker 1": {"injected_fault": fault}}, **given)


def whole(answers: Answers) -> list[dict[str, Any]]:
    """The servers' reports of a run with the right bits although worker 1 was lost."""
    survivors = (*answers.servers, answers.workers[0], answers.workers[2], *answers.spares)
    assert [a.get("error") for a in survivors] == [None] * len(survivors), [a.get("detail") for a in survivors]
    servers = [server["report"] for server in answers.servers]
    found = [answer["report"] for answer in survivors[len(servers) :]]
    assert all(server["violations"] == [] and server["mismatches"] == [] for server in servers)
    assert all(worker["mismatches"] == [] for worker in found)
    assert len({worker["digest"] for worker in found}) == 1
    (spare,) = (answer["report"] for answer in answers.spares)
    assert (spare["spare"], spare["replaced"], spare["index"]) == (True, 1, 1)
    assert [[one["worker"] for one in server["replaced"]] for server in servers] == [[1], [1]]
    assert all(seen["pushes"] == server["expected_pushes"] for server in servers for seen in server["seen"])
    return servers


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["async", "ssp", "geo"])
@pytest.mark.parametrize("phase", ["exact", "servers"])
@pytest.mark.parametrize("mid_push", [False, True], ids=["between", "mid-push"])
def test_a_killed_worker_is_replaced_and_every_bit_is_right(
    parts: PushParts, mode: str, phase: str, mid_push: bool
) -> None:
    fault = {"kind": "kill", "step": 3, "phase": phase, "mid_push": mid_push, "server": 1}
    answers = recovered(parts, fault, mode, geo_steps=2)
    assert answers.workers[1]["code"] == -signal.SIGKILL
    servers = whole(answers)
    if mode == "ssp":
        assert all(int(ahead) <= 2 for server in servers for ahead in server["staleness"])
    assert all(
        "is gone" in one["why"] or "closed its connection" in one["why"] for s in servers for one in s["replaced"]
    )
    assert not any(one["lagged"] for s in servers for one in s["replaced"])


@pytest.mark.thorough
def test_a_lagging_worker_is_replaced_and_the_bound_does_not_deadlock(parts: PushParts) -> None:
    fault = {"kind": "stop", "step": 3, "phase": "servers"}
    servers = whole(recovered(parts, fault, "ssp", lag_s=1.0, timeout_s=30, stopped=("worker 1",)))
    assert [
        (one["lagged"], "has delayed the other workers for 1 s" in one["why"]) for one in servers[0]["replaced"]
    ] == [(True, True)]


@pytest.mark.thorough
def test_unused_backup_worker_ends_with_the_run(parts: PushParts) -> None:
    answers = parts(2, 2, spares=1, mode="async", model=MODEL)
    servers, _ = answers.reports
    (spare,) = (answer["report"] for answer in answers.spares)
    assert (spare["index"], spare["replaced"], spare["steps"]) == (-1, None, 0)
    assert all(server["replaced"] == [] for server in servers)


@pytest.mark.thorough
def test_second_loss_without_a_second_backup_ends_the_run(parts: PushParts) -> None:
    drills = {
        "worker 0": {"injected_fault": {"kind": "kill", "step": 2, "phase": "servers"}},
        "worker 1": {"injected_fault": {"kind": "kill", "step": 2, "phase": "servers"}},
    }
    answers = parts(1, 3, spares=1, mode="async", steps=200, model=MODEL, overrides=drills)
    assert answers.servers[0]["kind"] == "blocked" and "is gone" in answers.servers[0]["error"]
    # The server names the lost worker, and then closes its connections: one of the two reaches the worker first.
    assert any(text in answers.workers[2]["error"] for text in ("is gone", "Connection reset by peer"))


# Waits for another process are reported while they last: supervision follows them to their cause.


LIMIT_S = 30.0


def waits_connected() -> tuple[socket.socket, socket.socket]:
    """Both ends of one connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = socket.create_connection(listener.getsockname())
        return here, listener.accept()[0]


def test_wait_is_reported_at_its_start_and_end() -> None:
    here, there = waits_connected()
    lasting = threading.Event()
    told: list[bool] = []
    with here, there:
        answering = Channel(there, peer="worker", limit_s=LIMIT_S)
        waiting = Channel(here, peer="server", limit_s=LIMIT_S)

        def on_wait_change(lasts: bool) -> None:
            told.append(lasts)
            lasting.set()

        def answer() -> None:
            # The awaited data is sent only once the wait was reported.
            if lasting.wait(LIMIT_S):
                answering.send(Header(frames.BARRIER, 0, 1))

        waiting.on_wait_change = on_wait_change
        thread = threading.Thread(target=answer)
        thread.start()
        header = waiting.receive()
        thread.join(LIMIT_S)
    assert header.op == frames.BARRIER
    assert told == [True, False] and not waiting.kept_waiting


def test_immediate_data_is_not_a_wait() -> None:
    here, there = waits_connected()
    told: list[bool] = []
    with here, there:
        Channel(there, peer="worker", limit_s=LIMIT_S).send(Header(frames.BARRIER, 0, 1))
        waiting = Channel(here, peer="server", limit_s=LIMIT_S)
        waiting.on_wait_change = told.append
        assert waiting.receive().op == frames.BARRIER
    assert told == []


# Threads of one server take turns, and only the holder releases the lock.


def _elsewhere(turn: FairLock) -> bool:
    """Whether another thread can acquire it now."""
    thread = threading.Thread(target=lambda: (turn.acquire(), turn.release()), daemon=True)
    thread.start()
    thread.join(0.05)
    return not thread.is_alive()


def test_released_work_runs_beside_other_threads() -> None:
    turn = FairLock()
    turn.acquire()
    with Released(turn):
        assert _elsewhere(turn)
    assert not _elsewhere(turn)
    assert turn.release()
    assert _elsewhere(turn)


def test_thread_without_the_lock_does_not_release_it() -> None:
    turn, held = FairLock(), []
    turn.acquire()

    def other() -> None:
        held.append(turn.release())
        with Released(turn):
            pass

    thread = threading.Thread(target=other)
    thread.start()
    thread.join(5)
    assert held == [False]
    assert not _elsewhere(turn)


def test_exception_in_released_work_restores_the_lock() -> None:
    turn = FairLock()
    turn.acquire()
    try:
        with Released(turn):
            raise ValueError
    except ValueError:
        assert turn.release()


def test_no_lock_never_waits() -> None:
    alone = NoLock()
    alone.acquire()
    alone.acquire()
    assert not alone.release()
