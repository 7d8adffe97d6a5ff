"""`composer`, the launcher of MosaicML's Composer: it runs on every node; options or variables set what the nodes
share.

The options are generated (preflight/sources/tables). Source of defaults and precedence: composer/cli/launcher.py. An
option overrides the variable of its name (NODE_RANK, MASTER_ADDR, ...).
"""

from __future__ import annotations

from preflight.model.job import Known, Plain, Relation, Strength, Unresolved, Value, as_int, lift
from preflight.model.job.quantities import SETTING_PREFIX
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    Setting,
    as_text,
    option_setting,
    state_unknown,
    variable_setting,
)
from preflight.sources.launchers.option_parser import ScannedLine, generated_table, scan
from preflight.sources.launchers.started_program import read_program
from preflight.sources.tables import load_table

_OPTIONS = generated_table(load_table("composer"))
_VARIABLES = {
    "nproc": "LOCAL_WORLD_SIZE",
    "world_size": "WORLD_SIZE",
    "base_rank": "BASE_RANK",
    "node_rank": "NODE_RANK",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}


class ComposerReader:
    """Reads the command line of composer."""

    name: str = "composer"
    names: tuple[str, ...] = ("composer", "-m composer.cli.launcher", "-m composer")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State processes, world size, node rank and the address of the store."""
        scanned = scan(line.words[1:], _OPTIONS)
        if scanned.last("help", "version") is not None:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(
            line,
            self.name,
            scanned.rest,
            tree,
            module=scanned.last("module_mode") is not None,
            python=scanned.last("command_mode") is None,
        )
        found = {dest: _setting_in_force(dest, scanned, line) for dest in _VARIABLES}
        builder.add_setting("processes_per_node", found["nproc"], as_int)
        builder.add_setting("node_rank", found["node_rank"], as_int)
        builder.add_setting("base_rank", found["base_rank"], as_int)
        builder.add_setting("master_addr", found["master_addr"], as_text)
        builder.add_setting("master_port", found["master_port"], as_int)
        _state_world(builder, found["world_size"], found["nproc"], line, hidden=scanned.incomplete)
        state_unknown(builder, scanned)
        for dest, setting in {**_switches(scanned), **found}.items():
            builder.add_setting(f"{SETTING_PREFIX}composer_launch.{dest}", setting, _as_written)
        if scanned.incomplete:
            first = line.words[0]
            hidden = Unresolved("further options")
            builder.add(f"{SETTING_PREFIX}composer_launch.(call)", hidden, first.span, first.spelling)
        return Reading(
            claims=(*builder.claims, *program.claims), launches=(program.launch,), references=program.references
        )


def _switches(scanned: ScannedLine) -> dict[str, Setting | None]:
    return {dest: option_setting(scanned.last(dest)) for dest in ("module_mode", "command_mode")}


def _as_written(value: Value) -> Value:
    """A number where the text is one; a switch stays true."""
    return lift(lambda item: int(item) if isinstance(item, str) and item.isdigit() else item, value)


def _setting_in_force(dest: str, scanned: ScannedLine, line: LaunchLine) -> Setting | None:
    return option_setting(scanned.last(dest)) or variable_setting(line.command.environment.get(_VARIABLES[dest]))


def _state_world(
    builder: ClaimBuilder, world: Setting | None, processes: Setting | None, line: LaunchLine, *, hidden: bool
) -> None:
    """State the world size and the number of nodes it needs; one node when it is not set."""
    if world is None:
        if not hidden:
            word = line.words[0]
            spelling = f"{word.spelling} (without --world_size)"
            builder.add("nodes", Known(1), word.span, spelling, strength=Strength.DEFAULT, relation=Relation.REQUIRES)
        return
    total = as_int(world.value)
    builder.add_setting("world_size", world, lambda _: total, relation=Relation.REQUIRES)
    if processes is not None:
        group_size: Value = as_int(processes.value)
        builder.add_setting("nodes", world, lambda _: lift(_quotient, total, group_size), relation=Relation.REQUIRES)


def _quotient(total: Plain, group_size: Plain) -> Plain:
    groups, rest = divmod(int(str(total)), int(str(group_size)))
    if rest or not groups:
        raise ValueError(f"{total} ranks cannot be divided into groups of {group_size}")
    return groups
