"""`preflight serve`: the page over the history, for administrators."""

from __future__ import annotations

from pathlib import Path

import click

from preflight.cli import live_options, options


@click.command()
@live_options.HISTORY_ADDRESS
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default="127.0.0.1:8440",
    show_default=True,
    help="Where the page is served. An address that others can reach needs a token. Port 0 takes any free one.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="File with the token that opens the page. Also the environment variable PREFLIGHT_SERVE_TOKEN.",
)
@click.option(
    "--page-deadline",
    type=click.FloatRange(0.5, 300),
    default=10.0,
    show_default=True,
    metavar="S",
    help="Time limit for a page and its queries.",
)
@options.CONFIG
def serve(
    history: str | None,
    listen: str,
    token_file: Path | None,
    page_deadline: float,
    config: Path | None,
    no_config: bool,
) -> int:
    """Serve a page over the history: every node, its runs, its measurements and its links.

    It only reads the database, which other commands may write at the same time, and ends with Ctrl-C.

    Exit codes: 0 stopped, 2 the history cannot be shown or the address cannot be used.
    """
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.config.choices import Choices
    from preflight.services.fleet_page.access import token_of
    from preflight.services.fleet_page.server import Listening, listening
    from preflight.services.fleet_page.server import serve as run

    address = history or api.configure(Choices(file=config, use_file=not no_config), ()).history
    if not address:
        raise UsageError("which history? Pass --history sqlite:///FILE or postgresql://HOST/NAME")
    token = token_of(token_file)

    def started(where: Listening) -> None:
        click.echo(f"preflight: serving the history at {where.url}", err=True)

    run(address, listening(listen), token, deadline_s=page_deadline, started=started)
    return 0
