"""The `deepspeed` launcher: it reads a hostfile and reaches the other nodes itself (pdsh by default).

The options are generated (preflight/tables). Source of defaults: deepspeed/launcher/runner.py. It ignores
MASTER_ADDR and MASTER_PORT of the environment; without `--master_addr` it asks the first host of the hostfile for its
address.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import (
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
from preflight.sources.launchers.options import Given, Scanned, generated, scan, texts
from preflight.sources.launchers.paths import paths_of, relative
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_text, state_choices, state_unknown
from preflight.tables.deepspeed_runner import DEEPSPEED_RUNNER

_DEFAULT_PORT = 29500
#: The last two are of DeeperSpeed, the fork that gpt-neox is started with.
_OPTIONS = generated(DEEPSPEED_RUNNER, valued={"comment": "--comment", "account": "--account"})


class DeepSpeedReader:
    """Reads the line of the deepspeed launcher."""

    name: str = "deepspeed"
    names: tuple[str, ...] = (
        "deepspeed",
        "ds",
        "deepspeed.pt",
        "-m deepspeed.launcher.runner",
        "-m deepspeed",
    )

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State hosts, counts, the store's place, and refer to the hostfile and the configuration."""
        scanned = scan(line.words[1:], _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        stating = Stating(self.name, line.scope, line.command.condition)
        program = started(
            line,
            self.name,
            scanned.rest,
            tree,
            module=scanned.last("module") is not None,
            python=scanned.last("no_python") is None,
        )
        state_unknown(stating, scanned)
        state_choices(stating, scanned, DEEPSPEED_RUNNER)
        _state_counts(stating, scanned)
        stating.given("master_addr", scanned.last("master_addr"), as_text)
        port = scanned.last("master_port")
        if port is not None:
            stating.given("master_port", port, as_int)
        elif not scanned.incomplete:
            word = line.words[0]
            spelling = f"{word.spelling} (without --master_port)"
            stating.say("master_port", Known(_DEFAULT_PORT), word.span, spelling, strength=Strength.DEFAULT)
        stating.given("node_rank", scanned.last("node_rank"), as_int)
        stating.given("multinode_launcher", scanned.last("launcher"), as_text)
        stating.given("each_node_itself", scanned.last("no_ssh"), lambda _: Known(True))
        return Reading(
            claims=(*stating.claims, *program.claims),
            launches=(program.launch,),
            references=(*_hostfile(scanned, line, tree), *_environment(line, tree), *program.references),
        )


def _state_counts(stating: Stating, scanned: Scanned) -> None:
    nodes = scanned.last("num_nodes")
    if nodes is not None and not _is_default(nodes):
        # The first N hosts of the hostfile: deepspeed decides, whatever else was allocated.
        stating.given("nodes", nodes, as_int, strength=Strength.SCHEDULER)
        stating.given("nodes", nodes, as_int, relation=Relation.AT_LEAST)
    stating.given("min_nodes", scanned.last("min_elastic_nodes"), as_int)
    gpus = scanned.last("num_gpus")
    if gpus is not None and not _is_default(gpus):
        stating.given("processes_per_node", gpus, as_int)
    for option in ("include", "exclude"):
        stating.given(f"{option}d_slots", scanned.last(option), lambda value: lift(_entries, value))
    include = scanned.last("include")
    if include is None or texts(include.value) == ("",):
        return
    stating.given("hosts", include, lambda value: lift(_included_hosts, value))
    stating.given("nodes", include, lambda value: lift(lambda item: len(_included_hosts(item)), value))
    if any(":" in text for text in texts(include.value)):
        stating.given("processes_per_node", include, _included_slots)


def _is_default(given: Given) -> bool:
    """-1 stands for "not given"."""
    return texts(given.value) == ("-1",)


def _entries(item: Plain) -> tuple[str, ...]:
    return tuple(part for part in str(item).split("@") if part)


def _included_hosts(item: Plain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(part.partition(":")[0] for part in str(item).split("@") if part))


def _included_slots(value: Value) -> Value:
    """`worker-0:0,1@worker-1:0,1`: the number of slots when it is the same on every host."""
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
    """`.deepspeed_env` beside the launch: deepspeed exports what it holds on every node."""
    target = relative(".deepspeed_env", line, tree)
    if target is not None and isinstance(tree.read(target), SourceFile):
        yield Reference(target, "environment", line.words[0].span, line.scope)


def _hostfile(scanned: Scanned, line: LaunchLine, tree: Tree) -> Iterator[Reference]:
    given = scanned.last("hostfile")
    for path in paths_of(given.value, given.parts) if given is not None else ():
        target = relative(path, line, tree)
        if given is not None and target is not None:
            yield Reference(target, "hostfile", given.span, line.scope)
