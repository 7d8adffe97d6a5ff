"""The framework of a smoke run: Paddle for the jobs that train with it, where it is installed; otherwise torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight_checks.probes.packages import packages
from preflight_checks.requirements.hosts import fold

#: Launchers that start ranks of Paddle.
_LAUNCHERS = ("paddle.distributed.launch", "fleetrun")
#: Quantities that only scripts of Paddle state.
_OF_PADDLE = ("fleet_calls", "imports_fluid", "parallel_environment")
#: Modes that the reference trainer has, and Paddle's servers have not.
_OWN_MODES = ("ssp",)


@dataclass(frozen=True, slots=True)
class Framework:
    """The framework that every process is started with.

    Args:
        name: `paddle`, or empty: torch if the interpreter has it, else paddle.
        untested: why it is not the one that the job trains with; empty if it is.
    """

    name: str = ""
    untested: str = ""


def framework_of(job: Job, fleet: Fleet, facts: Facts) -> Framework:
    """The framework of all processes: paddle if the job trains with it and any node has it.

    On a node without it the process then fails by name, as in the job.
    """
    options = fleet.smoke_options
    if not trains_with_paddle(job):
        return Framework()
    if options.mode in _OWN_MODES or options.backup:
        chosen = f"--mode {options.mode}" if options.mode in _OWN_MODES else "--backup"
        return Framework(
            "torch", f"the job trains with Paddle, which has no {chosen}: preflight's own servers ran in torch"
        )
    seen = {node.name: facts.of(packages, node.name) for node in fleet.nodes}
    known = {node: fact.value for node, fact in seen.items() if isinstance(fact, Observed)}
    if any(value.paddle is not None for value in known.values()):
        return Framework("paddle")
    if len(known) < len(seen) or not known:
        return Framework()
    return Framework(
        "", f"the job trains with Paddle, which is not installed on {fold(known)}: the same was run in torch instead"
    )


def trains_with_paddle(job: Job) -> bool:
    """Whether a launcher, or the script, is Paddle's."""
    return any(launch.launcher in _LAUNCHERS for launch in job.launches) or any(True for _ in _paddle_claims(job))


def _paddle_claims(job: Job) -> Iterator[Claim]:
    for quantity in _OF_PADDLE:
        yield from job.about(quantity)
    yield from (claim for claim in job.about("imported_framework") if "paddle" in claim.alternatives)
    yield from (claim for claim in job.about("ps_mode") if claim.source == "paddle")
