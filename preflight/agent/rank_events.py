"""The phases of a rank and the kinds of its events, shared by their sender and the judge."""

from __future__ import annotations

#: The last completed phase of a rank, in the order in which every rank goes through them.
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
#: For servers and workers instead: all workers have connected to all servers; the training over servers is done.
JOINED = "joined"
SERVERS = "servers"
PS_ORDER = (STARTED, IMPORTED, JOINED, EXACT, SERVERS, PARITY, DONE)
#: The positions of these phases among those of the collective run.
_SAME_LEVEL = {JOINED: GROUP, SERVERS: DDP}

#: In place of the one rank that may leave a collective before the others: each may, as in the setup of a process
#: group.
ANY_RANK = -1

#: Kinds of events; the value of the key `event` in an event's data.
PHASE = "phase"
ENTERING = "entering"
LEFT = "left"
BEAT = "beat"
DIAL = "dial"
PROBLEM = "problem"
#: The kind of problem of a rank whose backend needs a GPU, or a build, that it does not have.
NO_DEVICE = "no-device"
#: Part of the error of a worker that reached a different server than expected at an address.
EXPECTS_SERVER = "expected server %s at this address, but found"
#: Sent by a process that injects a requested fault, just before it does.
FAULT_INJECTED = "drill"
#: Sent by a server: a backup worker has replaced one that was lost, or that delayed the others.
REPLACED = "replaced"
#: Sent by the head, once: the time when it decided which member is to blame. Later judgements use that time.
DECIDED = "decided"

#: Sent by the head: it did not run for `seconds` until now, because it was suspended or got no CPU time.
HEAD_PAUSED = "head-paused"

#: How often a rank sends a heartbeat (evidence of the design: half a second, six missed ones are a verdict).
HEARTBEAT_S = 0.5

#: Descriptions of a rank's activity after each phase.
ACTIVITIES = {
    STARTED: "importing torch",
    LISTENING: "importing torch",
    IMPORTED: "joining the other ranks at the master's store",
    RENDEZVOUS: "setting up the process group",
    GROUP: "summing tensors with known sums",
    EXACT: "timing collectives with a small and a large message",
    MEASURED: "training a few ordinary steps",
    DDP: "comparing weights between ranks",
    PARITY: "destroying the process group",
    DONE: "nothing more",
}

#: Descriptions for parameter servers and workers.
SERVER_ACTIVITIES = {
    **ACTIVITIES,
    IMPORTED: "connecting workers and servers",
    JOINED: "training with known gradients",
    EXACT: "training",
    SERVERS: "comparing parameters between workers",
    PARITY: "closing the connections",
}

#: Library messages after the loss of another rank. A rank that dies with one of them is not the culprit.
CONSEQUENCES = (
    *("connection closed by peer", "connection reset by peer", "connection refused", "connection abort"),
    *("caused pair closure", "broken pipe", "socket closed", "remote process exited", "connection was likely closed"),
    *("failed to recv", "recvvalue failed", "sendbytes failed", "timed out", "timeout", "ncclremoteerror"),
)


def activity_of(phase: str, role: str = "rank") -> str:
    """Return the activity of a member of this role after this phase; empty if unknown."""
    return (ACTIVITIES if role == "rank" else SERVER_ACTIVITIES).get(phase, "")


def position(phase: str) -> int:
    """Return the position of a phase in the order of phases; -1 for an unknown phase."""
    phase = _SAME_LEVEL.get(phase, phase)
    return ORDER.index(phase) if phase in ORDER else -1
