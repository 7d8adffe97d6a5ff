"""Whether the Paddle that a parameter-server job will run with has a parameter server at all."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import InvalidVersion, Version

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, unseen
from preflight_checks.probes.packages import packages
from preflight_checks.servers.server_layout import is_ps

#: The first release whose wheels hold no parameter server (PaddlePaddle/Paddle#73999).
FIRST_WITHOUT = Version("3.1.1")


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if is_ps(job):
        for node in fleet.reached:
            yield Request(probe_name(packages), node.name, context=True, deadline_s=8.0)


@check(
    "VER009",
    "paddle-without-parameter-server",
    plan=_plan,
    probes=(packages,),
    cost="reads the metadata of installed packages in the ranks' interpreter",
    severity=Severity.ERROR,
    evidence=("PaddlePaddle/Paddle#73999", "PaddlePaddle/Paddle#77412"),
)
def paddle_without_parameter_server(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The Paddle of a parameter-server job is a release whose wheels still hold the parameter server.

    What it checks: the version of paddlepaddle where servers and workers will run, read from package metadata, where
    the job starts parameter servers.

    Why it matters: from 3.1.1 on the wheels hold none. The launcher still takes the options and starts everybody, and
    the job dies in `minimize` with an import error, or with wrong arguments to `clone()`, which say nothing of it.

    Example: node-a has paddlepaddle 3.3.1, and the job starts two parameter servers with fleetrun --server_num=2.

    Fix: install paddlepaddle 3.0.0 or older for this job (2.6.2 with numpy below 2), or build it with the parameter
    server.

    Known limits: a build of your own that holds the parameter server passes only where its version says so, as with
    a local part (3.2.0+ps).

    Evidence: PaddlePaddle/Paddle#73999 (the build options were dropped), PaddlePaddle/Paddle#77412 (the sources too).
    """
    if not is_ps(job):
        yield not_applicable("paddle's parameter server", "the job has no parameter servers")
        return
    yield from unseen(facts, packages, "paddle's parameter server")
    have = facts.observed(packages)
    versions = {
        node: value.versions["paddlepaddle"] for node, value in have.items() if "paddlepaddle" in value.versions
    }
    without = {node: version for node, version in versions.items() if _is_without(version)}
    if without:
        node, version = next(iter(without.items()))
        has = "has" if len(without) == 1 else "have"
        yield failed(
            "paddle's parameter server",
            f"{fold(without)} {has} paddlepaddle {fold(dict.fromkeys(without.values()))}, whose wheels hold no "
            f"parameter server (since {FIRST_WITHOUT}), and this job starts some",
            at=Evidence("packages", f"paddlepaddle {version}", f"below {FIRST_WITHOUT}", node=node),
            nodes=tuple(without),
            remedy=f"Install paddlepaddle 3.0.0 or older on {fold(without)}, or build it with the parameter server.",
        )
    elif versions:
        yield passed(f"paddle's parameter server: {fold(dict.fromkeys(versions.values()))} on {len(versions)} nodes")
    elif have:
        yield not_applicable("paddle's parameter server", "no node has paddlepaddle in the ranks' interpreter")


def _is_without(text: str) -> bool:
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    return version >= FIRST_WITHOUT and not version.local
