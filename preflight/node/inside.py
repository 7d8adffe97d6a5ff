"""Entry of the one process in a job context that starts a child there for each request.

It is an agent like the one outside, but for what that does already: no guardian stands above it, and instead of a
network the pipes of its wrapper are its channel. Their end ends it, and so does a lease without a word from outside,
because the kernel's own means do not reach into a container.
"""

from __future__ import annotations

from preflight.node import process
from preflight.node.agent import Agent


def main(bundle: bytes, fd_in: int, fd_out: int) -> None:
    """Entry in the job context, called by the loader; never returns."""
    process.adopt_orphans()
    Agent(bundle, fd_in, fd_out, inside=True).run()
    process.leave(0)
