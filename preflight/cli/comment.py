"""`preflight comment`: the comment on a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preflight.cli import options

if TYPE_CHECKING:
    from preflight.commands.comment.change_report import ChangeReport
    from preflight.commands.comment.platforms import Platform
    from preflight.model.configuration import Configuration


@click.command()
@options.PATHS
@options.ROOT
@options.SINCE
@click.option("--github", "platform", flag_value="github", help="Write it to the pull request of this workflow run.")
@click.option("--gitlab", "platform", flag_value="gitlab", help="Write it to the merge request of this pipeline.")
@options.FILES
@options.BASELINE
@options.SELECTION_OPTIONS
def comment(paths: tuple[Path, ...], root: Path | None, since: str, platform: str | None, **chosen: Any) -> int:
    """Comment on a pull request: new findings, and what changes for the ranks.

    PATHS are as for lint. Without --github or --gitlab the comment is printed as Markdown. Each of them writes one
    comment through the REST API, and updates it in later runs. --since is the commit to compare with; by default it is
    the base of the pull request. Nothing is executed.

    --github reads GITHUB_TOKEN, and --gitlab PREFLIGHT_COMMENT_TOKEN.

    Exit codes: 0 the comment is written, or there is nothing to say; 2 usage; 3 it cannot be written.
    """
    from preflight import api
    from preflight._util.sanitize import clean, neutralize_commands
    from preflight.commands.comment.comment_markdown import comment as written
    from preflight.commands.comment.comment_markdown import key_of
    from preflight.commands.comment.platforms import publish
    from preflight.commands.comment.rest_client import PlatformError
    from preflight.reporters.output import print_bytes
    from preflight.sources.discovery.snapshot import below
    from preflight.sources.discovery.walk import root_of

    targets = paths or (Path(),)
    found = api.configure(options.choices(chosen), targets, root=root)
    top = root_of(targets, root)
    key = key_of([below(top, path) for path in targets])
    if platform is None:
        if not since:
            raise click.UsageError("--since REV is needed without --github or --gitlab, for instance origin/main")
        report = api.change_report(targets, since, root=root, configuration=found.configuration)
        body = written(report, key).body
        print_bytes(neutralize_commands(clean(body, keep_newlines=True)).encode("utf-8", "replace"))
        return 0
    from preflight.commands.comment.platforms import platform_of

    try:
        request = platform_of(platform)
        compared = _compared(request, targets, since, root, found.configuration)
        done = publish(
            request, key, lambda before: written(compared, key, before=before, max_characters=request.max_characters)
        )
    except PlatformError as error:
        click.echo(neutralize_commands(f"preflight: no comment: {clean(str(error))}"), err=True)
        return 3
    click.echo(f"preflight: {done}", err=True)
    return 0


def _compared(
    request: Platform, targets: tuple[Path, ...], since: str, root: Path | None, configuration: Configuration
) -> ChangeReport:
    """The report, compared with the base; where that is not possible, the report on all jobs and the reason."""
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.commands.comment.change_report import ChangeReport

    try:
        return api.change_report(
            targets, since or request.base or "unknown", root=root, configuration=configuration, head=request.head
        )
    except UsageError as error:
        report = api.lint(targets, root=root, configuration=configuration, jobs=api.usable_cpus())
        return ChangeReport(report, not_compared=str(error).removeprefix("--since "))
