"""The command line: click commands that call `preflight.api` and turn its result into output and an exit code.

Nothing heavier than click is imported before a command runs, so that `--help` stays fast.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
from collections.abc import Callable, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preflight import __version__
from preflight.cli import live as live_options
from preflight.cli import options
from preflight.cli.live import deliver_report, nodes, smoke
from preflight.cli.past_runs import diagnose, diff, history
from preflight.cli.plan import comment, plan
from preflight.cli.servers import admission_check, lsp, manifest, serve, webhook
from preflight.cli.setup import baseline, doctor, init

if TYPE_CHECKING:
    from preflight.engine.report import Report
    from preflight.model.progress import Progress


#: The number of new objects that starts a garbage collection.
_COLLECTION_THRESHOLD = 250_000
_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


class _Commands(click.Group):
    """A group of commands that suggests the most similar command for an unknown command, and lint for a file name."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            from preflight._util.usage_error import similar_names

            # Swapped letters are the most common mistake.
            similar_commands = sorted(
                similar_names(args[0], self.commands, 3), key=lambda name: sorted(name) != sorted(args[0].lower())
            )
            if similar_commands:
                hint = f"Did you mean {similar_commands[0]!r}?"
            elif Path(args[0]).suffix:
                hint = f"To check a job's files, run: preflight lint {args[0]}"
            else:
                hint = f"Commands: {', '.join(self.commands)}."
            raise click.UsageError(f"No such command {args[0]!r}. {hint}", ctx)
        return super().resolve_command(ctx, args)

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Add a command as click does; the logging options may also follow the command's name."""
        options.logging_options(cmd)
        super().add_command(cmd, name)

    def _main_shell_completion(
        self, ctx_args: MutableMapping[str, Any], prog_name: str, complete_var: str | None = None
    ) -> None:
        """Complete the command line as click does, but with a bash script that runs only the `preflight` on PATH."""
        if "_PREFLIGHT_COMPLETE" in os.environ:
            from preflight.cli.options import complete_from_path

            complete_from_path()
        super()._main_shell_completion(ctx_args, prog_name, complete_var)


@click.group(cls=_Commands, context_settings=_CONTEXT_SETTINGS)
@click.version_option(__version__, "--version", prog_name="preflight", message="%(prog)s %(version)s")
def cli() -> None:
    """Finds what will kill or hang a distributed training job, before it is submitted.

    \b
    preflight lint  train.sbatch           read the job's files; no cluster needed
    preflight plan  train.sbatch           what every rank will run, according to the files
    preflight check train.sbatch --hosts node[1-4]
                                           lint, then check the nodes and the links, and train a few steps
    preflight smoke train.sbatch --hosts node[1-4]
                                           only the short training run
    preflight nodes --hosts node[1-200]    the nodes and links of a cluster, without a job
    preflight history                      what many runs show together: nodes that fail again, drifts
    preflight serve                        a page over these runs, for a browser
    preflight judge recording.json         the same verdict again from a saved recording
    preflight diagnose logs/               after a failure: which rank failed first, and why
    preflight diff old.json new.json       what changed between two reports or recordings
    preflight lsp                          findings while you type, for editors
    preflight comment --github             comment on a pull request: new findings, and what the ranks will run
    preflight doctor                       what this machine can and cannot check
    preflight init                         write a commented configuration from what lint finds here
    preflight webhook                      in a Kubernetes cluster: refuse faulty jobs when they are submitted

    Exit codes: 0 go, 1 no-go, 2 usage, 3 incomplete, 4 not judged, 5 a bug in preflight.
    """


options.logging_options(cli, hidden=False)
for command in (
    *(baseline, comment, diagnose, diff, doctor, history, init, lsp),
    *(manifest, nodes, plan, serve, smoke, webhook, admission_check),
):
    cli.add_command(command)


@cli.command()
@options.PATHS
@options.ROOT
@options.FIX_OPTIONS
@options.STDIN_NAME
@options.LIST_FILES
@options.SINCE
@options.CACHE
@options.JOBS
@options.VARIABLES
@options.JUDGE_OPTIONS
def lint(paths: tuple[Path, ...], root: Path | None, **option_values: Any) -> int:
    """Check jobs by reading their files; no cluster needed.

    PATHS are scripts, configuration files or directories (default: the working directory), or - for standard input.
    Files named together are read as one job, with the files that they refer to. Nothing is executed.
    """
    from preflight import api
    from preflight._util.cache import default_cache
    from preflight.config.resolve import jobs_in

    input_paths, stdin_content = _with_stdin(paths or (Path(),), option_values)
    run_settings = api.configure(options.choices(option_values), input_paths, root=root)
    if option_values["list_files"]:
        with _progress(option_values) as progress:
            jobs = jobs_in(
                input_paths,
                root=root,
                exclude=run_settings.configuration.exclude,
                given=stdin_content,
                progress=progress,
            )
        lines = [[job.name, *(f"    {file.path}  ({file.kind})" for file in job.files)] for job in jobs]
        _print("".join(f"{line}\n" for of_job in lines for line in of_job))
        return 0
    # A cached report does not record the variables that it was made with.
    cache = None if option_values["no_cache"] or option_values["variables"] else default_cache()

    def make() -> Report:
        with _progress(option_values) as progress:
            return api.lint(
                input_paths,
                root=root,
                configuration=run_settings.configuration,
                given=stdin_content,
                cache=cache,
                jobs=option_values["jobs"] or api.usable_cpus(),
                since=option_values["since"],
                progress=progress,
            )

    if option_values["diff"]:
        fixes = api.fixes(make(), input_paths, root=root, unsafe=option_values["unsafe_fixes"])
        _print(fixes.diff())
        _print_error(fixes.summary(is_preview=True))
        return 1 if fixes.changes else 0
    if option_values["fix"]:
        fixes = api.fixes(make(), input_paths, root=root, unsafe=option_values["unsafe_fixes"]).written()
        _print_error(fixes.summary(is_preview=False))
    elif option_values["unsafe_fixes"]:
        raise click.UsageError("--unsafe-fixes needs --fix, which edits files, or --diff, which shows the edits")
    return deliver_report(
        "lint", option_values, make, output=run_settings.output, price_per_gpu_hour=run_settings.price_per_gpu_hour
    )


@cli.command()
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@live_options.NODE_OPTIONS
@click.option(
    "--allow",
    multiple=True,
    type=click.Choice(["write", "metadata"]),
    help="write: test with a small file whether the job's output folders are writable; metadata: query the cloud's "
    "metadata service on each node for planned preemptions. Repeatable.",
)
@live_options.stage_options("smoke", "the short training run")
@live_options.SAVE
@live_options.HISTORY
@live_options.BACKUP
@live_options.PROFILE_MODEL
@live_options.BACKEND
@live_options.STEPS
@live_options.STAGE_DEADLINES
@live_options.LINKS
@live_options.SMOKE
@options.ROOT
@options.VARIABLES
@options.JUDGE_OPTIONS
def check(paths: tuple[Path, ...], root: Path | None, save: Path | None, **option_values: Any) -> int:
    """Lint a job, then check its nodes and the links between them, and train a few steps.

    PATHS are the job's files, as for lint. Nothing is installed on the nodes, and nothing of preflight remains there.
    """
    return live_options.run_live("check", paths, root, save, option_values)


@cli.command()
@click.argument("recording", type=click.Path(path_type=Path, dir_okay=False))
@options.REJUDGE_OPTIONS
def judge(recording: Path, allow_incomplete: bool, **option_values: Any) -> int:
    """Judge a saved recording again: the same verdict and findings, without a cluster."""

    from preflight import api
    from preflight.model.progress import SHOW_WAIT_AFTER_S
    from preflight.reporters.live.display import live_progress

    def report() -> Report:
        with live_progress(
            sys.stderr, color=option_values["color"], quiet=option_values["quiet"], after_s=SHOW_WAIT_AFTER_S
        ) as progress:
            report_made = api.judge(recording, progress=progress)
        is_allowed = report_made.exit_code == 3 or (report_made.exit_code == 4 and report_made.inputs)
        return replace(report_made, exit_code=0) if allow_incomplete and is_allowed else report_made

    return deliver_report("judge", option_values, report)


@cli.command()
@click.argument("name", metavar="ID")
@options.EXTRA_RULES
def explain(name: str, site_rules: tuple[Path, ...]) -> int:
    """Explain a rule or check: what it looks for, why it matters and how to fix a finding.

    ID is an id or a name, an area (RDV) to list its rules and checks, or a symptom that diagnose reports.
    """
    from preflight.commands.rule_docs import explanation

    _print(explanation(name, site_rules, width=_terminal_width()) + "\n")
    return 0


@cli.command()
@click.option("-o", "--output", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="With markdown: write the pages to this folder.",
)
@options.EXTRA_RULES
def rules(output: str, folder: Path | None, site_rules: tuple[Path, ...]) -> int:
    """List every rule and check."""
    from preflight.commands.rule_docs import listing
    from preflight.plugins.installed import all_items

    if folder is not None and output != "markdown":
        raise click.UsageError("--to needs --output markdown")
    if folder is not None:
        from preflight.commands import rule_docs

        changed = rule_docs.write(folder, all_items(site_rules))
        _print("".join(f"{path}\n" for path in changed) or f"{folder} is up to date\n")
    else:
        _print(listing(output, site_rules, width=_terminal_width()))
    return 0


@cli.command()
def quantities() -> int:
    """List the quantities that a job's files can state, for writing rules."""
    from preflight.commands.rule_docs import vocabulary

    _print(vocabulary())
    return 0


@cli.command()
@click.argument(
    "document",
    type=click.Choice(
        [
            *("report", "recording", "config", "site-rules", "diagnosis", "difference", "plan", "examination"),
            *("events", "history"),
        ]
    ),
    default="report",
)
def schema(document: str) -> int:
    """Print the JSON Schema of a document that preflight writes or reads (default: the report)."""
    import json

    from preflight.commands import doctor as examination
    from preflight.commands.diagnose import diagnosis
    from preflight.commands.diff import difference
    from preflight.commands.history import account
    from preflight.commands.plan import job_plan
    from preflight.config import document as settings
    from preflight.engine import report
    from preflight.model import recording_io
    from preflight.plugins.site import loader
    from preflight.reporters import events

    schema_functions: dict[str, Callable[[], dict[str, Any]]] = {
        "report": report.schema,
        "recording": recording_io.schema,
        "config": settings.schema,
        "site-rules": loader.schema,
        "diagnosis": diagnosis.schema,
        "difference": difference.schema,
        "plan": job_plan.schema,
        "examination": examination.schema,
        "events": events.schema,
        "history": account.schema,
    }
    document_schema = schema_functions[document]()
    _print(json.dumps(document_schema, indent=2, sort_keys=True) + "\n")
    return 0


def _progress(option_values: dict[str, Any]) -> AbstractContextManager[Progress]:
    """Show progress while files are read, without a thread, because a thread would prevent several processes."""
    from preflight.model.progress import SHOW_WAIT_AFTER_S
    from preflight.reporters.live.display import live_progress

    return live_progress(
        sys.stderr, color=option_values["color"], quiet=option_values["quiet"], after_s=SHOW_WAIT_AFTER_S, threads=False
    )


def _terminal_width() -> int | None:
    """Return the width of the terminal; None if standard output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


#: A pipe delivers a script at once; without a limit, a terminal or a stuck program would block forever.
_STDIN_TIMEOUT_S = 120.0


def _with_stdin(paths: tuple[Path, ...], option_values: dict[str, Any]) -> tuple[tuple[Path, ...], dict[Path, bytes]]:
    """Replace `-` in the paths with the name of standard input, and return its content by that name."""
    name = option_values["stdin_name"]
    if Path("-") not in paths:
        if name is not None:
            raise click.UsageError("--stdin-name needs - among the paths, to read standard input")
        return paths, {}
    if option_values["fix"] or option_values["diff"]:
        raise click.UsageError("--fix and --diff edit files and cannot be used with standard input")
    if name is not None and name.is_dir():
        raise click.UsageError(f"--stdin-name {name}: expected a file, but this is a folder")
    from preflight._util.regular_file import read_pipe
    from preflight.sources.formats.tree import MAX_BYTES

    try:
        # One byte more than a file may have, so that the reader reports that it is too large. The stream has no buffer,
        # because a thread that still waits in a buffered stream holds a lock that the interpreter needs at exit.
        stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        content = read_pipe(stream, MAX_BYTES + 1, _STDIN_TIMEOUT_S)
    except TimeoutError as error:
        raise click.UsageError(
            f"-: cannot read the script from standard input: {error}; close standard input, or save the script and "
            "pass its path"
        ) from None
    if name is None:
        from preflight.plugins import registry
        from preflight.sources.discovery.assemble import name_by_content

        name = Path(name_by_content(content, registry.sources()))
    return tuple(name if path == Path("-") else path for path in paths), {name: content}


def _print(text: str) -> None:
    from preflight.reporters.output import print_text

    print_text(text)


def _print_error(text: str) -> None:
    """Print to standard error, without secrets, control characters or CI commands that a hostile file may contain."""
    from preflight._util.redaction import scrub
    from preflight._util.sanitize import printable

    click.echo(printable(scrub(text)), err=True)


def main() -> None:
    """Run the `preflight` command and exit with one of the documented exit codes.

    Garbage is collected rarely, because all objects that imports create are in use, and a scan of these objects takes a
    twelfth of the time of a check.

    After the exit handlers, the process ends immediately, because the release of every object would take a tenth of a
    second after a check.
    """
    gc.set_threshold(_COLLECTION_THRESHOLD, *gc.get_threshold()[1:])
    _search_only_absolute_folders()
    code = run(sys.argv[1:])
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        # The reader closed the pipe, or the stream does not exist; let the interpreter report it.
        sys.exit(code)
    os._exit(code)


def _search_only_absolute_folders() -> None:
    """Remove empty and relative entries from PATH, which could run a program of the examined tree."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    os.environ["PATH"] = os.pathsep.join(folder for folder in folders if os.path.isabs(folder))  # noqa: PTH117


def run(arguments: list[str]) -> int:
    """Run the command with these arguments, print its output and return its exit code."""
    from preflight._util.usage_error import UsageError

    try:
        code = cli.main(arguments, prog_name="preflight", standalone_mode=False)
    except click.ClickException as error:
        import io

        from preflight.cli.options import add_hint

        message_text = io.StringIO()
        add_hint(error, cli).show(message_text)
        _print_error(message_text.getvalue().rstrip("\n"))
        return 2
    except UsageError as error:
        _print_error(f"preflight: {error}")
        return 2
    except (click.exceptions.Abort, KeyboardInterrupt):
        _print_error("preflight: interrupted")
        return 130
    except Exception:
        import traceback

        from preflight._util.redaction import scrub_traceback

        _print_error(scrub_traceback(traceback.format_exc()))
        advice = "this is a bug in preflight, not in your job; please report the lines above"
        _print_error(f"preflight {__version__}: {advice}")
        return 5
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
