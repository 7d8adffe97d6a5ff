"""`preflight diagnose`: find the first failure, and its cause, in the logs of a failed run."""

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
    help="Also use the symptoms of this TOML file; they take precedence. Repeatable.",
)
@click.option("-v", "--verbose", count=True, help="Also list the logs that were read; -vv lists all of them.")
@click.option("-q", "--quiet", is_flag=True, help="Do not show progress.")
@click.option(
    "--color/--no-color",
    default=None,
    help="Use colours. Default: on a terminal unless NO_COLOR is set, or if FORCE_COLOR is set.",
)
def diagnose(
    logs: tuple[Path, ...],
    outputs: tuple[str, ...],
    symptoms: tuple[Path, ...],
    verbose: int,
    quiet: bool,
    color: bool | None,
) -> int:
    """Read the logs of a failed run: which rank failed first, why, and which check would have caught it.

    LOGS are files or folders with the output of ranks, launchers and schedulers, plain or compressed with gzip; or -
    for standard input. Name all logs: the first failure is often in a different log from the last message.

    Exit codes: 0 the run completed, 1 a cause is named, 3 the run failed or ended and no line says why, 4 the logs are
    empty, binary or truncated, 6 a cause is suspected.
    """
    from preflight import api
    from preflight.model.progress import SHOW_WAIT_AFTER_S
    from preflight.reporters import output
    from preflight.reporters.live.display import live_progress

    targets = output.targets(outputs or ("text",), FORMATS)
    with live_progress(sys.stderr, color=color, quiet=quiet, after_s=SHOW_WAIT_AFTER_S) as progress:
        found = api.diagnose(logs, symptoms=symptoms, given=sys.stdin.buffer, progress=progress)
    for name, path in targets:
        if name == "json":
            from preflight.commands.diagnose.diagnosis import to_json

            content = to_json(found)
        else:
            from preflight._util.terminal import encoded
            from preflight.commands.diagnose.diagnosis_text import page

            style = output.style_of(path, color, verbose)
            content = encoded(page(found, style), style.encoding)
        output.put(content, name, path)
    return found.exit_code
