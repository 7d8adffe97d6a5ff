"""The phases of a rank and the words of its events, shared by the rank that says them and the judge that reads them."""

from __future__ import annotations

#: What a rank has done last, in the order in which every rank goes through them.
STARTED = "started"
LISTENING = "listening"
IMPORTED = "imported"
RENDEZVOUS = "rendezvous"
GROUP = "group"
EXACT = "exact"
DDP = "ddp"
PARITY = "parity"
DONE = "done"
ORDER = (STARTED, IMPORTED, RENDEZVOUS, GROUP, EXACT, DDP, PARITY, DONE)

#: Kinds of events; the value of the key `event` in an event's data.
PHASE = "phase"
ENTERING = "entering"
LEFT = "left"
BEAT = "beat"
DIAL = "dial"
PROBLEM = "problem"
#: Said by the head, once: when it decided who is to blame. Whoever judges the events later decides as of that time.
DECIDED = "decided"

#: How often a rank says that it is alive (evidence of the design: half a second, six missed ones are a verdict).
HEARTBEAT_S = 0.5

#: What a rank does between two phases, for people.
DOING = {
    STARTED: "importing torch",
    LISTENING: "importing torch",
    IMPORTED: "meeting the other ranks at the master's store",
    RENDEZVOUS: "setting up the process group",
    GROUP: "summing tensors whose sums are known",
    EXACT: "training with DistributedDataParallel",
    DDP: "comparing weights between ranks",
    PARITY: "taking the process group down",
    DONE: "nothing more",
}

#: What libraries say when another rank is gone. Whoever dies of this died because of somebody else.
CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "socket closed",
    "remote process exited",
    "connection was likely closed",
    "failed to recv",
    "recvvalue failed",
    "sendbytes failed",
    "timed out",
    "timeout",
    "ncclremoteerror",
)


def position(phase: str) -> int:
    """Where a phase stands in the order; -1 for none."""
    return ORDER.index(phase) if phase in ORDER else -1
