"""Entry point on a node: a guardian that only waits, and below it the agent that does the work.

Each cleans up what the other leaves behind. The guardian reads the agent's heartbeats from a pipe: if none arrives for
a lease because the agent was stopped, it ends everything below. An agent that gets no CPU time, or waits in the kernel
for memory on an overloaded node, is given several leases.
"""

from __future__ import annotations

import os
import select
import signal

from preflight.agent import process
from preflight.agent.wire import LEASE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: Number of leases that an agent may miss if it was not stopped.
MAX_MISSED_LEASES = 3


def main(bundle: bytes, fd_in: int, fd_out: int, *, nonce: str) -> None:
    """Entry of an agent, called by the loader: split into guardian and agent; never returns."""
    notes = []
    if not process.adopt_orphans():
        notes.append("the kernel has no subreaper: a process that detaches itself may outlive preflight")
    guardian = os.getpid()
    pulse_in, pulse_out = os.pipe()
    pid = os.fork()
    if pid:
        for fd in (fd_in, fd_out, pulse_out):
            os.close(fd)
        _guard(pid, pulse_in)
    os.close(pulse_in)
    # A session of its own, so that a signal to the guardian's group does not take both at once.
    os.setsid()
    process.adopt_orphans()
    # Imported here and not above: a module that a guardian has not imported costs no memory.
    from preflight.agent.agent import Agent

    agent = Agent(bundle, fd_in, fd_out, nonce=nonce, notes=notes, pulse=pulse_out)
    process.die_with_parent(signal.SIGTERM)
    if os.getppid() == guardian:
        agent.run()
    os._exit(0)


def _guard(agent: int, pulse: int) -> NoReturn:
    """Wait until the agent is dead, or stopped for a lease, or stuck for several; then end everything below."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: _end_all("the guardian was ended by a signal"))
    silences = 0
    # Two halves, because a machine that wakes from sleep finds the first one over and the heartbeat still unread.
    while silences < 2 or (silences < 2 * MAX_MISSED_LEASES and not _is_stopped(agent)):
        ready, _, _ = select.select([pulse], [], [], LEASE_S / 2)
        silences = 0 if ready else silences + 1
        if ready and not os.read(pulse, 65536):
            code = process.exit_code(os.waitpid(agent, 0)[1])
            _end_all(f"the agent {process.describe_exit(code)}" if code else "")
    _end_all(f"the agent was stopped or stuck for {silences * LEASE_S / 2:.0f} s")


def _is_stopped(pid: int) -> bool:
    stat = process.stat_of(pid)
    return stat is None or stat.state in ("T", "t")


def _end_all(reason: str) -> NoReturn:
    process.write_last_message(reason)
    process.end_descendants(5.0)
    os._exit(0)
