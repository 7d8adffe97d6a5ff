"""`preflight plan` and `preflight comment`: what every rank will run, and what a pull request does to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preflight.cli import options
from preflight.cli.live import deliver_document

if TYPE_CHECKING:
    from preflight.commands.comment import ChangeReport, GitHub, GitLab
    from preflight.model.configuration import Configuration
    from preflight.reporters.base import Style


FORMATS = ("text", "json", "html", "markdown")


@click.command()
@options.PATHS
@options.ROOT
@options.VARIABLES
@click.option(
    "--changes",
    is_flag=True,
    help="Treat PATHS as an old and a new version of a job, and show only what changes for the ranks. Implied by "
    "two folders.",
)
@click.option(
    "--price-per-gpu-hour", type=click.FloatRange(min=0), metavar="PRICE", help="Price of one GPU-hour, to show costs."
)
@options.output("the plan as text (default), json, html or markdown")
@click.option("-v", "--verbose", count=True, help="List every setting that was read.")
@options.COLOR
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

    Exit codes: 0 a launch was recognized, 2 usage error, 3 no launch was recognized and some files could not be read, 4
    no launch was recognized. When comparing: 0 no changes, 1 changes, 3 no changes in the files that could be read.
    """
    from preflight import api
    from preflight.reporters import output

    targets = output.targets(outputs or ("text",), FORMATS)
    option_values = paths or (Path(),)
    if changes or (len(option_values) == 2 and all(path.is_dir() for path in option_values)):
        if len(option_values) != 2:
            raise click.UsageError(
                f"--changes compares two paths, an old and a new job, but {len(option_values)} were given"
            )
        return _show_changes(option_values[0], option_values[1], variables, targets, price_per_gpu_hour, color)
    result = api.plan(option_values, root=root, variables=variables, price_per_gpu_hour=price_per_gpu_hour)

    def render(name: str, style: Style) -> str | bytes:
        from preflight.commands.plan import plan_pages

        if name == "html":
            return plan_pages.html(result)
        return plan_pages.markdown(result) if name == "markdown" else plan_pages.page(result, style)

    deliver_document(result, targets, render, color=color, verbosity=verbose)
    if any(job.launches for job in result.jobs):
        return 0
    return 3 if any(job.incomplete for job in result.jobs) else 4


def _show_changes(
    old: Path,
    new: Path,
    variables: dict[str, str],
    targets: tuple[tuple[str, Path | None], ...],
    price: float | None,
    color: bool | None,
) -> int:
    from preflight import api
    from preflight.commands.plan.plan_pages import NOT_READ, changes_between, changes_markdown, changes_page

    if any(name == "html" for name, _ in targets):
        raise click.UsageError("--changes can be written as text, json or markdown, not as html")
    # Each version is its own root, so that the same file has the same name in both.
    plans = [
        api.plan((path,), root=path if path.is_dir() else None, variables=variables, price_per_gpu_hour=price)
        for path in (old, new)
    ]
    found = changes_between(*plans)

    def render(name: str, style: Style) -> str:
        return changes_markdown(found) if name == "markdown" else changes_page(found, style)

    deliver_document(found, targets, render, color=color)
    if any(change.what != NOT_READ for change in found):
        return 1
    return 3 if found else 0


@click.command()
@options.PATHS
@options.ROOT
@options.SINCE
@click.option(
    "--github", "platform", flag_value="github", help="Write the comment to the pull request of this workflow run."
)
@click.option(
    "--gitlab", "platform", flag_value="gitlab", help="Write the comment to the merge request of this pipeline."
)
@options.FILES
@options.BASELINE
@options.SELECTION_OPTIONS
def comment(paths: tuple[Path, ...], root: Path | None, since: str, platform: str | None, **option_values: Any) -> int:
    """Comment on a pull request: new findings, and what changes for the ranks.

    PATHS are as for lint. Without --github or --gitlab the comment is printed as Markdown, and --since, the commit to
    compare with, is required. With one of them, --since is the base of the pull request by default, and one comment is
    written through the REST API and updated in later runs. Nothing is executed.

    --github reads GITHUB_TOKEN, and --gitlab PREFLIGHT_COMMENT_TOKEN.

    Exit codes: 0 the comment is written, or there is nothing to report; 2 usage; 3 it cannot be written.
    """
    from preflight import api
    from preflight._util.roots import root_of
    from preflight._util.sanitize import clean, neutralize_commands
    from preflight.commands.comment import PlatformError, key_of, publish
    from preflight.commands.comment import comment as written
    from preflight.reporters.output import print_text
    from preflight.sources.discovery.readings import below

    targets = paths or (Path(),)
    found = api.configure(options.choices(option_values), targets, root=root)
    top = root_of(targets, root)
    key = key_of([below(top, path) for path in targets])
    if platform is None:
        if not since:
            raise click.UsageError("without --github or --gitlab, --since REV is required, such as --since origin/main")
        report = api.change_report(targets, since, root=root, configuration=found.configuration)
        body = written(report, key).body
        print_text(body)
        return 0
    from preflight.commands.comment import platform_of

    try:
        request = platform_of(platform)
        compared = _compare_with_base(request, targets, since, root, found.configuration)
        done = publish(
            request, key, lambda before: written(compared, key, before=before, max_characters=request.max_characters)
        )
    except PlatformError as error:
        click.echo(neutralize_commands(f"preflight: no comment: {clean(str(error))}"), err=True)
        return 3
    click.echo(f"preflight: {done}", err=True)
    return 0


def _compare_with_base(
    request: GitHub | GitLab, targets: tuple[Path, ...], since: str, root: Path | None, configuration: Configuration
) -> ChangeReport:
    """Return the report compared with the base; if that is impossible, the report on all jobs and the reason."""
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.commands.comment import ChangeReport

    try:
        return api.change_report(
            targets, since or request.base or "unknown", root=root, configuration=configuration, head=request.head
        )
    except UsageError as error:
        report = api.lint(targets, root=root, configuration=configuration, jobs=api.usable_cpus())
        return ChangeReport(report, not_compared=str(error).removeprefix("--since "))
