"""Differences between two plans of the same job, as seen by the ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.commands.plan.job_plan import LaunchPlan, Plan, Setting
from preflight.commands.plan.plan_sections import request_of, size_of

#: The subject of a change that does not concern ranks: files that could not be compared.
NOT_READ = "not read"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference.

    Args:
        launch: the launcher and its program; the job's name for what concerns the whole job.
        what: the change.
        before, after: empty if there was, or is, no value.
    """

    launch: str
    what: str
    before: str
    after: str


def changes_between(old: Plan, new: Plan) -> tuple[Change, ...]:
    """Return the differences for each launch. Launches that start the same program with the same launcher are matched
    in order; moved lines are not a difference.
    """
    return tuple(_changes(old, new))


def _changes(old: Plan, new: Plan) -> Iterator[Change]:
    before, after = _by_name(old), _by_name(new)
    for name in dict.fromkeys((*before, *after)):
        was, will = before.get(name), after.get(name)
        if will is None and was is not None:
            yield Change(name, "launch", size_of(was), "")
        elif was is None and will is not None:
            yield Change(name, "launch", "", size_of(will))
        elif was is not None and will is not None:
            yield from _of_launch(name, was, will)
    requests = [" + ".join(filter(None, (request_of(job.request) for job in plan.jobs))) for plan in (old, new)]
    if requests[0] != requests[1]:
        yield Change("", "asks for", *requests)
    yield from _unread(old, new)


def _unread(old: Plan, new: Plan) -> Iterator[Change]:
    """The files that were not read, as changes, because anything in them may have changed."""
    was, will = (tuple(dict.fromkeys(reason for job in plan.jobs for reason in job.unread)) for plan in (old, new))
    if was != will or is_incomplete(old) or is_incomplete(new):
        yield Change("", NOT_READ, "; ".join(was), "; ".join(will))


def is_incomplete(plan: Plan) -> bool:
    """Whether a file that was selected was not read to its end."""
    return any(job.incomplete for job in plan.jobs)


def _by_name(plan: Plan) -> dict[str, LaunchPlan]:
    found: dict[str, LaunchPlan] = {}
    for job in plan.jobs:
        for launch in job.launches:
            name = f"{launch.launcher} {launch.program.rpartition('/')[2]}".strip()
            number = sum(other == name or other.startswith(f"{name} #") for other in found)
            found[f"{name} #{number + 1}" if number else name] = launch
    return found


def _of_launch(name: str, was: LaunchPlan, will: LaunchPlan) -> Iterator[Change]:
    if size_of(was) != size_of(will):
        yield Change(name, "size", size_of(was), size_of(will))
    for what, before, after in (
        ("ranks", _rows(was), _rows(will)),
        ("inside", " > ".join(was.inside), " > ".join(will.inside)),
        ("only if", was.condition, will.condition),
        ("grid", was.grid.equation if was.grid else "", will.grid.equation if will.grid else ""),
        ("batch", was.batch.equation if was.batch else "", will.batch.equation if will.batch else ""),
        ("GPU memory in bytes", _memory(was), _memory(will)),
        ("servers", was.servers, will.servers),
        ("arguments", _arguments(was), _arguments(will)),
        ("endpoints", _endpoints(was), _endpoints(will)),
    ):
        if before != after:
            yield Change(name, what, before, after)
    for kind, settings_before, settings_after in (
        ("variable", (*was.variables, *was.interfaces), (*will.variables, *will.interfaces)),
        ("path", was.paths, will.paths),
        ("setting", was.settings, will.settings),
    ):
        yield from _of_settings(name, kind, settings_before, settings_after)


def _of_settings(name: str, kind: str, before: Sequence[Setting], after: Sequence[Setting]) -> Iterator[Change]:
    was, will = ({setting.name: setting.value for setting in settings} for settings in (before, after))
    for key in sorted({*was, *will}):
        if was.get(key) != will.get(key):
            yield Change(name, f"{kind} {key}", was.get(key, ""), will.get(key, ""))


def _rows(launch: LaunchPlan) -> str:
    return "; ".join(
        " ".join(filter(None, (row.role, row.ranks, row.host and f"on {row.host}", row.devices)))
        for row in launch.ranks
    )


def _memory(launch: LaunchPlan) -> str:
    return str(sum(part.size_bytes for part in launch.memory)) if launch.memory else ""


def _arguments(launch: LaunchPlan) -> str:
    return " ".join("..." if word is None else word for word in launch.arguments)


def _endpoints(launch: LaunchPlan) -> str:
    return ", ".join(f"{endpoint.address} ({endpoint.purpose})" for endpoint in launch.endpoints)
