"""The address of `ray job submit`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule
from preflight_rules.helpers import quoted, undecided
from preflight_rules.schedulers.ray_start import CLIENT_PORT, starts_of


@rule(
    "RAY006",
    "ray-job-sent-to-wrong-address",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no `ray job submit` names an address",
    evidence=(
        (
            "Ray documentation, job submission",
            "https://docs.ray.io/en/latest/cluster/running-applications/job-submission/quickstart.html",
        ),
        (
            "ray/dashboard/modules/dashboard_sdk.py, parse_cluster_info",
            "https://github.com/ray-project/ray/blob/master/python/ray/dashboard/modules/dashboard_sdk.py",
        ),
    ),
)
def ray_job_sent_to_wrong_address(job: Job) -> Iterator[Verdict]:
    """`ray job submit` is given an address that accepts no jobs.

    What it checks: The address of `ray job submit`, or RAY_ADDRESS in its environment, is that of the dashboard
    (`http://HOST:8265`), not of Ray Client (`ray://`, port 10001) and not the head's own port (6379).

    Why it matters: The dashboard accepts jobs over HTTP. With `ray://` the command stops; the other ports do not serve
    HTTP, and it fails or hangs.

    Example: `ray job submit --address ray://head:10001 -- python train.py`.

    Fix: `--address http://head:8265`.

    Known limits: A dashboard that was moved to one of those ports is not known; a port is therefore only a warning.
    """
    for launch, _ in starts_of(job, "submit"):
        given = job.setting("ray_submit_address", launch.scope) or job.setting("env.RAY_ADDRESS", launch.scope)
        if not given:
            continue
        undecided_verdict = undecided(launch.id, given, launch)
        found = texts(job_value(given))
        if undecided_verdict is not None:
            yield undecided_verdict
        elif found and all(text.startswith("ray://") for text in found):
            yield _wrong_address(launch, given[0], "is an address for Ray Client, which does not accept jobs", None)
        elif found and all(re.search(rf":(?:{CLIENT_PORT}|6379)/?$", text) for text in found):
            yield _wrong_address(
                launch, given[0], "is not the port of the dashboard, which accepts jobs", Severity.WARNING
            )
        else:
            yield passed(launch.id)


def _wrong_address(launch: Launch, claim: Claim, fault: str, severity: Severity | None) -> Verdict:
    return failed(
        launch.id,
        f"{quoted(claim)} {fault}.",
        at=claim,
        also=((launch, "sent from here"),),
        remedy="Use the dashboard: --address http://HOST:8265.",
        severity=severity,
    )
