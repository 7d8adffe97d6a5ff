"""`torchx run ... dist.ddp -j 2x8 --script train.py`: torchrun on the nodes that a scheduler provides.

Source: torchx/components/dist.py and cli/cmd_run.py of torchx 0.7.
"""

from __future__ import annotations

from preflight.model.job import Plain, Relation, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.launcher_settings import state_launcher
from preflight.sources.launchers.option_parser import ScannedLine, scan, table, text_of, texts
from preflight.sources.launchers.started_program import read_program

_RUN = table(
    {"scheduler": "-s --scheduler", "cfg": "-cfg --scheduler_args", "other": "--workspace --parent_run_id"},
    {"flag": "--dryrun --wait --log --tee_logs --stdin", "help": "-h --help"},
    abbreviations=False,
    single_dash=True,
)
_DDP = table(
    {
        "script": "--script",
        "module": "-m",
        "image": "--image",
        "name": "--name",
        "gpu": "--gpu",
        "nodes": "-j",
        "env": "--env",
        "max_restarts": "--max_retries",
        "port": "--rdzv_port",
        "resource": "-h",
        "cpu": "--cpu",
        "memMB": "--memMB",
        "mounts": "--mounts",
        "other": "--metadata --debug --tee --rdzv_backend --rdzv_conf --role",
    },
    {},
    abbreviations=False,
)
_COMPONENTS = ("dist.ddp", "dist.spmd", "torchx.components.dist:ddp")


class TorchxReader:
    """Reads the command line of torchx when it starts one of its distributed components."""

    name: str = "torchx"
    names: tuple[str, ...] = ("torchx",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, processes and program."""
        if len(line.words) < 3 or text_of(line.words[1]) != "run":
            return Reading()
        outer = scan(line.words[2:], _RUN)
        if not outer.rest or text_of(outer.rest[0]) not in _COMPONENTS:
            return Reading()
        inner = scan(outer.rest[1:], _DDP)
        program, module = inner.last("script"), inner.last("module")
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        size = inner.last("nodes")
        if size is not None:
            builder.add_setting("nodes", size, lambda value: lift(_nodes, value))
            builder.add_setting("nodes", size, lambda value: lift(_nodes, value), relation=Relation.REQUIRES)
            builder.add_setting("processes_per_node", size, lambda value: lift(_processes, value))
        builder.add_setting("max_restarts", inner.last("max_restarts"), as_int)
        builder.add_setting("master_port", inner.last("port"), as_int)
        given = ScannedLine((*outer.given, *inner.given), (), outer.incomplete or inner.incomplete)
        state_launcher(builder, "torchx", line.words[0], given)
        chosen = program or module
        words = [word for word in outer.rest if chosen is not None and text_of(word) in texts(chosen.value)]
        started = read_program(line, self.name, [*words[:1], *inner.rest], tree, module=program is None)
        return Reading(
            claims=(*builder.claims, *started.claims),
            launches=(started.launch,),
            references=started.references,
        )


def _nodes(item: Plain) -> Plain:
    """The nodes in `2x8` and `1:2x8`; a number alone counts the processes of one node."""
    nodes, times, _ = str(item).partition("x")
    return int(nodes.rpartition(":")[2]) if times else 1


def _processes(item: Plain) -> Plain:
    _, times, processes = str(item).partition("x")
    return int(processes if times else str(item))
