"""What a word of a job's file decides for its ranks, and the places that override or contradict it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from lsprotocol import types

from preflight._util.sanitize import clean
from preflight.commands.plan.compose import setting_of, shown
from preflight.commands.plan.job_plan import LaunchPlan, RankRow, Setting
from preflight.commands.plan.plan_pages import size_of
from preflight.model.findings import Location
from preflight.model.job import Claim, Job, Launch, Relation
from preflight.model.job.quantities import ENVIRONMENT_PREFIX, QUANTITIES, SETTING_PREFIX
from preflight.services.language_server.diagnostics import Places
from preflight.services.language_server.folder import Folder, JudgedJob, Text

#: Launches, rows of ranks and places that one hover lists.
MAX_LAUNCHES, MAX_ROWS, MAX_PLACES = 4, 8, 6
#: What readers note about the text of a program or a command, beside the quantity that the text is about.
_ASIDE = frozenset(
    (
        *("chosen_value", "deepspeed_key", "declared_options", "argument_default", "entry_point"),
        "program_outcome",
        "config_of_option",
        *("batch_directive", "batch_option"),
    )
)
#: Quantities that decide how many ranks there are and where.
_LAYOUT = frozenset(
    ("nodes", "processes_per_node", "world_size", "tasks", "tasks_per_node", "ps_servers", "ps_workers")
)
_MARKUP = re.compile(r"([\\`*\[\]<>#!|&_])")


def claims_at(job: Job, path: str, text: Text, line: int, column: int) -> list[Claim]:
    """The claims that the word at a place makes, narrowest first.

    Args:
        job: its claims are searched.
        path: the file.
        text: its text.
        line, column: the place, counted from 1.
    """
    here = [claim for claim in job.claims if claim.span.path == path and claim.source != "derived"]
    found = [claim for claim in here if _covers(claim, line, column)]
    if not any(map(_is_named, found)):
        # The claim of `"train_batch_size": 100` is at the number; a person points at the name.
        written = text.line(line)
        after = [claim for claim in here if claim.span.line == line and claim.span.column > column]
        nearest = min((claim.span.column for claim in after if _is_named(claim)), default=0)
        between = written[column - 1 : max(nearest - 1, 0)]
        if (":" in between or "=" in between) and "," not in between:
            found += [claim for claim in after if claim.span.column == nearest]
    # A key of a framework is often a quantity, too, which says more and can be set elsewhere.
    named = [claim for claim in found if _is_named(claim)] or [one for one in found if not _is_aside(one)]
    smallest = min(map(_size, named), default=None)
    return list({claim.quantity: claim for claim in named if _size(claim) == smallest}.values())


def _is_named(claim: Claim) -> bool:
    return not _is_aside(claim) and not claim.quantity.startswith(SETTING_PREFIX)


def _is_aside(claim: Claim) -> bool:
    return claim.quantity in _ASIDE or claim.quantity.startswith("step_")


def hover_text(
    jobs: Sequence[Job], plans: Sequence[Sequence[LaunchPlan]], path: str, text: Text, at: tuple[int, int]
) -> str:
    """Markdown about the word at a place; empty if it decides nothing.

    Args:
        jobs: those that the file belongs to.
        plans: the launches of each.
        path: the file.
        text: its text.
        at: line and column, counted from 1.
    """
    parts: list[str] = []
    for job, launches in zip(jobs, plans, strict=True):
        claims = claims_at(job, path, text, *at)
        for claim in claims[:MAX_PLACES]:
            parts += _about(job, launches, claim)
    return "\n\n".join(dict.fromkeys(parts))


def _about(job: Job, plans: Sequence[LaunchPlan], claim: Claim) -> Iterator[str]:
    launches = [launch for launch in job.launches if claim.scope.launch in ("", launch.id)]
    count = 0
    sections: list[str] = []
    for launch in launches:
        setting = setting_of(job, launch, claim.quantity)
        if setting is None:
            continue
        count += 1
        if count > MAX_LAUNCHES:
            continue
        plan = next((one for one in plans if one.id == launch.id), None)
        sections.append("\n".join(_of_launch(job, launch, plan, claim, setting)))
    if count > MAX_LAUNCHES:
        sections.append(f"{count - MAX_LAUNCHES} more launches of this job have it, too.")
    if sections:
        yield _heading(claim)
        yield from sections


def _heading(claim: Claim) -> str:
    name = claim.quantity.removeprefix(ENVIRONMENT_PREFIX).removeprefix(SETTING_PREFIX)
    known = QUANTITIES.get(claim.quantity)
    meaning = f": {known.meaning}" if known is not None else ""
    if claim.quantity.startswith(ENVIRONMENT_PREFIX):
        meaning = ": a variable of the ranks"
    return f"**{_plain(name)}**{_plain(meaning)}"


def _of_launch(job: Job, launch: Launch, plan: LaunchPlan | None, claim: Claim, setting: Setting) -> Iterator[str]:
    program = f" {launch.program}" if launch.program else ""
    size = f", {size_of(plan)}" if plan is not None else ""
    yield f"{_code(launch.launcher + program)} ({_plain(launch.id)}){_plain(size)}"
    unit = f" {setting.unit}" if setting.unit and setting.known else ""
    value = f"{_code(setting.value)}{unit}" if setting.known else _plain(setting.value)
    rows = plan.ranks if plan is not None else ()
    yield f"- value: {value}, {_for_whom(rows, claim)}"
    decider = f"{_code(setting.spelling)} at {_plain(str(setting.place))}"
    here = _code(claim.spelling)
    told: set[tuple[str, int]] = {_line_of(claim)}
    if (*_at_of(setting), setting.spelling) == (*_line_of(claim), claim.spelling):
        yield f"- decided here by {decider}"
        for other in job.setting(claim.quantity, launch.scope) if claim.relation is Relation.REQUIRES else ():
            if other.value != claim.value:
                told.add(_line_of(other))
                yield f"- not what {_code(other.spelling)} at {_at(other)} gives: {_code(shown(other.value))}"
        if claim.origin is not None:
            yield "- assigned at " + _plain(f"{claim.origin.path}:{claim.origin.line}")
        if claim.condition:
            yield f"- only in the branch {_code(claim.condition)}"
    elif shown(claim.value) == setting.value:
        yield f"- {here} here says the same as {decider}, which decides"
    elif claim.relation is Relation.REQUIRES:
        yield f"- {here} here expects another value; {decider} decides"
    elif any(
        one.relation is Relation.REQUIRES and (*_line_of(one), one.spelling) == (*_at_of(setting), setting.spelling)
        for one in job.about(claim.quantity, launch.scope)
    ):
        yield f"- {here} here gives another value than {decider} expects"
    else:
        yield f"- overridden: {here} here has no effect on these ranks; {decider} decides"
    for one in [one for one in setting.overrides if (one.place.path, one.place.line) not in told][:MAX_PLACES]:
        yield f"- overrides {_code(one.spelling)} at {_plain(str(one.place))}"
    name = claim.quantity.removeprefix(ENVIRONMENT_PREFIX)
    if plan is not None and name in plan.kept_variables:
        yield "- only ranks on the machine of the launcher get it; the launcher does not pass it to other hosts"
    if claim.quantity in _LAYOUT:
        yield from (f"- {_row(row)}" for row in rows[:MAX_ROWS])
        if len(rows) > MAX_ROWS:
            yield f"- and {len(rows) - MAX_ROWS} more rows; `preflight plan` shows all"


def _for_whom(rows: Iterable[RankRow], claim: Claim) -> str:
    scope = claim.scope
    if scope.rank is not None:
        return f"for rank {scope.rank}"
    if scope.node:
        return f"for the ranks on {_code(scope.node)}"
    if scope.role:
        return f"for every {_plain(scope.role)}"
    listed = list(rows)
    if len(listed) == 1 and listed[0].role == "rank":
        return f"for rank{'s' if '-' in listed[0].ranks else ''} {_plain(listed[0].ranks)}"
    return "for every rank of this launch"


def _row(row: RankRow) -> str:
    node = f" on node {row.node}" if row.node else ""
    host = f" ({row.host})" if row.host else ""
    devices = f", {row.devices}" if row.devices else ""
    return _plain(f"{row.role} {row.ranks}{node}{host}{devices}")


def _covers(claim: Claim, line: int, column: int) -> bool:
    span = claim.span
    return (span.line, span.column) <= (line, column) <= (span.end_line, span.end_column) and span.snippet != ""


def _size(claim: Claim) -> tuple[int, int]:
    return claim.span.end_line - claim.span.line, claim.span.end_column - claim.span.column


def _line_of(claim: Claim) -> tuple[str, int]:
    return claim.span.path, claim.span.line


def _at_of(setting: Setting) -> tuple[str, int]:
    return setting.place.path, setting.place.line


def _at(claim: Claim) -> str:
    return _plain(f"{claim.span.path}:{claim.span.line}")


def _plain(text: str) -> str:
    """Text of a file in Markdown: nothing of it is a link, a picture or HTML."""
    return _MARKUP.sub(r"\\\1", clean(text))


def _code(text: str) -> str:
    """Text of a file as code in Markdown."""
    code = clean(text).strip()[:200]
    if not code:
        return "(empty)"
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {code} {fence}" if longest else f"`{code}`"


#: Places that one answer lists.
MAX_LOCATIONS = 200


def definitions(folder: Folder, path: str, at: tuple[int, int]) -> list[types.Location]:
    """The places that decide the meaning of a place: the other side of a contradiction, the claim that overrides it,
    and where its value is assigned.

    Args:
        folder: its jobs are searched.
        path: the file, relative to the folder.
        at: line and column, counted from 1.
    """
    places = Places(folder)
    found: list[Location] = []
    for judged in folder.jobs_with(path):
        found += _other_places(judged, path, at)
        for claim in claims_at(judged.job, path, places.text(path), *at):
            found += _sources(judged.job, claim)
    return _located([one for one in found if not _contains(one, path, at)], places)


def references(folder: Folder, path: str, at: tuple[int, int]) -> list[types.Location]:
    """Every place of the job that states the same quantity or setting, and the places of findings about it."""
    places = Places(folder)
    found: list[Location] = []
    for judged in folder.jobs_with(path):
        for claim in claims_at(judged.job, path, places.text(path), *at):
            found += [Location.at(one.span) for one in judged.job.about(claim.quantity) if _is_written(one)]
        found += _other_places(judged, path, at)
    return _located(found, places)


def _other_places(judged: JudgedJob, path: str, at: tuple[int, int]) -> Iterator[Location]:
    for finding in judged.report.findings if judged.report is not None else ():
        if any(_contains(location, path, at) for location in finding.locations):
            yield from finding.locations


def _sources(job: Job, claim: Claim) -> Iterator[Location]:
    for launch in job.launches:
        if claim.scope.launch not in ("", launch.id):
            continue
        for winner in job.value_claims(claim.quantity, launch.scope):
            for written in (winner, *winner.because) if winner.source == "derived" else (winner,):
                if _is_written(written) and written.span != claim.span:
                    yield Location.at(written.span)
    if claim.origin is not None:
        yield Location.at(claim.origin)


def _is_written(claim: Claim) -> bool:
    return claim.source != "derived"


def _contains(location: Location, path: str, at: tuple[int, int]) -> bool:
    start, end = (location.line, location.column), (location.end_line, location.end_column)
    return location.path == path and start <= at <= end


def _located(found: Sequence[Location], places: Places) -> list[types.Location]:
    located = {(one.path, one.line, one.column, one.end_line, one.end_column): one for one in found if one.path}
    return [places.location(one) for one in list(located.values())[:MAX_LOCATIONS]]
