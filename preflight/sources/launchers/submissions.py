"""Lines that submit a job: `sbatch` several times, `sky launch`, `dstack apply`, `mcli run`, `xpk workload create`.

`for i in 0 1; do sbatch node.sbatch $i; done` starts the nodes of one job if each submission gives its own node rank,
rank or role. Any other submission is a separate job and is read with its own file.

Sources: sky/client/cli/command.py (SkyPilot 0.14), dstack/_internal/cli/commands/apply.py (dstack 0.20), mcli's run
command. The task file determines what runs. If the line itself changes nodes, GPUs or variables, the file alone does
not determine the job, and remains a separate job.

Source: xpk/parser/workload.py and core/system_characteristics.py of xpk 0.16. A slice is named by its topology
(`tpu7x-4x4x8`) or by its tensor cores (`v5p-256`), of which a chip has one or two. Every host has four chips, except
for the slice of a single chip. JAX starts one process on each host.
"""

from __future__ import annotations

import math
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from preflight.model.job import Claim, Known, Launch, Reference, Strength, Unresolved, Value, as_int, lift
from preflight.sources.base import Command, LaunchLine, Reading, SourceFile, Tree
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import (
    GivenOption,
    declared_table,
    known_prefix,
    relative,
    scan,
    text_of,
    texts,
)
from preflight.sources.launchers.started_program import read_program
from preflight.sources.launchers.wrappers import strip_wrappers
from preflight.sources.orchestrators import task_role

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


#: The orchestrator of each program.
_ORCHESTRATORS = {"sky": "skypilot", "dstack": "dstack", "mcli": "mcli"}
#: The program, and the words after it that start a task.
_SUBMITTING_WORDS = {
    "sky": (("launch",), ("exec",), ("jobs", "launch"), ("spot", "launch")),
    "dstack": (("apply",), ("run",)),
    "mcli": (("run",),),
}
#: Options that change the requests of the file.
_CHANGING_OPTIONS = (
    *("--num-nodes", "--gpus", "--env", "--env-file", "--instance-type", "-e", "--gpu", "--nodes", "--gpu-type"),
    *("--command",),
)
_SUFFIXES = (".yaml", ".yml")


def submitted_task(command: Command, tree: Tree) -> Reading:
    """A reference to the task file that a line submits; empty for any other line."""
    stripped = strip_wrappers(command)
    words = [text_of(word) or "" for word in stripped.words[:4]]
    program = posixpath.basename(words[0]) if words else ""
    verbs = _SUBMITTING_WORDS.get(program)
    if verbs is None or not any(tuple(words[1 : len(verb) + 1]) == verb for verb in verbs):
        return Reading()
    if any(known_prefix(word).partition("=")[0] in _CHANGING_OPTIONS for word in stripped.words[1:]):
        return Reading()
    line = LaunchLine(f"{command.span.path}:{command.span.line}", stripped.words, command)
    for word in stripped.words[2:]:
        for text in texts(word.value):
            target = relative(text, line, tree) if text.lower().endswith(_SUFFIXES) else None
            if target is not None and isinstance(tree.read(target), SourceFile):
                return Reading(references=(Reference(target, task_role(_ORCHESTRATORS[program]), word.span),))
    return Reading()


def applied_clusters(command: Command, tree: Tree) -> Iterator[Reference]:
    """References to the manifests of Ray clusters that a line makes: `kubectl apply -f cluster.yaml`."""
    words = strip_wrappers(command).words
    names = [text_of(word) or "" for word in words]
    if posixpath.basename(names[0] if names else "") != "kubectl" or not {"apply", "create"}.intersection(names[1:]):
        return
    line = LaunchLine(f"{command.span.path}:{command.span.line}", words, command)
    for before, name, word in zip(names, names[1:], words[1:], strict=False):
        given = name if before in ("-f", "--filename") else name.partition("--filename=")[2]
        target = relative(given, line, tree) if given.lower().endswith(_SUFFIXES) else None
        file = tree.read(target) if target is not None else None
        if target is not None and isinstance(file, SourceFile) and "kind: RayCluster" in file.text:
            yield Reference(target, "manifest", word.span)


_OPTIONS = declared_table("xpk")
_ACTIONS = ("create", "create-pathways")
_CORES_PER_CHIP = {"v4": 2, "v5p": 2, "tpu7x": 2, "v5litepod": 1, "v6e": 1}
_CHIPS_PER_HOST = 4
#: Launchers that start the ranks of a host themselves: their own line is the launch.
_LAUNCHERS = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch|deepspeed|mpirun)\b")


class XpkReader:
    """Reads the command line of xpk when it creates a workload."""

    name: str = "xpk"
    names: tuple[str, ...] = ("xpk", "xpk.py")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State the hosts that the workload takes, and one process on each."""
        words = line.words[1:]
        if len(words) < 2 or text_of(words[0]) != "workload" or text_of(words[1]) not in _ACTIONS:
            return Reading()
        scanned = scan(words[2:], _OPTIONS)
        command = scanned.last("command")
        if command is not None and _LAUNCHERS.search(command.spelling):
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        nodes = scanned.last("nodes")
        device = scanned.last("device")
        if nodes is not None:
            builder.add_setting("nodes", nodes, as_int)
        elif device is not None:
            builder.add_setting("nodes", device, lambda value: _hosts(value, scanned.last("slices")))
        if device is not None:
            spelling = f"{line.words[0].spelling} (one process on each host)"
            builder.add("processes_per_node", Known(1), line.words[0].span, spelling, strength=Strength.DEFAULT)
        started = read_program(line, self.name, (), tree)
        return started.reading(builder.claims)


def _hosts(device: Value, slices: GivenOption | None) -> Value:
    """The hosts of all slices of a type of device."""
    count: Value = as_int(slices.value) if slices is not None else Known(1)
    if isinstance(device, Unresolved) or isinstance(count, Unresolved):
        parts = [device.why if isinstance(device, Unresolved) else str(texts(device)[:1])]
        parts += [count.why] if isinstance(count, Unresolved) else []
        return Unresolved(f"the hosts of the slices: {', '.join(parts)}")
    return lift(lambda name, number: _hosts_of(str(name)) * int(str(number)), device, count)


def _hosts_of(name: str) -> int:
    """The hosts of one slice.

    Raises:
        ValueError: it is not a TPU of a known generation.
    """
    match = re.fullmatch(r"(\w+)-(\d+(?:x\d+)*)", name)
    if match is None or match[1] not in _CORES_PER_CHIP:
        raise ValueError(f"{name} is not a known slice of TPUs")
    sizes = [int(size) for size in match[2].split("x")]
    chips = math.prod(sizes) if len(sizes) > 1 else sizes[0] // _CORES_PER_CHIP[match[1]]
    return max(1, chips // _CHIPS_PER_HOST)
