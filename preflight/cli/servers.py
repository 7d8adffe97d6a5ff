"""`preflight lsp` and `preflight serve`: the language server, and the page over the history."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from preflight.cli import live_options, options

_INSTALL = 'pip install "preflight-train[lsp]"'
_LOOPBACK = "127.0.0.1"


def _address(context: click.Context, option: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """The host and port of `HOST:PORT`, `[::1]:PORT` or `PORT`."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65536:
        raise click.BadParameter(f"{value!r} is not HOST:PORT, as in 127.0.0.1:2087", context, option)
    return host.removeprefix("[").removesuffix("]") or _LOOPBACK, int(port)


@click.command()
@click.option(
    "--tcp",
    "address",
    metavar="[HOST:]PORT",
    callback=_address,
    help="Listen on a TCP port instead of standard input and output; on 127.0.0.1 unless a host is given. Whoever "
    "connects can read files as you.",
)
@click.option("--stdio", is_flag=True, hidden=True, help="Use standard input and output, which is the default.")
@options.CONFIG
@options.EXTRA_RULES
def lsp(
    address: tuple[str, int] | None, stdio: bool, config: Path | None, no_config: bool, site_rules: tuple[Path, ...]
) -> int:
    """Serve an editor: findings while you type, fixes, and what each value decides for the ranks.

    Editors start this command themselves; docs/editor.md says how. It speaks the Language Server Protocol on standard
    input and output. Nothing in the opened folders is executed.
    """
    from preflight._util.usage_error import UsageError

    if stdio and address is not None:
        raise click.UsageError("--stdio and --tcp exclude each other")
    if importlib.util.find_spec("pygls") is None:
        raise UsageError(f"preflight lsp needs pygls, which is not installed here; run: {_INSTALL}")
    from preflight.config.resolve import Choices
    from preflight.services.language_server.server import serve

    serve(Choices(file=config, use_file=not no_config, site_rules=site_rules), address)
    return 0


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
@live_options.deadline("--page-deadline", 10.0, "Time limit for a page and its queries.", maximum=300)
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
    from preflight.config.resolve import Choices
    from preflight.services.access import token_of
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
