"""Plans the facts that the checks of a run need: each request once, and the modules that nodes need to answer them."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace

from preflight._util.redaction import scrub_traceback
from preflight.engine.evaluate import selected
from preflight.engine.isolation import judged
from preflight.executors.probe_extraction import ExtractionError, extract
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Recording, UnplannedCheck
from preflight.model.requests import Request, probe_name
from preflight.model.stages import SMOKE
from preflight.plugins.authoring import Check, PlanRequests


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
