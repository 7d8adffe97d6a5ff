"""What the checks of a run want to know: their requests, each once, and what nodes need to be sent to answer them."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace

from preflight.cutting import CutError, cut
from preflight.engine import SMOKE, selected
from preflight.job import Job
from preflight.judgement import Check, PlanRequests
from preflight.recording import Facts, Fleet, Recording, UnplannedCheck
from preflight.request import Request, probe_name


class Planner:
    """Asks the checks that a run selected. `unplanned` are those that could not plan, each with why.

    `checks` are the ones whose probes can be shipped, `shipped` the modules, with sources, that plugins' probes need.
    """

    def __init__(self, base: Recording, checks: Sequence[Check]) -> None:
        self._jobs = base.jobs
        self._only_smoke = base.verb == SMOKE
        #: Where only the smoke run counts: the probes that its checks look at.
        self._read = {probe_name(probe) for check in checks if check.when == "smoke" for probe in check.reads}
        self.unplanned: list[UnplannedCheck] = []
        self.shipped: dict[str, str] = {}
        self.checks: list[Check] = []
        for check in checks:
            if not selected(check.meta, base.configuration) and not (self._only_smoke and check.when == "node"):
                continue
            try:
                self.shipped.update(cut(check.probes))
                self.checks.append(check)
            except CutError as error:
                self.unplanned.extend(UnplannedCheck(check.meta.id, job.name, str(error)) for job in self._jobs)

    def plan(self, stage: str, fleet: Fleet, facts: Facts) -> list[Request]:
        """What the checks of this stage want to know, each request once."""
        return self._requests(stage, fleet, facts, [check.plan for check in self.checks])

    def follow_up(self, stage: str, fleet: Fleet, facts: Facts) -> list[Request]:
        """What the facts of this stage make necessary besides; some of it may have been asked already."""
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
            return list(plan(job, fleet, facts))
        except Exception:
            # Kept in the recording, where it makes the check's outcome unknown instead of looking like a pass.
            crashed = UnplannedCheck(check.meta.id, job.name, traceback.format_exc(limit=-4))
            if crashed not in self.unplanned:
                self.unplanned.append(crashed)
            return []


def _merged(first: Request, second: Request) -> Request:
    """Two checks want the same fact: it is required if either requires it, because of both their claims."""
    return replace(
        first,
        because=tuple(dict.fromkeys((*first.because, *second.because))),
        required=first.required or second.required,
        deadline_s=max(first.deadline_s, second.deadline_s),
    )
