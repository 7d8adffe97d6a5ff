"""`preflight diff`: two reports, or recordings, held against each other."""

from __future__ import annotations

from pathlib import Path

import click

from preflight import options

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
    help="The mildest finding that makes it exit with 1. Default: what NEW was judged with.",
)
@click.option("--allow-incomplete", is_flag=True, help="Exit 0 instead of 3 when something is not told any more.")
@click.option("-v", "--verbose", count=True, help="List everything that drifted or is not told any more.")
@click.option("-q", "--quiet", is_flag=True, help="What is worse, and the last line, alone.")
@click.option("--color/--no-color", default=None, help="Colours; without it, on a terminal unless NO_COLOR is set.")
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
    """Compare two reports: new, fixed and changed findings, drift of versions, links and steps that got slower.

    OLD and NEW are reports (-o json:FILE) or recordings (--save FILE), which are judged first.

    Exit codes: 0 nothing is worse, 1 something counts against NEW, 3 something that had to be told is not any more.
    """
    from preflight import api, deliver

    targets = deliver.targets(outputs or ("text",), FORMATS)
    found = api.diff(old, new, fail_on=fail_on or "", allow_incomplete=allow_incomplete)
    for name, path in targets:
        if name == "json":
            from preflight.difference.model import to_json

            content = to_json(found)
        else:
            from preflight.difference.telling import page

            style = deliver.style_of(path, color, -1 if quiet else verbose)
            content = page(found, style).encode("utf-8", "replace")
        deliver.print_bytes(content) if path is None else deliver.write(path, content)
    return found.exit_code
