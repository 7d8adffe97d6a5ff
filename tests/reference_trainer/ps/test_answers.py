"""Large pushes are added while they come, and answered while they come where nobody has to wait for others."""

from __future__ import annotations

import select
import threading
from typing import Any

import pytest

from reference_trainer.ps import frames
from reference_trainer.ps.channel import Channel, PeerError
from reference_trainer.ps.frames import Header
from reference_trainer.ps.memory import bytes_of
from reference_trainer.ps.store import PIECE, piece_of
from tests.reference_trainer.ps.spoken import Spoken, connected

pytestmark = pytest.mark.smoke

#: One shard of several pieces, and three shards.
ODD, SHARDS = 9 * PIECE + 3, 2_500_001


def model(elements: int) -> dict[str, Any]:
    """One dense parameter."""
    return {"dense": [["a", [elements]]], "tables": []}


def pushed(spoken: Spoken, clock: int) -> tuple[Any, list[memoryview]]:
    """Numbers for all shards, and the frames of a push of them that asks for an answer."""
    import torch

    numbers = torch.arange(spoken.host.store.dense.numel(), dtype=torch.float32) + clock
    whole = bytes_of(numbers)[0]
    parts: list[memoryview] = []
    for shard in spoken.host.store.shards:
        last = shard is spoken.host.store.shards[-1]
        op, flags = (frames.PUSHPULL, frames.LAST) if last else (frames.PUSH, 0)
        header = Header(op, flags, clock=clock, shard=shard.number, count=shard.elements, bytes=shard.bytes)
        begin = 4 * shard.begin
        parts += [memoryview(frames.encode(header)), whole[begin : begin + shard.bytes]]
    return numbers, parts


def answered(spoken: Spoken) -> Any:
    """All shards of one answer."""
    import torch

    found = torch.zeros(spoken.host.store.dense.numel())
    for shard in spoken.host.store.shards:
        header = spoken.channel.receive()
        assert (header.op, header.shard, header.bytes) == (frames.DATA, shard.number, shard.bytes)
        spoken.channel.take(bytes_of(found)[0][4 * shard.begin : 4 * shard.begin + shard.bytes])
    return found


def channels() -> tuple[Channel, Channel]:
    """A server's end of a connection, and a worker's."""
    ours, theirs = connected()
    return Channel(ours, peer="worker 0", limit_s=5), Channel(theirs, peer="server 0", limit_s=5)


@pytest.mark.parametrize("elements", [4 * PIECE, ODD, SHARDS])
@pytest.mark.parametrize("buffer_bytes", [0, 1 << 16], ids=["any-buffers", "small-buffers"])
@pytest.mark.parametrize(("mode", "workers"), [("async", 1), ("async", 2), ("geo", 1), ("geo", 2), ("ssp", 1)])
def test_a_large_push_is_whole_in_the_answer(mode: str, buffer_bytes: int, workers: int, elements: int) -> None:
    import torch

    spoken = Spoken(mode, model=model(elements), workers=workers, buffer_bytes=buffer_bytes)
    expected = spoken.host.store.dense.clone()
    for clock in range(2):
        numbers, parts = pushed(spoken, clock)
        spoken.channel.send_all(parts)
        expected.add_(numbers, alpha=spoken.host.factor)
        assert torch.equal(answered(spoken), expected)
    # An answer may be whole before the server has counted it.
    spoken.leave()
    assert spoken.host.clocks.updates == spoken.guest.pulls == 2
    # Nothing of another worker came between, and one that never pushed falls behind.
    assert spoken.host.clocks.overtaken == {0: 2}
    assert spoken.host.clocks.staleness == ({0: 2} if workers == 1 else {1: 1, 2: 1})


@pytest.mark.parametrize(
    ("mode", "workers", "elements", "spares", "early"),
    [
        ("async", 1, ODD, 0, True),
        ("geo", 1, ODD, 0, True),
        ("async", 2, ODD, 0, True),
        ("async", 1, SHARDS, 0, True),
        # Shards must be copied, and there is memory for one.
        ("async", 2, SHARDS, 0, False),
        # The worker has to wait for others before it reads.
        ("ssp", 1, ODD, 0, False),
        # Another worker may send the same push again.
        ("async", 1, ODD, 1, False),
    ],
)
def test_the_answer_goes_out_while_the_push_comes_where_it_may(
    mode: str, workers: int, elements: int, spares: int, early: bool
) -> None:
    spoken = Spoken(mode, model=model(elements), workers=workers, spares=spares)
    _, parts = pushed(spoken, 0)
    store = spoken.host.store
    first = store.shards[0]
    last = 4 * piece_of(store.shards[-1].elements)
    # All but half a piece of the last shard.
    rest, parts[-1] = parts[-1][-last // 2 :], parts[-1][: -last // 2]
    spoken.channel.send_all(parts)
    readable, _, _ = select.select([spoken.raw], [], [], 5.0 if early else 0.3)
    assert bool(readable) is early
    if early:
        header = spoken.channel.receive()
        assert (header.op, header.shard, header.bytes) == (frames.DATA, 0, first.bytes)
        begin = bytearray(4 * piece_of(first.elements))
        spoken.channel.take(memoryview(begin))
        import torch

        added = torch.frombuffer(begin, dtype=torch.float32)
        assert torch.equal(added, store.dense[: added.numel()])
        assert added[-1] != 0
    spoken.raw.sendall(rest)
    spoken.close()


def test_nothing_else_is_said_in_the_middle_of_a_frame() -> None:
    ours, theirs = channels()
    header = memoryview(frames.encode(Header(frames.DATA, bytes=8)))
    ours.offer([header, memoryview(b"1234")], whole=False)
    ours.say_error("the run ends")
    ours.offer([memoryview(b"5678")], whole=True)
    ours.say_error("the run ends")
    assert theirs.receive().bytes == 8
    taken = bytearray(8)
    theirs.take(memoryview(taken))
    assert taken == b"12345678"
    with pytest.raises(PeerError, match="server 0 says: the run ends"):
        theirs.receive()
    ours.close()
    theirs.close()


def test_what_is_offered_waits_for_nobody_and_comes_in_its_order() -> None:
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
        theirs.take(memoryview(taken))
        assert taken == bytes([number]) * size
    flushing.join(10)
    assert ours.bytes_out == theirs.bytes_in == frames.HEADER_BYTES + size * times
    ours.close()
    theirs.close()
