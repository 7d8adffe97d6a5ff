"""Loads the jobs of a run in a thread, so that nodes can be reached meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread

from preflight._util.usage_error import UsageError
from preflight.config.selection import rules_for
from preflight.model.progress import Progress, threadsafe
from preflight.model.recording import Recording
from preflight.model.stages import NODES, SMOKE
from preflight.plugins import registry
from preflight.plugins.authoring import Check
from preflight.runner.job_context import ContextChoice
from preflight.runner.planner import Planner


@dataclass(frozen=True, slots=True)
class LoadedJobs:
    """The jobs of a run and the checks that it makes.

    Args:
        recording: holds the jobs, the configuration and the smoke options, and nothing observed yet.
        checks: those of the run's stages.
    """

    recording: Recording
    checks: Sequence[Check]


#: Reads the job's files and reports progress. Raises UsageError.
LoadJobs = Callable[[Progress], LoadedJobs]


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """The loaded jobs, and what follows from them: what to request, and the context in which to observe it.

    Args:
        context: that of the first job; a run over several jobs observes all of them from there.
    """

    recording: Recording
    planner: Planner
    context: ContextChoice


class Preparation:
    """Loads the jobs of one run. `prepared` is None until they are loaded."""

    def __init__(self, load_jobs: LoadJobs, context: Callable[[Recording], ContextChoice], progress: Progress) -> None:
        self._load_jobs = load_jobs
        self._context = context
        self._progress = progress
        self.prepared: PreparedRun | None = None
        self._done = anyio.Event()

    async def load(self) -> None:
        """Load the jobs in a thread.

        Raises:
            UsageError: the paths contain no job, or cannot be read.
        """
        progress = threadsafe(asyncio.get_running_loop(), self._progress)
        self.prepared = await anyio.to_thread.run_sync(self._prepare, progress, abandon_on_cancel=True)
        self._done.set()

    def _prepare(self, progress: Progress) -> PreparedRun:
        loaded = self._load_jobs(progress)
        if not loaded.recording.jobs:
            raise UsageError(
                "no launch script or configuration was recognised in the given paths; "
                "name the script that starts the ranks"
            )
        planner = Planner(loaded.recording, loaded.checks)
        return PreparedRun(loaded.recording, planner, self._context(loaded.recording))

    async def wait(self) -> PreparedRun:
        """Return the prepared run as soon as the jobs are loaded."""
        await self._done.wait()
        assert self.prepared is not None
        return self.prepared


def warm_up(recording: Recording, stages: frozenset[str]) -> None:
    """Load the rules, the functions that make charts and the schema of recordings, which judging needs later."""
    from preflight._util.validation import type_adapter
    from preflight.model.recording_schema import document

    type_adapter(document())
    if recording.verb not in (NODES, SMOKE):
        rules_for(recording.configuration)
    registry.chart_makers(stages)
    registry.measurement_readers(stages)
