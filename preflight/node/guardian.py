"""Entry of a node: a guardian that only waits, and below it the agent that does the work.

Each ends the other's leftovers. The guardian hears the agent's pulse over a pipe: without it for as long as a
lease, whether the agent is dead, stopped or stuck in the kernel, everything below is ended.
"""

from __future__ import annotations

import os
import select
import signal
from typing import NoReturn

from preflight.node import process
from preflight.node.agent import Agent
from preflight.node.wire import LEASE_S


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
    agent = Agent(bundle, fd_in, fd_out, nonce, notes, pulse_out)
    process.die_with_parent(signal.SIGTERM)
    if os.getppid() == guardian:
        agent.run()
    os._exit(0)


def _guard(agent: int, pulse: int) -> NoReturn:
    """Wait until the agent is dead, or stopped or stuck for as long as a lease; then end all that is below."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, lambda *_: _finish("the guardian was told to end"))
    silences = 0
    # Two halves, because a machine that slept wakes with the first one over and the pulse still unread.
    while silences < 2:
        ready, _, _ = select.select([pulse], [], [], LEASE_S / 2)
        silences = 0 if ready else silences + 1
        if ready and not os.read(pulse, 65536):
            code = process.exit_code(os.waitpid(agent, 0)[1])
            _finish("the agent %s" % process.ending(code) if code else "")
    _finish("the agent was stopped or stuck for %.0f s" % LEASE_S)


def _finish(why: str) -> NoReturn:
    process.say(why)
    process.end_descendants(5.0)
    os._exit(0)
