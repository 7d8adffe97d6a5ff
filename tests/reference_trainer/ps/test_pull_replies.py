"""Large pushes are added, and if no worker must wait for others also answered, while they arrive."""

from __future__ import annotations

import array
import select
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from reference_trainer.ps import frames, store
from reference_trainer.ps.connection import versions_bytes
from reference_trainer.ps.frames import Channel, Header, PeerError
from reference_trainer.ps.partition import Shard
from reference_trainer.ps.store import PIECE, Source, Store, bytes_of, piece_of
from tests.reference_trainer.ps.scripted_worker import ScriptedWorker, connected

pytestmark = pytest.mark.thorough

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


@pytest.mark.parametrize("elements", [4 * PIECE, ODD, SHARDS])
@pytest.mark.parametrize(("mode", "workers"), [("async", 1), ("async", 2), ("geo", 1), ("ssp", 1), ("sync", 1)])
def test_server_that_copies_later_adds_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch, mode: str, workers: int, elements: int
) -> None:
    import torch

    monkeypatch.setattr(store, "Store", LateStore)
    scripted = ScriptedWorker(mode, model=model(elements), workers=workers)
    expected = scripted.host.store.dense.clone()
    for clock in range(2):
        numbers, parts = pushed(scripted, clock)
        scripted.channel.send_all(parts)
        expected.add_(numbers, alpha=scripted.host.factor)
        assert torch.equal(answered(scripted, clock + 1), expected)
    scripted.leave()


def test_server_that_copies_later_adds_pushes_that_nobody_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(store, "Store", LateStore)
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
    last = 4 * piece_of(held.shards[-1].elements)
    # All but half a piece of the last shard.
    rest, parts[-1] = parts[-1][-last // 2 :], parts[-1][: -last // 2]
    scripted.channel.send_all(parts)
    readable, _, _ = select.select([scripted.raw], [], [], 5.0 if early else 0.3)
    assert bool(readable) is early
    if early:
        header = scripted.channel.receive()
        assert (header.op, header.shard) == (frames.DATA, 0)
        assert header.bytes == first.bytes + versions_bytes(scripted.host.config, first)
        begin = bytearray(4 * piece_of(first.elements))
        scripted.channel.read_payload(memoryview(begin))
        import torch

        added = torch.frombuffer(begin, dtype=torch.float32)
        assert torch.equal(added, held.dense[: added.numel()])
        assert added[-1] != 0
    scripted.raw.sendall(rest)
    scripted.close()


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
