"""A fault that the user injects into the smoke run: its process, its time, and the expected findings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from preflight.agent import rank_events
from preflight.model.findings import Severity, Status
from preflight.model.job import Job
from preflight.model.recording import EventRecord, Facts, Fleet, InjectedFault
from preflight.model.requests import Request
from preflight.plugins.authoring import Verdict

Judge = Callable[[Job, Fleet, Facts], Iterable[Verdict]]
#: The kinds of processes that take a fault without a target; the last process of the first kind that takes part.
_DEFAULT_TARGETS = ("rank", "worker", "server")
#: The default collective or step of the fault, in the phase with known results.
STEPS = {"rank": 5, "worker": 1, "server": 1}
#: Seconds of each injected delay.
DELAY_S = {"rank": 0.5, "worker": 0.2, "server": 0.2}


@dataclass(frozen=True, slots=True)
class AppliedFault:
    """An injected fault as recorded: its process, and its time in the run (`at_s`, None if it did not happen)."""

    fault: InjectedFault
    role: str
    index: int
    node: str
    key: str
    rank: int
    at_s: float | None

    @property
    def title(self) -> str:
        """`worker 1 on node-b`."""
        return f"{self.role} {self.index} on {self.node}"


def with_injected_fault(
    requests: Sequence[Request], fault: InjectedFault | None, roles: Sequence[str]
) -> Iterator[Request]:
    """The requests of a run, with the fault injected into the one that it targets.

    Args:
        roles: the kind of process that each request starts.
    """
    number = _target_index(fault, roles) if fault is not None else None
    for place, request in enumerate(requests):
        if fault is None or place != number:
            yield request
            continue
        role = roles[place]
        given = {
            "kind": fault.kind,
            "step": STEPS[role] if fault.step is None else fault.step,
            "seconds": DELAY_S[role],
        }
        yield replace(request, params={**request.params, "injected_fault": given})


def _target_index(fault: InjectedFault, roles: Sequence[str]) -> int | None:
    """The index of the request that the fault targets; None if there is none."""
    role = fault.role or next((role for role in _DEFAULT_TARGETS if role in roles), "")
    places = [place for place, here in enumerate(roles) if here == role]
    index = len(places) - 1 if fault.index is None else fault.index
    return places[index] if 0 <= index < len(places) else None


def applied_fault(fleet: Fleet, facts: Facts) -> AppliedFault | None:
    """The injected fault as recorded; None if there was none, or no target."""
    fault = fleet.smoke_options.injected_fault
    if fault is None:
        return None
    for record in facts.records_of():
        params = record.request.params
        if record.request.group and "injected_fault" in params:
            role = str(params.get("role", "rank"))
            index = int(params["rank"]) if role == "rank" else int(params["index"])
            key = record.request.key
            at_s = min((event.at_s for event in facts.events() if _reports(event, key)), default=None)
            return AppliedFault(fault, role, index, record.request.node, key, int(params["rank"]), at_s)
    return None


def _reports(event: EventRecord, key: str) -> bool:
    return event.request_key == key and event.data.get("event") == rank_events.FAULT_INJECTED


def may_fail_by_injection(*kinds: str) -> Callable[[Judge], Judge]:
    """Decorator of a check: findings that an injected fault of these kinds causes are expected, and become information.

    With `kill`, `stop` and `delay`, only findings about the target's node.
    """

    def decorate(judge: Judge) -> Judge:
        @functools.wraps(judge)
        def judged(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
            fault = fleet.smoke_options.injected_fault
            found = applied_fault(fleet, facts) if fault is not None and fault.kind in kinds else None
            for verdict in judge(job, fleet, facts):
                yield _expected(verdict, found) if found is not None and _is_caused_by(verdict, found) else verdict

        return judged

    return decorate


def _is_caused_by(verdict: Verdict, found: AppliedFault) -> bool:
    if verdict.status is not Status.FAIL or found.at_s is None:
        return False
    return found.fault.kind in ("loss", "double", "flip") or found.node in verdict.nodes


def _expected(verdict: Verdict, found: AppliedFault) -> Verdict:
    message = f"as expected of the injected fault {found.fault.option_text}: {verdict.message}"
    return replace(
        verdict, message=message, severity=Severity.INFO, remedy="Nothing: this fault was injected on request."
    )
