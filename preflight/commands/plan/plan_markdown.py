"""A plan, or the change of one, as Markdown for a comment on a pull request."""

from __future__ import annotations

from collections.abc import Iterator

from preflight._util.sanitize import clean
from preflight.commands.plan.job_plan import LaunchPlan, Plan
from preflight.commands.plan.plan_changes import Change
from preflight.commands.plan.plan_sections import facts_of, rank_table, request_of, size_of, summary_of


def markdown(plan: Plan) -> str:
    """Return the plan as Markdown."""
    return "\n".join(_lines(plan)) + "\n"


def changes_markdown(changes: tuple[Change, ...]) -> str:
    """Return what changes for the ranks, as Markdown."""
    if not changes:
        return "## preflight plan\n\nNothing changes for the ranks.\n"
    lines = [
        "## preflight plan: what changes for the ranks",
        "",
        "| launch | what | before | after |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {_code(change.launch)} | {_cell(change.what)} | {_code(change.before)} | {_code(change.after)} |"
        for change in changes
    ]
    return "\n".join(lines) + "\n"


def _lines(plan: Plan) -> Iterator[str]:
    yield "## preflight plan"
    if plan.assumed:
        yield ""
        yield f"Defaults unless these variables are set in the environment: {', '.join(map(_code, plan.assumed))}"
    for job in plan.jobs:
        yield ""
        yield f"### {_cell(job.name)}"
        yield ""
        yield f"{summary_of(job)}. {request_of(job.request)}".strip()
        for launch in job.launches:
            yield from _launch(launch)
        for reason in job.unread:
            yield f"- not read: {_cell(reason)}"


def _launch(launch: LaunchPlan) -> Iterator[str]:
    yield ""
    command = _code(f"{launch.launcher} {launch.program}".strip())
    yield f"#### {command} at {_code(str(launch.place))}: {size_of(launch)}"
    yield ""
    for number, row in enumerate(rank_table(launch)):
        yield f"| {' | '.join(map(_cell, row))} |"
        if not number:
            yield f"|{'---|' * len(row)}"
    yield ""
    yield "| | | where |"
    yield "|---|---|---|"
    for fact in facts_of(launch, everything=False):
        where = ", ".join(_code(str(place)) for place in fact.places)
        yield f"| {_cell(fact.label)} | {_cell(fact.text)} | {where} |"


def _cell(text: str) -> str:
    """Escape text for one cell of a Markdown table."""
    plain = clean(" ".join(text.split()))
    for sign in ("\\", "`", "*", "_", "<", ">", "|", "[", "]", "#", "@", "!"):
        plain = plain.replace(sign, f"\\{sign}")
    return plain


def _code(text: str) -> str:
    plain = clean(" ".join(text.split())).replace("`", "'").replace("|", "\\|")
    return f"`{plain}`" if plain else ""
