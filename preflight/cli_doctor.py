"""`preflight doctor`: what this machine can and cannot check."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

FORMATS = ("text", "json")


@click.command()
@click.option("--hosts", default="", metavar="HOSTS", help="Also try to reach these: node[1-4] or a,b,c.")
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also try to reach the hosts of this file.",
)
@click.option("--on", "executor", default="", metavar="EXECUTOR", help="How these are reached; as of check.")
@click.option(
    "--on-option",
    "executor_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Something to tell that executor. Repeatable.",
)
@click.option("--python", "pythons", multiple=True, metavar="PATH", help="A Python that ranks run with. Repeatable.")
@click.option(
    "--deadline",
    "deadline_s",
    type=click.FloatRange(1, 600),
    default=20.0,
    show_default=True,
    metavar="S",
    help="For each thing that is looked at.",
)
@click.option(
    "-o",
    "--output",
    "outputs",
    multiple=True,
    metavar="FORMAT[:FILE]",
    help="Write what was found as text (default) or json. Repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="Only what is missing, and the last line.")
@click.option("--color/--no-color", default=None, help="Colours; without it, on a terminal unless NO_COLOR is set.")
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
    """Tell what this machine can and cannot check, what is lost, and how to get it.

    Looked at: preflight and its packs, the ways to nodes, keys for ssh, Pythons with torch or paddle, GPUs, tools,
    cache, terminal and limits. With --hosts an agent is started on each of them and ended again.

    Exit codes: 0 something can be done here, 1 nothing can.
    """
    from preflight import deliver
    from preflight.doctor.examine import examine

    targets = deliver.targets(outputs or ("text",), FORMATS)
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
            from preflight.doctor.model import to_json

            content = to_json(found)
        else:
            from preflight.doctor.telling import page

            content = page(found, deliver.style_of(path, color, -1 if quiet else 0)).encode("utf-8", "replace")
        deliver.print_bytes(content) if path is None else deliver.write(path, content)
    return found.exit_code
