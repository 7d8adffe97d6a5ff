"""Loads the jobs of a run in a thread, and plans the facts that its checks need."""

from __future__ import annotations

import asyncio
import functools
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import anyio
import anyio.to_thread

from preflight._util.redaction import scrub_traceback
from preflight._util.usage_error import UsageError
from preflight.config.selection import rules_for
from preflight.engine.evaluate import judged, selected
from preflight.executors.bundle import ExtractionError, extract
from preflight.model.job import Job
from preflight.model.options import NODES, SMOKE
from preflight.model.progress import Progress, threadsafe
from preflight.model.recording import Facts, Fleet, Recording, UnplannedCheck
from preflight.model.requests import Request, probe_name
from preflight.plugins import registry
from preflight.plugins.authoring import Check, PlanRequests
from preflight.runner.job_context import ContextChoice


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
    from preflight.model.recording_io import document

    type_adapter(document())
    if recording.verb not in (NODES, SMOKE):
        rules_for(recording.configuration)
    registry.chart_makers(stages)
    registry.measurement_readers(stages)


class Planner:
    """Collects the requests of the checks that a run selected. `unplanned` are those that could not plan, each with the
    reason.

    `checks` are those whose probes can be sent, `shipped` the modules, with sources, that plugins' probes need.
    """

    def __init__(self, base: Recording, checks: Sequence[Check]) -> None:
        self._jobs = base.jobs
        self._only_smoke = base.verb == SMOKE
        #: If only the smoke run counts: the probes that its checks use.
        self._read = {probe_name(probe) for check in checks if check.when == "smoke" for probe in check.reads}
        self.unplanned: list[UnplannedCheck] = []
        self.shipped: dict[str, str] = {}
        self.checks: list[Check] = []
        for check in checks:
            if not selected(check.meta, base.configuration) and not (self._only_smoke and check.when == "node"):
                continue
            try:
                self.shipped.update(extract(check.probes))
                self.checks.append(check)
            except ExtractionError as error:
                self.unplanned.extend(UnplannedCheck(check.meta.id, job.name, str(error)) for job in self._jobs)

    def plan(self, stage: str, fleet: Fleet, facts: Facts) -> list[Request]:
        """The requests of the checks of this stage, each once."""
        return self._requests(stage, fleet, facts, [check.plan for check in self.checks])

    def follow_up(self, stage: str, fleet: Fleet, facts: Facts) -> list[Request]:
        """The additional requests that the facts of this stage make necessary; some may have been sent already."""
        return self._requests(stage, fleet, facts, [check.follow_up for check in self.checks])

    def _requests(self, stage: str, fleet: Fleet, facts: Facts, plans: Sequence[PlanRequests | None]) -> list[Request]:
        wanted: dict[str, Request] = {}
        for check, plan in zip(self.checks, plans, strict=True):
            if check.when != stage or plan is None:
                continue
            for job in self._jobs:
                for request in self._planned(check, plan, job, fleet, facts):
                    if self._only_smoke and stage == "node" and request.probe not in self._read:
                        continue
                    first = wanted.setdefault(request.key, request)
                    if first is not request:
                        wanted[request.key] = _merged(first, request)
        return list(wanted.values())

    def _planned(self, check: Check, plan: PlanRequests, job: Job, fleet: Fleet, facts: Facts) -> Iterable[Request]:
        try:
            return judged(functools.partial(plan, job), fleet, facts)[0]
        except Exception:
            # Kept in the recording, where it makes the check's outcome unknown instead of looking like a pass.
            crashed = UnplannedCheck(check.meta.id, job.name, scrub_traceback(traceback.format_exc(limit=-4)))
            if crashed not in self.unplanned:
                self.unplanned.append(crashed)
            return []


def _merged(first: Request, second: Request) -> Request:
    """Merge two requests for the same fact: it is required if either requires it, because of both their claims."""
    return replace(
        first,
        because=tuple(dict.fromkeys((*first.because, *second.because))),
        required=first.required or second.required,
        deadline_s=max(first.deadline_s, second.deadline_s),
    )
