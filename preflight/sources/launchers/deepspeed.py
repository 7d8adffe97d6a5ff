"""The `deepspeed` launcher: it reads a hostfile and reaches the other nodes itself (pdsh by default).

The options are generated (preflight/sources/tables). Source of defaults: deepspeed/launcher/runner.py. It ignores
MASTER_ADDR and MASTER_PORT in the environment; without `--master_addr` it uses the address of the first host of the
hostfile.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.job import (
    Known,
    Plain,
    Reference,
    Relation,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    lift,
)
from preflight.sources.base import LaunchLine, Reading, SourceFile, Tree
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    state_all_gpus,
    state_choices,
    state_launcher,
    state_unknown,
)
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    file_references,
    generated_table,
    relative,
    scan,
    texts,
)
from preflight.sources.launchers.started_program import read_program
from preflight.sources.tables import load_table
from preflight.sources.value_readers import as_text

_DEFAULT_PORT = 29500
#: The last two belong to DeeperSpeed, the fork that gpt-neox uses.
_OPTIONS = generated_table(load_table("deepspeed_runner"), valued={"comment": "--comment", "account": "--account"})


class DeepSpeedReader:
    """Reads the command line of the deepspeed launcher."""

    name: str = "deepspeed"
    names: tuple[str, ...] = ("deepspeed", "ds", "deepspeed.pt", "-m deepspeed.launcher.runner", "-m deepspeed")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State hosts, counts and the address of the store; refer to the hostfile and the configuration."""
        scanned = scan(line.words[1:], _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(
            line,
            self.name,
            scanned.rest,
            tree,
            module=scanned.last("module") is not None,
            python=scanned.last("no_python") is None,
        )
        state_unknown(builder, scanned)
        state_choices(builder, scanned, load_table("deepspeed_runner"))
        state_launcher(builder, "deepspeed_launcher", line.words[0], scanned)
        _state_counts(builder, scanned)
        builder.add_setting("master_addr", scanned.last("master_addr"), as_text)
        port = scanned.last("master_port")
        if port is not None:
            builder.add_setting("master_port", port, as_int)
        elif not scanned.incomplete:
            builder.add_default("master_port", Known(_DEFAULT_PORT), line.words[0], "--master_port")
        builder.add_setting("node_rank", scanned.last("node_rank"), as_int)
        _state_defaults(builder, scanned, line)
        builder.add_setting("multinode_launcher", scanned.last("launcher"), as_text)
        builder.add_setting("each_node_itself", scanned.last("no_ssh"), lambda _: Known(True))
        hostfile = file_references(scanned.last("hostfile"), "hostfile", line, tree)
        return program.reading(builder.claims, (*hostfile, *_environment(line, tree)))


def _state_defaults(builder: ClaimBuilder, scanned: ScannedLine, line: LaunchLine) -> None:
    """State what holds without options: one machine, and `--local_rank` for each process."""
    if scanned.incomplete:
        return
    word = line.words[0]
    here = all(scanned.last(option) is None for option in ("hostfile", "include", "num_nodes", "no_ssh", "force_multi"))
    if here:
        # /job/hostfile would be read, which exists only on machines that were prepared for it.
        builder.add_default("starts_here", Known(True), word, "--hostfile")
        gpus = scanned.last("num_gpus")
        if (gpus is None or _is_default(gpus)) and scanned.last("exclude") is None:
            state_all_gpus(builder, word, "--num_gpus")
    launcher = scanned.last("launcher")
    if scanned.last("no_local_rank") is not None:
        return
    # On several machines only the launcher of pdsh passes it; those of MPI and Slurm start the script itself.
    argument: Value = Known("--local_rank={local_rank}")
    if launcher is not None and texts(launcher.value) != ("pdsh",):
        if isinstance(launcher.value, Unresolved):
            argument = launcher.value
        elif here:
            argument = Unresolved("whether the machine has /job/hostfile")
        else:
            return
    builder.add_default("rank_argument", argument, word, "--no_local_rank")


def _state_counts(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    nodes = scanned.last("num_nodes")
    if nodes is not None and not _is_default(nodes):
        # deepspeed takes the first N hosts of the hostfile, whatever the allocation is.
        builder.add_setting("nodes", nodes, as_int, strength=Strength.SCHEDULER)
        builder.add_setting("nodes", nodes, as_int, relation=Relation.AT_LEAST)
    builder.add_setting("min_nodes", scanned.last("min_elastic_nodes"), as_int)
    gpus = scanned.last("num_gpus")
    if gpus is not None and not _is_default(gpus):
        builder.add_setting("processes_per_node", gpus, as_int)
    for option in ("include", "exclude"):
        builder.add_setting(f"{option}d_slots", scanned.last(option), lambda value: lift(_entries, value))
    include = scanned.last("include")
    if include is None or texts(include.value) == ("",):
        return
    builder.add_setting("hosts", include, lambda value: lift(_included_hosts, value))
    builder.add_setting("nodes", include, lambda value: lift(lambda item: len(_included_hosts(item)), value))
    if any(":" in text for text in texts(include.value)):
        builder.add_setting("processes_per_node", include, _included_slots)


def _is_default(given: GivenOption) -> bool:
    """Whether the value is -1, which means "not given"."""
    return texts(given.value) == ("-1",)


def _entries(item: Plain) -> tuple[str, ...]:
    return tuple(part for part in str(item).split("@") if part)


def _included_hosts(item: Plain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.partition(":")[0] for part in str(item).split("@") if part))


def _included_slots(value: Value) -> Value:
    """The number of slots in `worker-0:0,1@worker-1:0,1`, when it is the same on every host."""
    found = []
    for item in alternatives(value):
        counts = {
            len(set(part.partition(":")[2].split(","))) if ":" in part else 0 for part in str(item).split("@") if part
        }
        if len(counts) != 1 or 0 in counts:
            return Unresolved("a different number of slots on each host")
        found.append(Known(counts.pop()))
    return found[0] if len(found) == 1 else Unresolved("one of several --include lists")


def _environment(line: LaunchLine, tree: Tree) -> Iterator[Reference]:
    """Refer to `.deepspeed_env` beside the launch: deepspeed exports its variables on every node."""
    target = relative(".deepspeed_env", line, tree)
    if target is not None and isinstance(tree.read(target), SourceFile):
        yield Reference(target, "environment", line.words[0].span, line.scope)
