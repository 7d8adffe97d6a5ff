"""`preflight diagnose`: the logs of a run that failed, read for its first failure and the cause of it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

FORMATS = ("text", "json")


@click.command()
@click.argument("logs", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[:FILE]",
    help="Write the diagnosis as text (default) or json. Repeatable.",
)
@click.option(
    "--symptoms",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Read by the symptoms of this TOML file, too, and first. Repeatable.",
)
@click.option("-v", "--verbose", count=True, help="Also list the logs that were read; -vv all of them.")
@click.option("-q", "--quiet", is_flag=True, help="Nothing of how far it is.")
@click.option(
    "--color/--no-color",
    default=None,
    help="Colours; without it, on a terminal unless NO_COLOR is set, and wherever FORCE_COLOR is.",
)
def diagnose(
    logs: tuple[Path, ...],
    outputs: tuple[str, ...],
    symptoms: tuple[Path, ...],
    verbose: int,
    quiet: bool,
    color: bool | None,
) -> int:
    """Read the logs of a run that failed: which rank was first, why, and what would have told before.

    LOGS are files or folders: of each rank or of all together, of launchers and schedulers, also compressed with
    gzip; or - for standard input. Name all there are: the first failure is often in another log than the last words.

    Exit codes: 0 nothing found wrong, 1 a cause is named, 3 the run failed and no line says why, 4 nothing to read.
    """
    from preflight import api, deliver
    from preflight.progress import PATIENCE_S
    from preflight.reporters.live import live_progress

    targets = deliver.targets(outputs or ("text",), FORMATS)
    with live_progress(sys.stderr, color=color, quiet=quiet, after_s=PATIENCE_S) as progress:
        found = api.diagnose(logs, symptoms=symptoms, given=sys.stdin.buffer, progress=progress)
    for name, path in targets:
        if name == "json":
            from preflight.diagnosis.model import to_json

            content = to_json(found)
        else:
            from preflight.diagnosis.telling import page
            from preflight.terminal import encoded

            style = deliver.style_of(path, color, verbose)
            content = encoded(page(found, style), style.encoding)
        deliver.print_bytes(content) if path is None else deliver.write(path, content)
    return found.exit_code
