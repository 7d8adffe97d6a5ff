"""`preflight nodes`: the checks of nodes and links without a job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from preflight.cli import live_options, options


class _WithProperties(click.Command):
    """A command whose help ends with the properties that may be required."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the properties. Their module is imported only here, because it needs more than click."""
        from preflight.model.node_values import PROPERTIES

        with formatter.section("Properties for --expect"):
            formatter.write_dl(list(PROPERTIES.items()))


@click.command(cls=_WithProperties)
@live_options.NODE_OPTIONS
@click.option(
    "--expect",
    "requirements",
    multiple=True,
    metavar="NAME=VALUE",
    help="What every node must have: gpus=8, driver=550, memory>=1000. With = a version may be a part (550 of 550.54) "
    "and a text a part of a longer one; == compares all of it. gpus=N also turns on the checks of GPUs. Repeatable.",
)
@click.option(
    "--golden",
    metavar="NODE|FILE[:NODE]",
    default="",
    help="Every node must have the properties of this one, which is examined as well, or of one in a saved recording.",
)
@click.option(
    "--until",
    type=click.Choice(["node", "link", "smoke"]),
    default="link",
    show_default=True,
    help="The last stage to run: facts of nodes, links between them, or a short training run (needs --python).",
)
@click.option("--keep-going", is_flag=True, help="Run the smoke stage even after errors that are certain to stop it.")
@live_options.SAVE
@live_options.HISTORY
@live_options.ACT
@live_options.STEPS
@live_options.STAGE_DEADLINES
@live_options.LINKS
@live_options.SMOKE
@options.JUDGE_OPTIONS
def nodes(save: Path | None, **chosen: Any) -> int:
    """Check nodes and the links between them without a job: before they take work, every night, after a repair.

    Nodes are found and reached as by check: --hosts, --hostfile, --on slurm, kubernetes, ray or mpi. Checks that
    compare something with a job's files do not apply.
    """
    return live_options.run_live("nodes", (), None, save, chosen)
