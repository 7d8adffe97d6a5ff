"""The verbs that make and keep a baseline."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight import options

if TYPE_CHECKING:
    from preflight.configuration import Configuration
    from preflight.report import Report

F = TypeVar("F", bound=Callable[..., Any])


@click.group()
def baseline() -> None:
    """Accept the findings that lint has today, so that only new ones count.

    \b
    preflight baseline write        lists them in preflight-baseline.json; commit it
    preflight lint --baseline preflight-baseline.json
    preflight baseline prune        takes out what was mended since
    """


def _baseline_verb(function: F) -> F:
    """What the verbs that make a baseline take."""
    for option in (options.BASELINE, options.FILES, options.CHOOSING, options.ROOT, options.PATHS):
        function = option(function)
    return function


@baseline.command("write")
@_baseline_verb
def baseline_write(paths: tuple[Path, ...], root: Path | None, **chosen: Any) -> int:
    """Write the findings of PATHS to the baseline, in place of what it held.

    The file is that of --baseline, else that of the configuration, else preflight-baseline.json.
    """
    from preflight import api, deliver
    from preflight import baseline as baselines

    wanted = paths or (Path(),)
    said = chosen.pop("baseline")
    found = api.configure(options.choices(chosen), wanted, root=root, read_baseline=False)
    file = said or found.baseline or Path(baselines.DEFAULT_NAME)
    accepted = baselines.of_findings(_lint(wanted, root, found.configuration).findings)
    deliver.write(file, baselines.dump(accepted))
    _print(f"{file}: {baselines.summary(accepted.entries)} accepted\n")
    return 0


@baseline.command("prune")
@_baseline_verb
def baseline_prune(paths: tuple[Path, ...], root: Path | None, **chosen: Any) -> int:
    """Take out of the baseline what PATHS no longer hold, and list it."""
    from preflight import api, deliver
    from preflight import baseline as baselines
    from preflight.errors import UsageError
    from preflight.roots import root_of

    wanted = paths or (Path(),)
    said = chosen.pop("baseline")
    found = api.configure(options.choices(chosen), wanted, root=root, read_baseline=False)
    file = said or found.baseline or Path(baselines.DEFAULT_NAME)
    before = baselines.load(file)
    configuration = replace(found.configuration, baseline=before.entries, baseline_file=str(file))
    gone = _lint(wanted, root, configuration).coverage.idle_baseline
    top = root_of(wanted, root)
    missing = [entry for entry in before.entries if not (top / entry.path).exists()]
    # From another folder than it was written in, every file looks gone.
    if len(missing) < len(before.entries) or file.resolve().parent == top.resolve():
        gone = tuple(dict.fromkeys((*gone, *missing)))
    elif missing:
        raise UsageError(f"none of the files in {file} lies below {top}; prune it where it was written, or with --root")
    after = baselines.without(before, gone)
    if after != before:
        deliver.write(file, baselines.dump(after))
    _print(baselines.listed(gone) + f"{file}: {baselines.summary(gone)} taken out, {len(after.entries)} left\n")
    return 0


@baseline.command("show")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
def baseline_show(file: Path | None) -> int:
    """Count the findings that FILE (default: preflight-baseline.json) accepts, by rule and file."""
    from preflight import baseline as baselines

    _print(baselines.table(baselines.load(file or Path(baselines.DEFAULT_NAME))))
    return 0


def _lint(paths: tuple[Path, ...], root: Path | None, configuration: Configuration) -> Report:
    """What lint says; how far it is is told where that takes longer."""
    from preflight import api
    from preflight.progress import PATIENCE_S
    from preflight.reporters.live import live_progress

    with live_progress(sys.stderr, after_s=PATIENCE_S, threads=False) as progress:
        return api.lint(paths, root=root, configuration=configuration, progress=progress)


def _print(text: str) -> None:
    from preflight.deliver import print_bytes
    from preflight.reporters.clean import clean

    print_bytes(clean(text, keep_newlines=True).encode("utf-8", "replace"))
