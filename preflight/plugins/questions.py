"""The subjects that rules judge."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.job import WHOLE_JOB, Job, Launch, Scope


def subjects(job: Job) -> Iterator[tuple[str, Scope, Launch | None]]:
    """Each launch with its id and scope; the job as a whole when it has no launch."""
    if not job.launches:
        yield job.name, WHOLE_JOB, None
    for launch in job.launches:
        yield launch.id, launch.scope, launch
