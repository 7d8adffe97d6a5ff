"""The phases of a rank and the words of its events, shared by the rank that says them and the judge that reads them."""

from __future__ import annotations

#: What a rank has done last, in the order in which every rank goes through them.
STARTED = "started"
LISTENING = "listening"
IMPORTED = "imported"
RENDEZVOUS = "rendezvous"
GROUP = "group"
EXACT = "exact"
MEASURED = "measured"
DDP = "ddp"
PARITY = "parity"
DONE = "done"
ORDER = (STARTED, IMPORTED, RENDEZVOUS, GROUP, EXACT, MEASURED, DDP, PARITY, DONE)
#: Servers and workers instead: all workers have come to all servers; the training over servers is done.
JOINED = "joined"
SERVERS = "servers"
PS_ORDER = (STARTED, IMPORTED, JOINED, EXACT, SERVERS, PARITY, DONE)
#: Where these words stand among those of the collective run.
_BESIDE = {JOINED: GROUP, SERVERS: DDP}

#: Kinds of events; the value of the key `event` in an event's data.
PHASE = "phase"
ENTERING = "entering"
LEFT = "left"
BEAT = "beat"
DIAL = "dial"
PROBLEM = "problem"
#: Said by whoever plays a fault that was asked for, just before it does.
DRILL = "drill"
#: Said by a server: a spare worker has taken the place of one that was lost, or that held the others up.
REPLACED = "replaced"
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
    EXACT: "timing collectives at a small and a large message",
    MEASURED: "training a few ordinary steps",
    DDP: "comparing weights between ranks",
    PARITY: "taking the process group down",
    DONE: "nothing more",
}

#: The same where parameter servers and workers train.
DOING_WITH_SERVERS = {
    **DOING,
    IMPORTED: "connecting workers and servers",
    JOINED: "training with gradients that are known",
    EXACT: "training",
    SERVERS: "comparing parameters between workers",
    PARITY: "closing the connections",
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


def doing(phase: str, role: str = "rank") -> str:
    """What somebody of this role does who has this phase behind it; empty where it is not known."""
    return (DOING if role == "rank" else DOING_WITH_SERVERS).get(phase, "")


def position(phase: str) -> int:
    """Where a phase stands in the order; -1 for none."""
    phase = _BESIDE.get(phase, phase)
    return ORDER.index(phase) if phase in ORDER else -1
