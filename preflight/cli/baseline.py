"""`preflight baseline`: write, prune and show a baseline of accepted findings."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight.cli import options

if TYPE_CHECKING:
    from preflight.engine.report import Report
    from preflight.model.configuration import Configuration

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
def baseline_write(paths: tuple[Path, ...], root: Path | None, **chosen: Any) -> int:
    """Write the findings of PATHS to the baseline, replacing its previous content.

    The file is given by --baseline, otherwise by the configuration, otherwise it is preflight-baseline.json.
    """
    from preflight import api
    from preflight.config import baseline as baselines
    from preflight.reporters import output

    targets = paths or (Path(),)
    named = chosen.pop("baseline")
    found = api.configure(options.choices(chosen), targets, root=root, read_baseline=False)
    file = named or found.baseline or Path(baselines.DEFAULT_NAME)
    accepted = baselines.of_findings(_lint(targets, root, found.configuration).findings)
    output.write(file, baselines.dump(accepted))
    _print(f"{file}: {baselines.summary(accepted.entries)} accepted\n")
    return 0


@baseline.command("prune")
@_baseline_options
def baseline_prune(paths: tuple[Path, ...], root: Path | None, **chosen: Any) -> int:
    """Remove entries from the baseline that no longer occur in PATHS, and list them."""
    from preflight import api
    from preflight._util.usage_error import UsageError
    from preflight.config import baseline as baselines
    from preflight.reporters import output
    from preflight.sources.discovery.walk import root_of

    targets = paths or (Path(),)
    named = chosen.pop("baseline")
    found = api.configure(options.choices(chosen), targets, root=root, read_baseline=False)
    file = named or found.baseline or Path(baselines.DEFAULT_NAME)
    before = baselines.load(file)
    configuration = replace(found.configuration, baseline=before.entries, baseline_file=str(file))
    gone = _lint(targets, root, configuration).coverage.unused_baseline
    top = root_of(targets, root)
    missing = [entry for entry in before.entries if not (top / entry.path).exists()]
    # Run from a folder other than the one it was written in, every file would look missing.
    if len(missing) < len(before.entries) or file.resolve().parent == top.resolve():
        gone = tuple(dict.fromkeys((*gone, *missing)))
    elif missing:
        raise UsageError(f"none of the files in {file} is below {top}; run prune where it was written, or add --root")
    after = baselines.without(before, gone)
    if after != before:
        output.write(file, baselines.dump(after))
    _print(baselines.listed(gone) + f"{file}: {baselines.summary(gone)} removed, {len(after.entries)} left\n")
    return 0


@baseline.command("show")
@click.argument("file", required=False, type=click.Path(path_type=Path, dir_okay=False))
def baseline_show(file: Path | None) -> int:
    """Count the findings that FILE (default: preflight-baseline.json) accepts, by rule and by file."""
    from preflight.config import baseline as baselines

    _print(baselines.table(baselines.load(file or Path(baselines.DEFAULT_NAME))))
    return 0


def _lint(paths: tuple[Path, ...], root: Path | None, configuration: Configuration) -> Report:
    """Lint, with a progress line on standard error if it takes a while."""
    from preflight import api
    from preflight.model.progress import SHOW_WAIT_AFTER_S
    from preflight.reporters.live.display import live_progress

    with live_progress(sys.stderr, after_s=SHOW_WAIT_AFTER_S, threads=False) as progress:
        return api.lint(paths, root=root, configuration=configuration, progress=progress)


def _print(text: str) -> None:
    from preflight._util.sanitize import clean, neutralize_commands
    from preflight.reporters.output import print_bytes

    print_bytes(neutralize_commands(clean(text, keep_newlines=True)).encode("utf-8", "replace"))
