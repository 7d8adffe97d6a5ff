"""`preflight init`: a first, commented configuration for a folder."""

from __future__ import annotations

import os
from pathlib import Path

import click


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--print", "show", is_flag=True, help="Print the file instead of writing it; so does - for DIR.")
@click.option("--force", is_flag=True, help="Replace the configuration that is there.")
@click.option("--accept", is_flag=True, help="Also write a baseline, so that what is found today does not count.")
def init(folder: Path, show: bool, force: bool, accept: bool) -> int:
    """Write a commented preflight.toml for DIR (default: the working directory) from what lint finds there.

    It says what it decided and why. Keys that it does not set stand there as comments. Nothing of the jobs is executed,
    and a configuration that is there already is left alone.
    """
    from preflight import api, deliver
    from preflight import baseline as baselines
    from preflight.beginning import begin as beginning
    from preflight.errors import UsageError

    if folder == Path("-"):
        folder, show = Path(), True
    if show and (force or accept):
        raise UsageError("--print writes nothing, so --force and --accept have nothing to do; leave one of them out")
    target = folder / beginning.NAME
    if not show and not force and folder.is_dir():
        beginning.refuse_to_replace(folder)
    made = beginning.begin(folder, environment=os.environ, created=api.now(), accept=accept)
    said = "".join(
        f"{decision.about + ':':<11}{decision.choice}  ({decision.because})\n" for decision in made.chosen.decisions
    )
    if show:
        deliver.print_bytes(made.text.encode("utf-8", "replace"))
        _say(said, to_errors=True)
        return 0
    if accept:
        accepted = baselines.of_findings(made.report.findings)
        deliver.write(folder / baselines.DEFAULT_NAME, baselines.dump(accepted))
    deliver.write(target, made.text.encode("utf-8", "replace"))
    _say(f"{said}{target} is written; run `preflight lint` in that folder\n", to_errors=False)
    return 0


def _say(text: str, *, to_errors: bool) -> None:
    from preflight.reporters.clean import clean

    click.echo(clean(text, keep_newlines=True), nl=False, err=to_errors)
