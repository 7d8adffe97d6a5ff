"""The command line: click verbs that call `preflight.api` and turn its answer into output and an exit code.

Nothing heavier than click is imported before a verb runs, so that `--help` stays quick.
"""

from __future__ import annotations

import functools
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight import __version__, options
from preflight.cli_baseline import baseline

if TYPE_CHECKING:
    from preflight.report import Report


F = TypeVar("F", bound=Callable[..., Any])

_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Verbs(click.Group):
    """A group that names the nearest verb for one that does not exist, and the files that were meant for lint."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Click's own, with a better sentence."""
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from difflib import get_close_matches

            near = get_close_matches(args[0], self.commands, n=1)
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
    preflight judge recording.json         the same verdict again from a saved recording

    Exit codes: 0 go, 1 no-go, 2 usage, 3 incomplete, 4 nothing to do, 5 a bug in preflight.
    """


def _deadline(name: str, default: float, help: str, *, least: float = 0.5, most: float = 600) -> Callable[[F], F]:
    """An option for how many seconds something may take."""
    kind = click.FloatRange(least, most)
    return click.option(name, type=kind, default=default, show_default=True, metavar="S", help=help)


cli.add_command(baseline)


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

    wanted, given = _with_stdin(paths or (Path(),), chosen)
    found = api.configure(options.choices(chosen), wanted, root=root)
    if chosen["list_files"]:
        jobs = api.jobs_in(wanted, root=root, exclude=found.configuration.exclude, given=given)
        lines = [[job.name, *(f"    {file.path}  ({file.kind})" for file in job.files)] for job in jobs]
        _print("".join(f"{line}\n" for of_job in lines for line in of_job))
        return 0
    kept = None if chosen["no_cache"] else api.default_cache()
    make = functools.partial(
        api.lint,
        wanted,
        root=root,
        configuration=found.configuration,
        given=given,
        cache=kept,
        jobs=chosen["jobs"] or api.usable_cpus(),
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
    return _deliver("lint", chosen, make, output=found.output)


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--hosts", metavar="HOSTS", help="The job's nodes in rank order: node[1-4] or a,b,c.")
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Take the nodes from here.",
)
@click.option(
    "--on",
    "executor",
    metavar="EXECUTOR",
    help="How nodes are reached: ssh (default with hosts) or local (processes on this machine).",
)
@click.option("--trust-job", is_flag=True, help="Use hosts, interpreter and environment that the job's files name.")
@click.option("--python", metavar="PATH", help="Interpreter on the nodes that the ranks run with.")
@click.option("--directory", metavar="DIR", help="Working directory of the ranks on the nodes.")
@click.option(
    "--prelude",
    is_flag=True,
    help="Run the job's set-up lines (module load ...) on the nodes; needs --trust-job.",
)
@click.option(
    "--until",
    type=click.Choice(["node", "link", "smoke"]),
    default="smoke",
    show_default=True,
    help="Last stage: facts of nodes, links between them, or the short training run.",
)
@click.option("--keep-going", is_flag=True, help="Run the smoke stage even after errors that will surely stop it.")
@click.option("--save", type=click.Path(path_type=Path, dir_okay=False), help="Keep the recording here, for judge.")
@click.option(
    "--steps",
    type=click.IntRange(1, 100_000),
    help="Training steps of the smoke run.",
)
@_deadline("--open-deadline", 8.0, "For reaching a node.")
@_deadline("--node-deadline", 10.0, "For the facts of a node.")
@_deadline("--link-deadline", 10.0, "For one round of links.")
@_deadline("--smoke-deadline", 60.0, "For the smoke run.", least=1, most=3600)
@options.ROOT
@options.JUDGING
def check(paths: tuple[Path, ...], root: Path | None, save: Path | None, **chosen: Any) -> int:
    """Lint a job, then look at its nodes, between them, and train a few steps on them.

    PATHS are the job's files, as for lint. Nothing is installed on the nodes and nothing of preflight stays there.
    """
    from preflight import api
    from preflight.run import CheckOptions

    _possible(chosen, save)
    names = CheckOptions.field_names()
    wanted = CheckOptions(**{name: chosen[name] for name in names if chosen.get(name) is not None})
    configured = api.configure(options.choices(chosen), paths, root=root)

    def report() -> Report:
        from preflight.deliver import write
        from preflight.recording import save as dump
        from preflight.reporters.live import live_progress

        with live_progress(sys.stderr) as progress:
            recording, found = api.check(
                paths, wanted, root=root, configuration=configured.configuration, progress=progress
            )
        if save is not None:
            write(save, dump(recording))
        return found

    return _deliver("check", chosen, report, output=configured.output)


@cli.command()
@click.argument("recording", type=click.Path(path_type=Path, dir_okay=False))
@options.JUDGED_AGAIN
def judge(recording: Path, allow_incomplete: bool, **chosen: Any) -> int:
    """Judge a saved recording again: the same verdict and findings, with no cluster."""

    from preflight import api

    def report() -> Report:
        found = api.judge(recording)
        return replace(found, exit_code=0) if allow_incomplete and found.exit_code == 3 else found

    return _deliver("judge", chosen, report)


@cli.command()
@click.argument("name", metavar="ID")
@options.SITE_RULES
def explain(name: str, site_rules: tuple[Path, ...]) -> int:
    """Print what a rule or check looks for, why it matters and how to fix it.

    ID may also be its name, or an area (RDV), which lists what the area holds.
    """
    from preflight.explain import explanation

    _print(explanation(name, site_rules, width=_columns()) + "\n")
    return 0


@cli.command()
@click.option("-o", "--output", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option(
    "--to", "folder", type=click.Path(path_type=Path, file_okay=False), help="With markdown: write pages here."
)
@options.SITE_RULES
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
@click.argument("document", type=click.Choice(["report", "recording", "config", "site-rules"]), default="report")
def schema(document: str) -> int:
    """Print the JSON Schema of the report, of a recording, of a configuration file, or of site rules."""
    import json

    from preflight import recording, report, settings, site_rules

    makers: dict[str, Callable[[], dict[str, Any]]] = {
        "report": report.schema,
        "recording": recording.schema,
        "config": settings.schema,
        "site-rules": site_rules.schema,
    }
    found = makers[document]()
    _print(json.dumps(found, indent=2, sort_keys=True) + "\n")
    return 0


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
    from preflight.assemble import STDIN

    name = name or Path(STDIN)
    if name.is_dir():
        raise click.UsageError(f"--stdin-name {name}: that is a folder; a file is expected")
    content = sys.stdin.buffer.read()
    return tuple(name if path == Path("-") else path for path in paths), {name: content}


def _possible(chosen: dict[str, Any], save: Path | None) -> None:
    """Refuse before a run of minutes what would only fail behind it.

    Raises:
        UsageError: options that contradict each other, or a file that cannot be where it shall be.
    """
    from preflight.errors import UsageError

    if chosen["prelude"] and not chosen["trust_job"]:
        raise UsageError("--prelude runs set-up lines of the job's files on the nodes; it needs --trust-job too")
    if save is not None and not save.parent.is_dir():
        raise UsageError(f"--save {save}: there is no folder {save.parent}")


def _deliver(verb: str, chosen: dict[str, Any], make: Callable[[], Report], *, output: str = "") -> int:
    """Make the report and write it in every format asked for, else as `output`; the exit code is the report's own.

    After a bug in preflight there is a report too, which says so: whoever waits for the file finds one.
    """
    from preflight import deliver
    from preflight.errors import UsageError

    outputs = deliver.outputs(chosen["outputs"] or ((output,) if output else ()))
    shown = {"color": chosen["color"], "verbosity": -1 if chosen["quiet"] else chosen["verbose"]}

    def hand_out(report: Report) -> int:
        deliver.deliver(report, outputs, statistics=chosen["statistics"], **shown)
        return report.exit_code

    try:
        report = make()
    except (UsageError, click.ClickException):
        raise
    except Exception as error:
        from preflight import api

        hand_out(api.crashed(error, verb=verb))
        raise
    return hand_out(report)


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
    """The `preflight` command: every way out of it has one of the documented exit codes."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """The exit code of the command with these arguments; what it has to say is then written."""
    from preflight.errors import UsageError

    try:
        code = cli.main(arguments, prog_name="preflight", standalone_mode=False)
    except click.ClickException as error:
        error.show()
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
