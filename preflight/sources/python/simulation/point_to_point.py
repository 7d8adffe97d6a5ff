"""Messages from one rank to another that no rank sends, or none receives."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from preflight.sources.python.module import last
from preflight.sources.python.simulation.run_state import Event, Run

#: Where calls take the other rank: torch 2.13, Paddle 3.3, mpi4py 4.1.
_PEERS = {
    "torch.distributed.send": ("dst", 1),
    "torch.distributed.recv": ("src", 1),
    "paddle.distributed.send": ("dst", 1),
    "paddle.distributed.recv": ("src", 1),
    **{f"mpi4py.MPI.COMM_WORLD.{name}": ("dest", 1) for name in ("send", "ssend", "Send", "Ssend")},
    **{f"mpi4py.MPI.COMM_WORLD.{name}": ("source", 1) for name in ("recv", "Recv")},
}
#: Calls of mpi4py's communicator besides, that exchange no message of one rank.
_COLLECTIVE = re.compile(
    r"(?:Get_\w+|[bB]arrier|[bB]cast|[gG]atherv?|[sS]catterv?|[aA]llgatherv?|[aA]lltoallv?|[rR]educe|[aA]llreduce|[sS]can|[eE]xscan)$"
)
#: Other ways to exchange messages, which are not counted.
_OTHERS = re.compile(r"^[iI](?:send|recv)|P2POp|[sS]endrecv|[pP]robe|(?:send|recv)_object|^(?:send|recv)_\w+")
_WRITTEN = re.compile(r"\.(?:[iI]?[sSbBrR]?send|[iI]?[rR]ecv|Send|Recv)\w*\(")
_RECEIVES = ("recv", "Recv")
#: Ranks of a program whose messages are counted.
MAX_RANKS = 8


class Unmatched(NamedTuple):
    """A receive for which no message is sent, or a message that no rank receives."""

    event: Event
    is_receive: bool


class _Messages(NamedTuple):
    """The messages from one rank to another: the last call, and how many there are."""

    last: Event
    number: int


def exchanges(events: Sequence[Event]) -> bool:
    """Return whether a program sends messages from one rank to another."""
    return any(event.name in _PEERS for event in events)


def unmatched(runs: Sequence[Run], world_size: int) -> Iterator[Unmatched]:
    """Yield the messages that certainly miss their counterpart; `runs` are those of all ranks.

    Nothing is known where the number of messages is not, or a peer.
    """
    by_rank = {run.place[0]: run for run in runs if not run.is_of_any and run.is_complete and not run.failure}
    if set(by_rank) != set(range(world_size)) or _leaves_out_messages(runs):
        return
    received: dict[tuple[int, int | None], _Messages] = {}
    sent: dict[tuple[int, int | None], _Messages] = {}
    for rank, run in by_rank.items():
        for event in run.events:
            if _is_uncounted(event):
                return
            if event.name not in _PEERS:
                continue
            keyword, position = _PEERS[event.name]
            at = event.arguments[position] if len(event.arguments) > position else None
            peer = event.keywords.get(keyword, at)
            is_any = last(event.name) in _RECEIVES and peer is None
            if event.doubt > 1 or event.times is None or rank is None or "group" in event.keywords:
                return
            if not (type(peer) is int or is_any):
                return
            counted = received if last(event.name) in _RECEIVES else sent
            earlier = counted.get((rank, peer))
            counted[rank, peer] = _Messages(event, event.times + (earlier.number if earlier else 0))
    for (rank, peer), messages in received.items():
        if peer is not None:
            counterpart = sent.get((peer, rank))
            wanted, given = messages.number, counterpart.number if counterpart else 0
        else:
            wanted = sum(found.number for (receiver, _), found in received.items() if receiver == rank)
            given = sum(found.number for (_, receiver), found in sent.items() if receiver == rank)
        if wanted > given:
            yield Unmatched(messages.last, is_receive=True)
    for (rank, peer), messages in sent.items():
        is_buffered = "mpi4py" in messages.last.name or (peer, None) in received
        counterpart = received.get((peer or 0, rank))
        if not is_buffered and messages.number > (counterpart.number if counterpart else 0):
            yield Unmatched(messages.last, is_receive=False)


def _is_uncounted(event: Event) -> bool:
    """Return whether a call may exchange messages that are not counted."""
    short = last(event.name)
    if event.name.startswith("mpi4py.MPI.COMM_WORLD."):
        is_of_result = "(" in event.name
        return not is_of_result and event.name not in _PEERS and _COLLECTIVE.match(short) is None
    return event.name.startswith(("torch.", "paddle.", "mpi4py.")) and _OTHERS.search(short) is not None


def _leaves_out_messages(runs: Sequence[Run]) -> bool:
    """Return whether a line that sends or receives was not reached, as in the backward pass of a function."""
    texts = {event.file.path: event.file.text for run in runs for event in run.events}
    reached = {(event.file.path, event.node.lineno) for run in runs for event in run.events}
    return any(
        _WRITTEN.search(line) and (path, number) not in reached
        for path, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
    )
