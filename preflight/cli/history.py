"""`preflight history`: what the runs of a database show together."""

from __future__ import annotations

from pathlib import Path

import click

from preflight.cli import live_options, options

FORMATS = ("text", "json", "hosts")


@click.command()
@live_options.HISTORY_ADDRESS
@click.option(
    "--since",
    metavar="TIME",
    default="90d",
    show_default=True,
    help="Only the runs of so many days before the newest one, as 30d; all for every run.",
)
@click.option("--hosts", metavar="HOSTS", help="Only what concerns these nodes: node[1-4] or a,b,c.")
@click.option(
    "--add",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="First add this run: a saved recording (--save) or a report (-o json:FILE). Repeatable; a run that is already "
    "there is not added again.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[:FILE]",
    help=f"Write it in a format: {', '.join(FORMATS)}. Default: text. hosts lists the nodes to leave out. Repeatable.",
)
@click.option("-v", "--verbose", count=True, help="Also list what changed when, and every node that ever failed.")
@click.option("-q", "--quiet", is_flag=True, help="Show only the stories.")
@click.option("--color/--no-color", default=None, help="Use colours. Default: on a terminal unless NO_COLOR is set.")
@options.CONFIG
@options.PLUGIN
def history(
    history: str | None,
    since: str,
    hosts: str | None,
    add: tuple[Path, ...],
    outputs: tuple[str, ...],
    verbose: int,
    quiet: bool,
    color: bool | None,
    config: Path | None,
    no_config: bool,
) -> int:
    """Show what many runs say together: nodes that fail again and again, measurements that drift, counters that grow.

    Runs are remembered by preflight nodes --history URL and preflight check --history URL.

    Exit codes: 0 nothing to tell, 1 at least one story, 4 no runs.
    """
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.config.choices import Choices
    from preflight.reporters import output

    targets = output.targets(outputs or ("text",), FORMATS)
    address = history or api.configure(Choices(file=config, use_file=not no_config), ()).history
    if not address:
        raise UsageError("which history? Pass --history sqlite:///FILE or postgresql://HOST/NAME")
    found = api.history(address, days=_days(since), hosts=hosts or "", add=add)
    for name, path in targets:
        if name == "json":
            from preflight.commands.history.account import to_json

            content = to_json(found)
        elif name == "hosts":
            content = "".join(f"{node}\n" for node in found.blamed).encode()
        else:
            from preflight.commands.history.text import page

            style = output.style_of(path, color, -1 if quiet else verbose)
            content = page(found, style).encode("utf-8", "replace")
        output.put(content, name, path)
    if not found.runs:
        return 4
    return 1 if found.stories else 0


def _days(text: str) -> int | None:
    """The days of `30d`; None for `all`."""
    from preflight._util.usage_error import UsageError

    if text == "all":
        return None
    number, unit = text[:-1], text[-1:]
    if unit != "d" or not number.isdecimal() or not 1 <= int(number) <= 100_000:
        raise UsageError(f"--since {text}: expected a number of days, as in 30d, or all")
    return int(number)
