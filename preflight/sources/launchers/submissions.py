"""Batch jobs that a script submits several times, once for each node of one distributed job.

`for i in 0 1; do sbatch node.sbatch $i; done` starts the nodes of one job if each submission gives its own node rank,
rank or role. Any other submission is a separate job and is read with its own file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from preflight.model.job import Claim, Known, Launch, Strength
from preflight.sources.base import Command, Reading, Tree

#: Quantities that identify the part of a job that a launch is.
_PARTS = ("node_rank", "rank", "given_rank", "ps_index")


def split(commands: Sequence[Command], path: str) -> tuple[list[Command], list[Command]]:
    """Divide the commands of a script into its own and those of batch scripts that it submits."""
    own: list[Command] = []
    submitted: list[Command] = []
    for command in commands:
        elsewhere = bool(command.submitter) and command.span.path != path
        (submitted if elsewhere else own).append(command)
    return own, submitted


def parts_of_one_job(commands: Sequence[Command], tree: Tree) -> Reading:
    """Return the launches of submitted scripts that are parts of one job, with their claims; none otherwise."""
    from preflight.sources.launchers.launch_lines import read_commands

    if not commands:
        return Reading()
    reading = read_commands(commands, {}, tree, batch=False)
    by_program: dict[tuple[str, str], list[Launch]] = {}
    for launch in reading.launches:
        if any(_identifies_part(claim, launch) for claim in reading.claims):
            by_program.setdefault((launch.launcher, launch.program), []).append(launch)
    kept = [launch for group in by_program.values() if len(group) > 1 for launch in group]
    scopes = {launch.scope for launch in kept}
    return replace(
        reading,
        launches=tuple(kept),
        claims=tuple(claim for claim in reading.claims if claim.scope in scopes),
        references=tuple(reference for reference in reading.references if reference.scope in scopes),
        notes=(),
    )


def _identifies_part(claim: Claim, launch: Launch) -> bool:
    known = claim.quantity in _PARTS and isinstance(claim.value, Known)
    # A rank in the submitted script itself was not chosen by the caller.
    given = claim.origin is None or claim.origin.path != launch.span.path
    return (
        known and claim.scope == launch.scope and claim.strength > Strength.DEFAULT and given and "$" in claim.spelling
    )
