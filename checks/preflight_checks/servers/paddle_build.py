"""Checks that the Paddle of a parameter-server job includes a parameter server."""

from __future__ import annotations

from collections.abc import Iterator

from packaging.version import Version

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed
from preflight_checks.planning import missing_facts, on_every_node
from preflight_checks.probes.packages import packages
from preflight_checks.requirements.endpoints import is_ps
from preflight_checks.requirements.hosts import fold

#: The first release whose wheels have no parameter server (PaddlePaddle/Paddle#73999).
FIRST_WITHOUT = Version("3.1.1")


@check(
    "VER009",
    "paddle-without-parameter-server",
    plan=on_every_node(packages, when=lambda job, fleet: is_ps(job), context=True, deadline_s=8.0),
    probes=(packages,),
    cost="reads the metadata of installed packages in the ranks' interpreter",
    severity=Severity.ERROR,
    evidence=(
        ("the build options were dropped", "PaddlePaddle/Paddle#73999"),
        ("the sources too", "PaddlePaddle/Paddle#77412"),
    ),
)
def paddle_without_parameter_server(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The Paddle of a parameter-server job is a release whose wheels include the parameter server.

    What it checks: the version of paddlepaddle where servers and workers will run, read from package metadata, where
    the job starts parameter servers.

    Why it matters: wheels from 3.1.1 on lack it. The launcher still accepts the options and starts all processes, and
    the job dies in `minimize` with an import error or wrong arguments to `clone()`, which do not mention the cause.

    Example: node-a has paddlepaddle 3.3.1, and the job starts two parameter servers with fleetrun --server_num=2.

    Fix: install paddlepaddle 3.0.0 or older for this job (2.6.2 with numpy below 2), or build it with the parameter
    server.

    Known limits: your own build with the parameter server passes only if its version has a local part (3.2.0+ps).
    """
    if not is_ps(job):
        yield not_applicable("paddle's parameter server", "the job has no parameter servers")
        return
    yield from missing_facts(facts, packages, "paddle's parameter server")
    observed = facts.observed(packages)
    versions = {
        node: value.versions["paddlepaddle"] for node, value in observed.items() if "paddlepaddle" in value.versions
    }
    without = {node: version for node, version in versions.items() if _is_without(version)}
    if without:
        node, version = next(iter(without.items()))
        has = "has" if len(without) == 1 else "have"
        yield failed(
            "paddle's parameter server",
            f"{fold(without)} {has} paddlepaddle {fold(dict.fromkeys(without.values()))}, whose wheels have no "
            f"parameter server (since {FIRST_WITHOUT}), and this job needs it",
            at=Evidence("packages", f"paddlepaddle {version}", f"below {FIRST_WITHOUT}", node=node),
            nodes=tuple(without),
            remedy=f"Install paddlepaddle 3.0.0 or older on {fold(without)}, or build it with the parameter server.",
        )
    elif versions:
        yield passed(f"paddle's parameter server: {fold(dict.fromkeys(versions.values()))} on {len(versions)} nodes")
    elif observed:
        yield not_applicable("paddle's parameter server", "no node has paddlepaddle in the ranks' interpreter")


def _is_without(text: str) -> bool:
    try:
        version = Version(text)
    # `int` also refuses thousands of digits.
    except ValueError:
        return False
    return version >= FIRST_WITHOUT and not version.local
