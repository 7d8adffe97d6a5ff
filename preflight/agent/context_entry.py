"""Entry point of the one process in a job context that starts a child there for each request.

It is an agent like the one outside, without the parts that the outer agent covers: it has no guardian, and its channel
is the pipes of its wrapper instead of a network. It ends when they close, or when a lease expires without a message
from outside, because the kernel's own means do not reach into a container.
"""

from __future__ import annotations

from preflight.agent import process
from preflight.agent.agent import Agent


def main(bundle: bytes, fd_in: int, fd_out: int) -> None:
    """Entry in the job context, called by the loader; never returns."""
    process.adopt_orphans()
    Agent(bundle, fd_in, fd_out, inside=True).run()
    process.exit_now(0)
