"""What a run is about: read from the job's files in a thread beside, so that nodes can be reached meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import anyio
import anyio.to_thread

from preflight.errors import UsageError
from preflight.judgement import Check, Rule
from preflight.lazy.dataclasses import dataclass
from preflight.place import ContextChoice
from preflight.planning import Planner
from preflight.progress import Progress, across
from preflight.recording import Recording


def _nothing() -> None:
    """All is ready."""


@dataclass(frozen=True, slots=True)
class Brief:
    """The jobs, in a recording that holds nothing else yet, and what judges them.

    No node waits for `rules`, so they are asked for when something is to be judged; `prepare` has them and everything
    else that judging takes made ready beforehand, in a thread beside, while nodes are waited for.
    """

    base: Recording
    checks: Sequence[Check]
    rules: Callable[[], Sequence[Rule]] = tuple
    prepare: Callable[[], object] = _nothing


#: Reads the jobs, telling how far it is. Raises UsageError.
Read = Callable[[Progress], Brief]


@dataclass(frozen=True, slots=True)
class Known:
    """A brief, and what follows from it: what to ask, and from where on the nodes to look."""

    brief: Brief
    planner: Planner
    #: One context for one job: a check of several jobs at once looks from the first one's.
    context: ContextChoice


class Briefing:
    """The brief of one run, before and after it is read."""

    def __init__(self, read: Read, context: Callable[[Recording], ContextChoice], progress: Progress) -> None:
        self._read = read
        self._context = context
        self._progress = progress
        #: What was read, once it was.
        self.known: Known | None = None
        self._over = anyio.Event()

    async def learn(self) -> None:
        """Read. Raises UsageError, also where there is no job."""
        tell = across(asyncio.get_running_loop(), self._progress)
        self.known = await anyio.to_thread.run_sync(self._learned, tell, abandon_on_cancel=True)
        self._over.set()

    def _learned(self, tell: Progress) -> Known:
        brief = self._read(tell)
        if not brief.base.jobs:
            raise UsageError("no launch script or configuration was recognised in the paths given; nothing to check")
        return Known(brief, Planner(brief.base, brief.checks), self._context(brief.base))

    async def over(self) -> Known:
        """What was read; waits until it is."""
        await self._over.wait()
        assert self.known is not None
        return self.known
