"""`preflight doctor`: what this machine can and cannot check."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

FORMATS = ("text", "json")


@click.command()
@click.option("--hosts", default="", metavar="HOSTS", help="Also try to reach these hosts: node[1-4] or a,b,c.")
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also try to reach the hosts of this file.",
)
@click.option("--on", "executor", default="", metavar="EXECUTOR", help="How to reach the hosts, as for check.")
@click.option(
    "--on-option",
    "executor_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Option of the executor. Repeatable.",
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
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[:FILE]",
    help="Write the result as text (default) or json. Repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="Show only what is missing, and the last line.")
@click.option("--color/--no-color", default=None, help="Use colours. Default: on a terminal unless NO_COLOR is set.")
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

    It looks at preflight and its packs, executors, SSH keys, Pythons with torch or paddle, GPUs, tools, the cache, the
    terminal and limits. With --hosts it starts an agent on each host and stops it again.

    Exit codes: 0 something can be checked here, 1 nothing can.
    """
    from preflight.commands.doctor.examination import examine
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
    for name, path in targets:
        if name == "json":
            from preflight.commands.doctor.examination_report import to_json

            content = to_json(found)
        else:
            from preflight.commands.doctor.examination_text import page

            content = page(found, output.style_of(path, color, -1 if quiet else 0)).encode("utf-8", "replace")
        output.put(content, name, path)
    return found.exit_code
