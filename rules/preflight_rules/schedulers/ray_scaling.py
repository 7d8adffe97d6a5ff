"""Ray Train's ScalingConfig: arguments that Ray rejects when it is created."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Unresolved
from preflight.model.job.quantities import SECTION
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.data_tables import table
from preflight_rules.helpers import distinct, placed, quoted
from preflight_rules.settings.conditions import GIVEN, Section, UnknownValue, holds
from preflight_rules.settings.tables import in_range, pinned

_PREFIX = "setting.ray."


@rule(
    "RAY022",
    "scaling-config-refused",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no script creates a ScalingConfig",
    evidence=(
        ("ray/train/v2/api/config.py", "https://docs.ray.io/en/latest/train/api/doc/ray.train.ScalingConfig.html"),
        "Ray's documentation of ScalingConfig",
    ),
)
def scaling_config_refused(job: Job) -> Iterator[Verdict]:
    """Ray rejects a ScalingConfig: an argument it does not have, a value, or two that contradict each other.

    What it checks: The arguments of each `ScalingConfig(...)` are compared with a table of what its constructor
    rejects.

    Why it matters: The driver stops with a TypeError or ValueError after the cluster was started.

    Example: `ScalingConfig(num_workers=8, resources_per_worker={"GPU": 1})` without `use_gpu=True`.

    Fix: The finding names the change for its condition.

    Known limits: Arguments that are known only at run time are not judged. What only Ray 2.51 and newer rejects is a
    warning unless the job's files pin a release.
    """
    calls = distinct(job.about("ray_scaling"))
    version = pinned(job, "ray")
    for call in calls:
        found = list(_judged(job.name, call, version))
        yield from found or [passed(job.name)]


def _judged(subject: str, call: Claim, version: str) -> Iterator[Verdict]:
    keys = {claim.quantity.removeprefix(_PREFIX): claim for claim in call.because}
    data = table("ray_scaling")
    for key, claim in keys.items():
        if "." not in key and key not in data["arguments"]:
            meant = data["meant"].get(key, "")
            yield failed(
                subject,
                f"{quoted(claim)}: ScalingConfig has no argument "
                f"`{key}`{f'; `{meant}` is probably meant' if meant else ''}.",
                at=claim,
                remedy=f"Use `{meant}`." if meant else "Remove it.",
            )
    for row in data["refusal"]:
        applies = in_range(version, row.get("since", ""), "")
        blamed = [keys[key] for key in row["at"] if key in keys]
        if applies is False or not blamed:
            continue
        try:
            if not holds(row["when"], lambda key: _value(keys, key)):
                continue
        except UnknownValue as error:
            yield unknown(subject, f"{error} is unknown, and {row['why']}", at=blamed[0])
            continue
        first, *rest = blamed
        yield failed(
            subject,
            f"{quoted(first)}{''.join(f' and {placed(claim)}' for claim in rest)}: {row['why']}, so Ray stops with an"
            f" error{'' if applies else ' (since Ray ' + row['since'] + ')'}.",
            at=first,
            also=tuple((claim, "with this") for claim in rest),
            remedy=row["remedy"],
            severity=None if applies else Severity.WARNING,
        )


def _value(keys: dict[str, Claim], key: str) -> Any:
    """The value of an argument, of a resource, or of a bound of the workers; None if it is not given."""
    if key.startswith(GIVEN):
        return key.removeprefix(GIVEN) in keys
    if key in ("workers.least", "workers.most"):
        return _bound(keys, 0 if key.endswith("least") else 1)
    claim = keys.get(key)
    if claim is None:
        return None
    if isinstance(claim.value, Unresolved) or len(claim.alternatives) != 1:
        raise UnknownValue(f"`{claim.spelling}`")
    found = claim.alternatives[0]
    return Section() if found == SECTION else found


def _bound(keys: dict[str, Claim], which: int) -> int | None:
    if "num_workers" not in keys:
        return 1
    value = _value(keys, "num_workers")
    if isinstance(value, int):
        return value
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(item, int) for item in value):
        return int(str(value[which]))
    return None
