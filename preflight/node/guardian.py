"""Entry of a node: a guardian that only waits, and below it the agent that does the work.

Each ends the other's leftovers. The guardian hears the agent's pulse over a pipe: without it for as long as a
lease, because the agent was stopped, everything below is ended. One that gets no processor, or waits in the kernel for
memory on a node that is short of both, is given several leases.
"""

from __future__ import annotations

import os
import select
import signal

from preflight.node import process
from preflight.node.wire import LEASE_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

#: So many leases an agent that was not stopped may go without a pulse.
PATIENCE = 3


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
    # Here and not above: what a guardian has not imported costs neither memory nor a copy of it.
    from preflight.node.agent import Agent

    agent = Agent(bundle, fd_in, fd_out, nonce=nonce, notes=notes, pulse=pulse_out)
    process.die_with_parent(signal.SIGTERM)
    if os.getppid() == guardian:
        agent.run()
    os._exit(0)


def _guard(agent: int, pulse: int) -> NoReturn:
    """Wait until the agent is dead, or stopped for a lease, or stuck for several; then end all that is below."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: _finish("the guardian was told to end"))
    silences = 0
    # Two halves, because a machine that slept wakes with the first one over and the pulse still unread.
    while silences < 2 or (silences < 2 * PATIENCE and not _is_stopped(agent)):
        ready, _, _ = select.select([pulse], [], [], LEASE_S / 2)
        silences = 0 if ready else silences + 1
        if ready and not os.read(pulse, 65536):
            code = process.exit_code(os.waitpid(agent, 0)[1])
            _finish("the agent %s" % process.ending(code) if code else "")
    _finish("the agent was stopped or stuck for %.0f s" % (silences * LEASE_S / 2))


def _is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal or a debugger, so that it may never go on."""
    stat = process.stat_of(pid)
    return stat is None or stat.state in ("T", "t")


def _finish(why: str) -> NoReturn:
    process.say(why)
    process.end_descendants(5.0)
    os._exit(0)
