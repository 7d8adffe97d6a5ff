"""`preflight diff`: compare two reports or recordings."""

from __future__ import annotations

from pathlib import Path

import click

from preflight.cli import options

FORMATS = ("text", "json")
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[:FILE]",
    help="Write the comparison as text (default) or json. Repeatable.",
)
@click.option(
    "--fail-on",
    type=click.Choice(["error", "warning", "info"]),
    help="The lowest severity that makes the exit code 1. Default: the severity that NEW was judged by.",
)
@click.option("--allow-incomplete", is_flag=True, help="Exit 0 instead of 3 if something required is no longer known.")
@click.option("-v", "--verbose", count=True, help="List everything that drifted or is no longer known.")
@click.option("-q", "--quiet", is_flag=True, help="Show only what is worse, and the last line.")
@click.option("--color/--no-color", default=None, help="Use colours. Default: on a terminal unless NO_COLOR is set.")
@options.PLUGIN
def diff(
    old: Path,
    new: Path,
    outputs: tuple[str, ...],
    fail_on: str | None,
    allow_incomplete: bool,
    verbose: int,
    quiet: bool,
    color: bool | None,
) -> int:
    """Compare two reports: new, fixed and changed findings, version drift, slower links and steps.

    OLD and NEW are reports (-o json:FILE) or recordings (--save FILE). Recordings are judged first.

    Exit codes: 0 nothing is worse, 1 NEW is worse, 3 something required is no longer known.
    """
    from preflight import api
    from preflight.reporters import output

    targets = output.targets(outputs or ("text",), FORMATS)
    found = api.diff(old, new, fail_on=fail_on or "", allow_incomplete=allow_incomplete)
    for name, path in targets:
        if name == "json":
            from preflight.commands.diff.difference import to_json

            content = to_json(found)
        else:
            from preflight.commands.diff.difference_text import page

            style = output.style_of(path, color, -1 if quiet else verbose)
            content = page(found, style).encode("utf-8", "replace")
        output.put(content, name, path)
    return found.exit_code
