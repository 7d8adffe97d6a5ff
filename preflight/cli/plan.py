"""`preflight plan`: what every rank will run, according to the files."""

from __future__ import annotations

from pathlib import Path

import click

from preflight.cli import options

FORMATS = ("text", "json", "html", "markdown")


@click.command()
@options.PATHS
@options.ROOT
@options.VARIABLES
@click.option(
    "--changes",
    is_flag=True,
    help="PATHS are an old and a new version of a job: show only what changes for the ranks. Implied by two folders.",
)
@click.option(
    "--price-per-gpu-hour", type=click.FloatRange(min=0), metavar="PRICE", help="Price of one GPU-hour, to show costs."
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[:FILE]",
    help="Write the plan as text (default), json, html or markdown. Repeatable.",
)
@click.option("-v", "--verbose", count=True, help="List every setting that was read.")
@click.option("--color/--no-color", default=None, help="Use colours. Default: on a terminal unless NO_COLOR is set.")
def plan(
    paths: tuple[Path, ...],
    root: Path | None,
    variables: dict[str, str],
    changes: bool,
    price_per_gpu_hour: float | None,
    outputs: tuple[str, ...],
    verbose: int,
    color: bool | None,
) -> int:
    """Show what every rank will run, according to the files; no cluster needed.

    PATHS are as for lint. Each value is shown with the file and line that set it and the values that it overrides.
    Quantities that the files do not determine are listed with the option that sets them. Two folders are compared as
    an old and a new version of a job.

    Exit codes: 0 a launch was understood, 2 usage, 3 no launch was recognised and a file was not read, 4 no launch
    was recognised; of a comparison: 0 nothing changes, 1 something does, 3 nothing does in what could be read.
    """
    from preflight import api
    from preflight.reporters import output

    targets = output.targets(outputs or ("text",), FORMATS)
    chosen = paths or (Path(),)
    if changes or (len(chosen) == 2 and all(path.is_dir() for path in chosen)):
        if len(chosen) != 2:
            raise click.UsageError(f"--changes compares two paths, an old and a new job, but {len(chosen)} were given")
        return _show_changes(chosen[0], chosen[1], variables, targets, price_per_gpu_hour, color)
    made = api.plan(chosen, root=root, variables=variables, price_per_gpu_hour=price_per_gpu_hour)
    for name, path in targets:
        output.put(_content(made, name, output.style_of(path, color, verbose)), name, path)
    if any(job.launches for job in made.jobs):
        return 0
    return 3 if any(job.incomplete for job in made.jobs) else 4


def _content(made: object, name: str, style: object) -> bytes:
    from preflight.commands.plan.job_plan import Plan, to_json
    from preflight.reporters.base import Style

    assert isinstance(made, Plan) and isinstance(style, Style)
    if name == "json":
        return to_json(made)
    if name == "html":
        from preflight.commands.plan.plan_html import html

        return html(made)
    if name == "markdown":
        from preflight.commands.plan.plan_markdown import markdown

        return markdown(made).encode("utf-8", "replace")
    from preflight.commands.plan.plan_text import page

    return page(made, style).encode("utf-8", "replace")


def _show_changes(
    old: Path,
    new: Path,
    variables: dict[str, str],
    targets: tuple[tuple[str, Path | None], ...],
    price: float | None,
    color: bool | None,
) -> int:
    from preflight import api
    from preflight._util.json_output import to_bytes
    from preflight.commands.plan.plan_changes import NOT_READ, changes_between
    from preflight.commands.plan.plan_markdown import changes_markdown
    from preflight.commands.plan.plan_text import changes_page
    from preflight.reporters import output

    # Each version is its own root, so that the same file has the same name in both.
    plans = [
        api.plan((path,), root=path if path.is_dir() else None, variables=variables, price_per_gpu_hour=price)
        for path in (old, new)
    ]
    found = changes_between(*plans)
    for name, path in targets:
        if name == "json":
            content = to_bytes(found, indent=2)
        elif name == "text":
            content = changes_page(found, output.style_of(path, color, 0)).encode("utf-8", "replace")
        elif name == "markdown":
            content = changes_markdown(found).encode("utf-8", "replace")
        else:
            raise click.UsageError("--changes can be written as text, json or markdown, not as html")
        output.put(content, name, path)
    if any(change.what != NOT_READ for change in found):
        return 1
    return 3 if found else 0
