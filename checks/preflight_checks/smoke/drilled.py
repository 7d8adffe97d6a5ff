"""A fault that the user has the smoke run play: who plays it, when it happened, and what is then to be expected."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from preflight.job import Job
from preflight.judgement import Verdict
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Severity, Status
from preflight.recording import Drill, EventRecord, Facts, Fleet
from preflight.request import Request
from reference_trainer import phases

Judge = Callable[[Job, Fleet, Facts], Iterable[Verdict]]
#: Who plays a drill that names nobody: the last one of the first of these that takes part.
_WHOM = ("rank", "worker", "server")
#: Before which collective, or in which step, it is played unless that is said: in the phase whose numbers are known.
STEPS = {"rank": 5, "worker": 1, "server": 1}
#: Seconds of each delay.
DELAY_S = {"rank": 0.5, "worker": 0.2, "server": 0.2}


@dataclass(frozen=True, slots=True)
class Played:
    """A drill as it was recorded: by whom, and when (seconds since the run began); `at_s` None where it never came."""

    drill: Drill
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


def with_drill(requests: Sequence[Request], drill: Drill | None, roles: Sequence[str]) -> Iterator[Request]:
    """The requests of a run, of which the one that the drill is for plays it.

    Args:
        roles: what each of the requests starts, by its place in the job.
    """
    number = _whose(drill, roles) if drill is not None else None
    for place, request in enumerate(requests):
        if drill is None or place != number:
            yield request
            continue
        role = roles[place]
        given = {
            "kind": drill.kind,
            "step": STEPS[role] if drill.step is None else drill.step,
            "seconds": DELAY_S[role],
        }
        yield replace(request, params={**request.params, "drill": given})


def _whose(drill: Drill, roles: Sequence[str]) -> int | None:
    """The place of the one who plays it; None where there is nobody like that."""
    role = drill.role or next((role for role in _WHOM if role in roles), "")
    places = [place for place, here in enumerate(roles) if here == role]
    index = len(places) - 1 if drill.index is None else drill.index
    return places[index] if 0 <= index < len(places) else None


def played(fleet: Fleet, facts: Facts) -> Played | None:
    """The drill as recorded; None where there was none, or nobody to play it."""
    drill = fleet.wish.drill
    if drill is None:
        return None
    for record in facts.records_of():
        params = record.request.params
        if record.request.group and "drill" in params:
            role = str(params.get("role", "rank"))
            index = int(params["rank"]) if role == "rank" else int(params["index"])
            key = record.request.key
            at_s = min((event.at_s for event in facts.events() if _tells(event, key)), default=None)
            return Played(drill, role, index, record.request.node, key, int(params["rank"]), at_s)
    return None


def _tells(event: EventRecord, key: str) -> bool:
    return event.request_key == key and event.data.get("event") == phases.DRILL


def drillable(*kinds: str) -> Callable[[Judge], Judge]:
    """Of a check: what it finds because of a drill of these kinds is as expected, and counts as information.

    With `kill`, `stop` and `delay` only what it says of the node of whoever played it.
    """

    def decorate(judge: Judge) -> Judge:
        @functools.wraps(judge)
        def judged(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
            drill = fleet.wish.drill
            found = played(fleet, facts) if drill is not None and drill.kind in kinds else None
            for verdict in judge(job, fleet, facts):
                yield _expected(verdict, found) if found is not None and _because_of(verdict, found) else verdict

        return judged

    return decorate


def _because_of(verdict: Verdict, found: Played) -> bool:
    if verdict.status is not Status.FAIL or found.at_s is None:
        return False
    return found.drill.kind in ("loss", "double", "flip") or found.node in verdict.nodes


def _expected(verdict: Verdict, found: Played) -> Verdict:
    said = f"as expected of the drill {found.drill.spelled}: {verdict.message}"
    return replace(verdict, message=said, severity=Severity.INFO, remedy="Nothing: this fault was asked for.")
