"""The command line: click verbs that call `preflight.api` and turn its answer into output and an exit code.

Nothing heavier than click is imported before a verb runs, so that `--help` stays quick.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preflight import __version__, cli_live, options
from preflight.cli_baseline import baseline
from preflight.cli_deliver import deliver_report
from preflight.cli_diagnose import diagnose
from preflight.cli_diff import diff
from preflight.cli_doctor import doctor
from preflight.cli_init import init
from preflight.cli_manifest import manifest
from preflight.cli_smoke import smoke

if TYPE_CHECKING:
    from preflight.check_options import CheckOptions
    from preflight.configuration import Configuration
    from preflight.progress import Progress
    from preflight.recording import Recording
    from preflight.report import Report


#: How many objects more than before there are when garbage is looked for.
_COLLECT_AFTER = 250_000
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Verbs(click.Group):
    """A group that names the nearest verb for one that does not exist, and the files that were meant for lint."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's own, with a better sentence."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            # Letters that changed places are the likeliest mistake.
            near = sorted(
                get_close_matches(args[0], self.commands), key=lambda verb: sorted(verb) != sorted(args[0].lower())
            )
            if near:
                hint = f"Did you mean {near[0]!r}?"
            elif Path(args[0]).suffix:
                hint = f"To judge a job's files: preflight lint {args[0]}"
            else:
                hint = f"Known are {', '.join(self.commands)}."
            raise click.UsageError(f"There is no verb {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, context_settings=_SETTINGS)
@click.version_option(__version__, "--version", prog_name="preflight", message="%(prog)s %(version)s")
def cli() -> None:
    """Finds what will kill or hang a distributed training job, before it is submitted.

    \b
    preflight lint  train.sbatch           read the job's files; no cluster needed
    preflight check train.sbatch --hosts node[1-4]
                                           lint, then look at the nodes, between them, and train a few steps
    preflight smoke train.sbatch --hosts node[1-4]
                                           only the short training run
    preflight judge recording.json         the same verdict again from a saved recording
    preflight diagnose logs/               after a failure: which rank was first, and why
    preflight diff old.json new.json       what changed between two reports or recordings
    preflight doctor                       what this machine can and cannot check
    preflight init                         write a commented configuration from what lint finds here

    Exit codes: 0 go, 1 no-go, 2 usage, 3 incomplete, 4 nothing to do, 5 a bug in preflight.
    """


cli.add_command(baseline)
cli.add_command(diagnose)
cli.add_command(diff)
cli.add_command(doctor)
cli.add_command(init)
cli.add_command(manifest)
cli.add_command(smoke)


@cli.command()
@options.PATHS
@options.ROOT
@options.FIXING
@options.STDIN_NAME
@options.LIST_FILES
@options.CACHE
@options.JOBS
@options.JUDGING
def lint(paths: tuple[Path, ...], root: Path | None, **chosen: Any) -> int:
    """Judge jobs from their files alone.

    PATHS are scripts, configuration files or directories (default: the working directory), or - for standard input.
    Files named together are read as one job; files they refer to are followed. Nothing is executed.
    """
    from preflight import api
    from preflight.cache import default_cache

    wanted, given = _with_stdin(paths or (Path(),), chosen)
    found = api.configure(options.choices(chosen), wanted, root=root)
    if chosen["list_files"]:
        with _watched(chosen) as progress:
            jobs = api.jobs_in(wanted, root=root, exclude=found.configuration.exclude, given=given, progress=progress)
        lines = [[job.name, *(f"    {file.path}  ({file.kind})" for file in job.files)] for job in jobs]
        _print("".join(f"{line}\n" for of_job in lines for line in of_job))
        return 0
    kept = None if chosen["no_cache"] else default_cache()

    def make() -> Report:
        with _watched(chosen) as progress:
            return api.lint(
                wanted,
                root=root,
                configuration=found.configuration,
                given=given,
                cache=kept,
                jobs=chosen["jobs"] or api.usable_cpus(),
                progress=progress,
            )

    if chosen["diff"]:
        planned = api.fixes(make(), wanted, root=root, unsafe=chosen["unsafe_fixes"])
        _print(planned.diff())
        _complain(planned.summary(would=True))
        return 1 if planned.changes else 0
    if chosen["fix"]:
        planned = api.fixes(make(), wanted, root=root, unsafe=chosen["unsafe_fixes"]).written()
        _complain(planned.summary(would=False))
    elif chosen["unsafe_fixes"]:
        raise click.UsageError(
            "--unsafe-fixes goes with --fix, which edits files, or --diff, which shows what it would"
        )
    return deliver_report("lint", chosen, make, output=found.output, price_per_gpu_hour=found.price_per_gpu_hour)


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@cli_live.REACHING
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(["write", "metadata"]),
    help="write: try whether the folders the job writes to take a small file; metadata: ask the cloud's own service on "
    "each node whether it will be taken away. Repeatable.",
)
@click.option(
    "--until",
    type=click.Choice(["node", "link", "smoke"]),
    default="smoke",
    show_default=True,
    help="Last stage: facts of nodes, links between them, or the short training run.",
)
@click.option("--keep-going", is_flag=True, help="Run the smoke stage even after errors that will surely stop it.")
@cli_live.SAVE
@cli_live.BACKUP
@cli_live.STEPS
@cli_live.BEFORE
@cli_live.LINKS
@cli_live.SMOKE
@options.ROOT
@options.JUDGING
def check(paths: tuple[Path, ...], root: Path | None, save: Path | None, **chosen: Any) -> int:
    """Lint a job, then look at its nodes, between them, and train a few steps on them.

    PATHS are the job's files, as for lint. Nothing is installed on the nodes and nothing of preflight stays there.
    """
    from preflight import api

    def carry(wanted: CheckOptions, configuration: Configuration, progress: Progress) -> tuple[Recording, Report]:
        backup = bool(chosen["backup"])
        return api.check(paths, wanted, backup=backup, root=root, configuration=configuration, progress=progress)

    return cli_live.run_live("check", carry, paths, root, save, chosen)


@cli.command()
@click.argument("recording", type=click.Path(path_type=Path, dir_okay=False))
@options.JUDGED_AGAIN
def judge(recording: Path, allow_incomplete: bool, **chosen: Any) -> int:
    """Judge a saved recording again: the same verdict and findings, with no cluster."""

    from preflight import api
    from preflight.progress import PATIENCE_S
    from preflight.reporters.live import live_progress

    def report() -> Report:
        with live_progress(sys.stderr, color=chosen["color"], quiet=chosen["quiet"], after_s=PATIENCE_S) as progress:
            found = api.judge(recording, progress=progress)
        return replace(found, exit_code=0) if allow_incomplete and found.exit_code == 3 else found

    return deliver_report("judge", chosen, report)


@cli.command()
@click.argument("name", metavar="ID")
@options.OWN
def explain(name: str, site_rules: tuple[Path, ...]) -> int:
    """Print what a rule or check looks for, why it matters and how to fix it.

    ID may also be its name, an area (RDV), which lists what the area holds, or a symptom that diagnose names.
    """
    from preflight.explain import explanation

    _print(explanation(name, site_rules, width=_columns()) + "\n")
    return 0


@cli.command()
@click.option("-o", "--output", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option(
    "--to", "folder", type=click.Path(path_type=Path, file_okay=False), help="With markdown: write pages here."
)
@options.OWN
def rules(output: str, folder: Path | None, site_rules: tuple[Path, ...]) -> int:
    """List every rule and check."""
    from preflight.explain import everything, listing

    if folder is not None and output != "markdown":
        raise click.UsageError("--to writes pages, which --output markdown makes")
    if folder is not None:
        from preflight import pages

        changed = pages.write(folder, everything(site_rules))
        _print("".join(f"{path}\n" for path in changed) or f"{folder} is up to date\n")
    else:
        _print(listing(output, site_rules, width=_columns()))
    return 0


@cli.command()
def quantities() -> int:
    """List what the files of a job can say, for rules of your own."""
    from preflight.explain import vocabulary

    _print(vocabulary())
    return 0


@cli.command()
@click.argument(
    "document",
    type=click.Choice(
        ["report", "recording", "config", "site-rules", "diagnosis", "difference", "examination", "events"]
    ),
    default="report",
)
def schema(document: str) -> int:
    """Print the JSON Schema of what preflight writes or reads: the report, or one of the other documents."""
    import json

    from preflight import events, report, saved, settings, site_file
    from preflight.diagnosis import model
    from preflight.difference import model as difference
    from preflight.doctor import model as examination

    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "report": report.schema,
        "recording": saved.schema,
        "config": settings.schema,
        "site-rules": site_file.schema,
        "diagnosis": model.schema,
        "difference": difference.schema,
        "examination": examination.schema,
        "events": events.schema,
    }
    found = makers[document]()
    _print(json.dumps(found, indent=2, sort_keys=True) + "\n")
    return 0


def _watched(chosen: dict[str, Any]) -> AbstractContextManager[Progress]:
    """Who tells how far reading files is. Without a thread, which would keep several processes from reading them."""
    from preflight.progress import PATIENCE_S
    from preflight.reporters.live import live_progress

    return live_progress(sys.stderr, color=chosen["color"], quiet=chosen["quiet"], after_s=PATIENCE_S, threads=False)


def _columns() -> int | None:
    """How wide the terminal is; None where standard output is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def _with_stdin(paths: tuple[Path, ...], chosen: dict[str, Any]) -> tuple[tuple[Path, ...], dict[Path, bytes]]:
    """The paths with `-` replaced by the name of what comes on standard input, and its content."""
    name, piped = chosen["stdin_name"], Path("-") in paths
    if not piped:
        if name is not None:
            raise click.UsageError("--stdin-name names what comes on standard input; give - as path to read it")
        return paths, {}
    if chosen["fix"] or chosen["diff"]:
        raise click.UsageError("--fix and --diff edit files, and standard input is none")
    from preflight.gathering import STDIN

    name = name or Path(STDIN)
    if name.is_dir():
        raise click.UsageError(f"--stdin-name {name}: that is a folder; a file is expected")
    content = sys.stdin.buffer.read()
    return tuple(name if path == Path("-") else path for path in paths), {name: content}


def _print(text: str) -> None:
    """Say something on standard output, with whatever a hostile file put into it made harmless."""
    from preflight.deliver import print_bytes
    from preflight.reporters.clean import clean

    print_bytes(clean(text, keep_newlines=True).encode("utf-8", "replace"))


def _complain(text: str) -> None:
    """Say something on standard error, with whatever a hostile file put into it made harmless."""
    from preflight.reporters.clean import clean

    click.echo(clean(text, keep_newlines=True), err=True)


def main() -> None:
    """The `preflight` command: every way out of it has one of the documented exit codes.

    Garbage is looked for seldom: of what a thousand modules make at the start nothing is, and looking takes a twelfth
    of a check's time.

    It ends without taking apart what it holds in memory, which takes the interpreter a tenth of a second after a check
    and which the kernel does at once. What is to be done at the end of a process is done.
    """
    gc.set_threshold(_COLLECT_AFTER, *gc.get_threshold()[1:])
    code = run(sys.argv[1:])
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        # Whoever reads went away, or there is no such stream; the interpreter says what it thinks of that.
        sys.exit(code)
    os._exit(code)


def run(arguments: list[str]) -> int:
    """The exit code of the command with these arguments; what it has to say is then written."""
    from preflight.errors import UsageError

    try:
        code = cli.main(arguments, prog_name="preflight", standalone_mode=False)
    except click.ClickException as error:
        from preflight.cli_hints import hinted

        hinted(error, cli).show()
        return 2
    except UsageError as error:
        _complain(f"preflight: {error}")
        return 2
    except (click.exceptions.Abort, KeyboardInterrupt):
        _complain("preflight: interrupted")
        return 130
    except Exception:
        import traceback

        _complain(traceback.format_exc())
        said = "this is a bug in preflight, not in your job; please report the lines above"
        _complain(f"preflight {__version__}: {said}")
        return 5
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
