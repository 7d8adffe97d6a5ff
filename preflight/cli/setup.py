"""`preflight doctor`, `init` and `baseline`: what a machine or a project needs before its first run."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight.cli import options
from preflight.cli.live import deliver_document

if TYPE_CHECKING:
    from preflight.engine.report import Report
    from preflight.model.configuration import Configuration
    from preflight.reporters.base import Style


FORMATS = ("text", "json")


@click.command()
@click.option("--hosts", default="", metavar="HOSTS", help="Also try to reach these hosts: node[1-4] or a,b,c.")
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also try to reach the hosts in this file.",
)
@click.option("--on", "executor", default="", metavar="EXECUTOR", help="How to reach the hosts, as for check.")
@click.option(
    "--on-option", "executor_options", multiple=True, metavar="NAME=VALUE", help="Option of the executor. Repeatable."
)
@click.option(
    "--python", "pythons", multiple=True, metavar="PATH", help="A Python interpreter that ranks run with. Repeatable."
)
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(1, 600),
    default=20.0,
    show_default=True,
    metavar="S",
    help="Time limit for each item.",
)
@options.output("the result as text (default) or json")
@click.option("-q", "--quiet", is_flag=True, help="Show only missing items and the summary line.")
@options.COLOR
def doctor(
    hosts: str,
    hostfile: Path | None,
    executor: str,
    executor_options: tuple[str, ...],
    pythons: tuple[str, ...],
    deadline_s: float,
    outputs: tuple[str, ...],
    quiet: bool,
    color: bool | None,
) -> int:
    """Show what this machine can and cannot check, what is missing, and how to get it.

    It checks preflight and its packs, executors, SSH keys, Pythons with torch or paddle, GPUs, tools, the cache, the
    terminal and limits. With --hosts it starts an agent on each host and stops it again.

    Exit codes: 0 something can be checked here, 1 nothing can.
    """
    from preflight.commands.doctor import examine
    from preflight.reporters import output

    targets = output.targets(outputs or ("text",), FORMATS)
    found = examine(
        hosts=hosts,
        hostfile=hostfile,
        executor=executor,
        executor_options=executor_options,
        pythons=pythons,
        environment=os.environ,
        stream=sys.stdout,
        deadline_s=deadline_s,
    )

    def render(_: str, style: Style) -> str:
        from preflight.commands.doctor import page

        return page(found, style)

    deliver_document(found, targets, render, color=color, verbosity=-1 if quiet else 0)
    return found.exit_code


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--print", "show", is_flag=True, help="Print the file instead of writing it, like DIR -.")
@click.option("--force", is_flag=True, help="Replace an existing configuration.")
@click.option("--accept", is_flag=True, help="Also write a baseline, so that today's findings do not count.")
def init(folder: Path, show: bool, force: bool, accept: bool) -> int:
    """Write a commented preflight.toml for DIR (default: the working directory) from what lint finds there.

    It prints each decision and the reason for it. Keys that it does not set are listed as comments. Nothing is
    executed, and an existing configuration is left alone.
    """
    from preflight import api
    from preflight._util.sanitize import printable
    from preflight._util.usage_error import UsageError
    from preflight.commands import init as first_config
    from preflight.config import baseline as baselines
    from preflight.reporters import output

    if folder == Path("-"):
        folder, show = Path(), True
    if show and (force or accept):
        raise UsageError("--print writes no file, so it cannot be combined with --force or --accept")
    target = folder / first_config.NAME
    if not show and not force and folder.is_dir():
        first_config.refuse_to_replace(folder)
    first_configuration = first_config.make_first_config(
        folder, environment=os.environ, created=api.now(), accept=accept
    )
    decisions = "".join(
        f"{decision.about + ':':<11}{decision.choice}  ({decision.because})\n"
        for decision in first_configuration.chosen.decisions
    )
    if show:
        output.print_bytes(first_configuration.text.encode("utf-8", "replace"))
        click.echo(printable(decisions), nl=False, err=True)
        return 0
    if accept:
        accepted = baselines.of_findings(first_configuration.report.findings)
        output.write(folder / baselines.DEFAULT_NAME, baselines.dump(accepted))
    output.write(target, first_configuration.text.encode("utf-8", "replace"))
    output.print_text(f"{decisions}Wrote {target}. Run `preflight lint` in that folder.\n")
    return 0


F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def baseline() -> None:
    """Accept the findings that lint reports today, so that only new ones count.

    \b
    preflight baseline write        list them in preflight-baseline.json; commit this file
    preflight lint --baseline preflight-baseline.json
    preflight baseline prune        remove entries that have been fixed since
    """


def _baseline_options(function: F) -> F:
    """Add the options that `write` and `prune` share."""
    for option in (options.BASELINE, options.FILES, options.SELECTION_OPTIONS, options.ROOT, options.PATHS):
        function = option(function)
    return function


@baseline.command("write")
@_baseline_options
def baseline_write(paths: tuple[Path, ...], root: Path | None, **option_values: Any) -> int:
    """Write the findings of PATHS to the baseline, replacing its previous content.

    The file is given by --baseline, otherwise by the configuration, otherwise it is preflight-baseline.json.
    """
    from preflight import api
    from preflight.config import baseline as baselines
    from preflight.reporters import output

    input_paths = paths or (Path(),)
    baseline_option = option_values.pop("baseline")
    run_settings = api.configure(options.choices(option_values), input_paths, root=root, read_baseline=False)
    file = baseline_option or run_settings.baseline or Path(baselines.DEFAULT_NAME)
    accepted = baselines.of_findings(_lint(input_paths, root, run_settings.configuration).findings)
    output.write(file, baselines.dump(accepted))
    output.print_text(f"{file}: {baselines.count_text(accepted.entries)} accepted\n")
    return 0


@baseline.command("prune")
@_baseline_options
def baseline_prune(paths: tuple[Path, ...], root: Path | None, **option_values: Any) -> int:
    """Remove entries from the baseline that no longer occur in PATHS, and list them."""
    from preflight import api
    from preflight._util.roots import root_of
    from preflight._util.usage_error import UsageError
    from preflight.config import baseline as baselines
    from preflight.reporters import output

    input_paths = paths or (Path(),)
    baseline_option = option_values.pop("baseline")
    run_settings = api.configure(options.choices(option_values), input_paths, root=root, read_baseline=False)
    file = baseline_option or run_settings.baseline or Path(baselines.DEFAULT_NAME)
    old_baseline = baselines.load(file)
    configuration = replace(run_settings.configuration, baseline=old_baseline.entries, baseline_file=str(file))
    stale_entries = _lint(input_paths, root, configuration).coverage.unused_baseline
    root_folder = root_of(input_paths, root)
    missing_entries = [entry for entry in old_baseline.entries if not (root_folder / entry.path).exists()]
    # In another folder than that in which the baseline was written, every file would seem to be missing.
    if len(missing_entries) < len(old_baseline.entries) or file.resolve().parent == root_folder.resolve():
        stale_entries = tuple(dict.fromkeys((*stale_entries, *missing_entries)))
    elif missing_entries:
        raise UsageError(
            f"none of the files in {file} is in {root_folder}; run prune where that file was written, or add --root"
        )
    new_baseline = baselines.remove_entries(old_baseline, stale_entries)
    if new_baseline != old_baseline:
        output.write(file, baselines.dump(new_baseline))
    output.print_text(
        baselines.format_entries(stale_entries)
        + f"{file}: {baselines.count_text(stale_entries)} removed, {len(new_baseline.entries)} left\n"
    )
    return 0


@baseline.command("show")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
def baseline_show(file: Path | None) -> int:
    """Count the findings that FILE (default: preflight-baseline.json) accepts, by rule and by file."""
    from preflight.config import baseline as baselines
    from preflight.reporters import output

    output.print_text(baselines.format_table(baselines.load(file or Path(baselines.DEFAULT_NAME))))
    return 0


def _lint(paths: tuple[Path, ...], root: Path | None, configuration: Configuration) -> Report:
    """Return the report of lint, with a progress line on standard error if it takes long."""
    from preflight import api
    from preflight.model.progress import SHOW_WAIT_AFTER_S
    from preflight.reporters.live.display import live_progress

    with live_progress(sys.stderr, after_s=SHOW_WAIT_AFTER_S, threads=False) as progress:
        return api.lint(paths, root=root, configuration=configuration, progress=progress)
