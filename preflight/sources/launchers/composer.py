"""`composer`, the launcher of MosaicML's Composer: every node runs it, with what is shared in options or variables.

The options are generated (preflight/tables). Source of defaults and precedence: composer/cli/launcher.py. An option
wins over the variable of its name (NODE_RANK, MASTER_ADDR ...).
"""

from __future__ import annotations

from preflight.job import Known, Plain, Relation, Strength, Value, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.options import Scanned, generated, scan
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Said, Stating, as_text, said, said_by, state_unknown
from preflight.tables.composer import COMPOSER

_OPTIONS = generated(COMPOSER)
_VARIABLES = {
    "nproc": "LOCAL_WORLD_SIZE",
    "world_size": "WORLD_SIZE",
    "base_rank": "BASE_RANK",
    "node_rank": "NODE_RANK",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
}


class ComposerReader:
    """Reads the line of composer."""

    name: str = "composer"
    names: tuple[str, ...] = ("composer", "-m composer.cli.launcher", "-m composer")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State processes, world size, rank of the node and the store's place."""
        scanned = scan(line.words[1:], _OPTIONS)
        if scanned.last("help", "version") is not None:
            return Reading()
        stating = Stating(self.name, line.scope, line.command.condition)
        program = started(
            line,
            self.name,
            scanned.rest,
            tree,
            module=scanned.last("module_mode") is not None,
            python=scanned.last("command_mode") is None,
        )
        found = {dest: _in_force(dest, scanned, line) for dest in _VARIABLES}
        stating.given("processes_per_node", found["nproc"], as_int)
        stating.given("node_rank", found["node_rank"], as_int)
        stating.given("base_rank", found["base_rank"], as_int)
        stating.given("master_addr", found["master_addr"], as_text)
        stating.given("master_port", found["master_port"], as_int)
        _state_world(stating, found["world_size"], found["nproc"], line, hidden=scanned.incomplete)
        state_unknown(stating, scanned)
        return Reading(
            claims=(*stating.claims, *program.claims), launches=(program.launch,), references=program.references
        )


def _in_force(dest: str, scanned: Scanned, line: LaunchLine) -> Said | None:
    return said(scanned.last(dest)) or said_by(line.command.environment.get(_VARIABLES[dest]))


def _state_world(
    stating: Stating, world: Said | None, processes: Said | None, line: LaunchLine, *, hidden: bool
) -> None:
    """All ranks, and the nodes they make; one node where nothing says more."""
    if world is None:
        if not hidden:
            word = line.words[0]
            spelling = f"{word.spelling} (without --world_size)"
            stating.say("nodes", Known(1), word.span, spelling, strength=Strength.DEFAULT, relation=Relation.REQUIRES)
        return
    total = as_int(world.value)
    stating.given("world_size", world, lambda _: total, relation=Relation.REQUIRES)
    if processes is not None:
        each: Value = as_int(processes.value)
        stating.given("nodes", world, lambda _: lift(_quotient, total, each), relation=Relation.REQUIRES)


def _quotient(total: Plain, each: Plain) -> Plain:
    whole, rest = divmod(int(str(total)), int(str(each)))
    if rest or not whole:
        raise ValueError(f"{total} ranks do not come in groups of {each}")
    return whole
