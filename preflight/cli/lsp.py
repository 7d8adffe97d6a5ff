"""`preflight lsp`: the language server for editors."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click

from preflight.cli import options

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
    from preflight.config.choices import Choices
    from preflight.services.language_server.server import serve

    serve(Choices(file=config, use_file=not no_config, site_rules=site_rules), address)
    return 0
