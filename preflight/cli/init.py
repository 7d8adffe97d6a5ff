"""`preflight init`: write a first, commented configuration for a folder."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--print", "show", is_flag=True, help="Print the file instead of writing it; so does - for DIR.")
@click.option("--force", is_flag=True, help="Replace an existing configuration.")
@click.option("--accept", is_flag=True, help="Also write a baseline, so that today's findings do not count.")
def init(folder: Path, show: bool, force: bool, accept: bool) -> int:
    """Write a commented preflight.toml for DIR (default: the working directory) from what lint finds there.

    It prints each decision and the reason for it. Keys that it does not set are listed as comments. Nothing is
    executed, and an existing configuration is left alone.
    """
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.commands.init import first_config
    from preflight.config import baseline as baselines
    from preflight.reporters import output

    if folder == Path("-"):
        folder, show = Path(), True
    if show and (force or accept):
        raise UsageError("--print writes no file, so it excludes --force and --accept")
    target = folder / first_config.NAME
    if not show and not force and folder.is_dir():
        first_config.refuse_to_replace(folder)
    made = first_config.make_first_config(folder, environment=os.environ, created=api.now(), accept=accept)
    decisions = "".join(
        f"{decision.about + ':':<11}{decision.choice}  ({decision.because})\n" for decision in made.chosen.decisions
    )
    if show:
        output.print_bytes(made.text.encode("utf-8", "replace"))
        _print(decisions, to_errors=True)
        return 0
    if accept:
        accepted = baselines.of_findings(made.report.findings)
        output.write(folder / baselines.DEFAULT_NAME, baselines.dump(accepted))
    output.write(target, made.text.encode("utf-8", "replace"))
    _print(f"{decisions}Wrote {target}. Run `preflight lint` in that folder.\n", to_errors=False)
    return 0


def _print(text: str, *, to_errors: bool) -> None:
    from preflight._util.sanitize import clean, neutralize_commands

    click.echo(neutralize_commands(clean(text, keep_newlines=True)), nl=False, err=to_errors)
