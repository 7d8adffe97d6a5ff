"""Single steps of a script: what each srun starts, whether training or not, and who notices that it failed.

Each step has a scope of its own, named like that of a launch on the same line. All claims of a step stand at its
`srun`, except those that an option makes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence

from preflight.job import Claim, Known, Relation, Scope, Strength, Unresolved, Value, alternatives, as_int, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command, Variable
from preflight.sources.launchers import slurm
from preflight.sources.launchers.options import joined, text_of
from preflight.sources.launchers.programs import is_python, python_program
from preflight.sources.launchers.stating import Stating, said, said_by
from preflight.sources.launchers.wrappers import Wrapper, peel, program_name

#: Steps of one script that are claimed.
_MOST_STEPS = 200
_LONGEST = 100
#: Programs that go to the nodes of an allocation by themselves.
_REACHING = frozenset(
    (
        *("mpirun", "mpiexec", "mpiexec.hydra", "horovodrun", "deepspeed", "pdsh", "clush", "ssh", "parallel", "ray"),
        *("ibrun", "prun", "jsrun", "flux", "colossalai"),
    )
)
_SIGNAL = lazy_pattern(r"(?:SIG)?([A-Z]+[0-9]?)|([0-9]+)")
_NUMBERED = {"2": "INT", "10": "USR1", "12": "USR2", "15": "TERM", "0": "EXIT", "18": "CONT", "1": "HUP"}


def state_steps(commands: Sequence[Command], header: Mapping[str, slurm.Asked], text: str) -> tuple[Claim, ...]:
    """The claims about the steps of one script, and about how it waits for them.

    Args:
        commands: as evaluated.
        header: the script's `#SBATCH` options, empty where it has none.
        text: the script, for what no command shows (`${PIPESTATUS[0]}`).
    """
    claims: list[Claim] = []
    seen: dict[str, int] = {}
    keeps_status = "PIPESTATUS" in text
    pipefail: set[int] = {0} if re.match(r"#!.*\bpipefail\b", text) else set()
    for command in commands:
        shell = id(command.outer) if command.outer is not None else 0
        words = [text_of(word) or "" for word in command.words]
        if words and words[0] == "set" and "pipefail" in words:
            before = words[words.index("pipefail") - 1]
            pipefail.discard(shell) if before.startswith("+") else pipefail.add(shell)
        claims.extend(_waiting(command, words))
        claims.extend(_chores(command, words))
        srun = next((w for w in peel(command).wrappers if w.name == "srun" and w.command is command), None)
        if srun is not None and len(seen) < _MOST_STEPS:
            key = f"{command.span.path}:{command.span.line}"
            seen[key] = seen.get(key, 0) + 1
            scope = Scope(launch=key if seen[key] == 1 else f"{key}#{seen[key]}")
            hides = not keeps_status and shell not in pipefail
            claims.extend(_step(command, srun, header, scope, hides=hides))
    return tuple(dict.fromkeys(claims))


def _step(
    command: Command, srun: Wrapper, header: Mapping[str, slurm.Asked], scope: Scope, *, hides: bool
) -> tuple[Claim, ...]:
    stating = Stating("srun", scope, command.condition)
    words = peel(command).words
    spelling = " ".join(" ".join(word.spelling.split()) for word in command.words)[:_LONGEST]
    span = joined(srun.word.span, command.words[-1].span)

    def say(quantity: str, value: Value, shown: str = spelling) -> None:
        stating.say(quantity, value, span, shown, strength=Strength.SCHEDULER)

    say("step", _program(command, srun))
    if is_python(words):
        program = python_program(words)
        if program is not None and program.module:
            say("step_module", program.words[0].value)
    asked = slurm.from_options(srun.scanned.given)
    hidden = Unresolved("options of srun that come from outside") if srun.scanned.incomplete else None
    _sizes(stating, asked, header, hidden)
    cores = said(srun.scanned.last("cpus_per_task")) or said_by(_variable(command, "SRUN_CPUS_PER_TASK"))
    if cores is not None:
        stating.given("step_cpus_per_task", cores, as_int)
    elif hidden is not None:
        say("step_cpus_per_task", hidden)
    elif "cpus_per_gpu" in asked or "cpu_bind" in asked:
        option = asked.get("cpus_per_gpu") or asked["cpu_bind"]
        why = Unresolved(f"{option.spelling} decides about cores")
        stating.say("step_cpus_per_task", why, option.span, option.spelling, strength=Strength.SCHEDULER)
    say("step_background", Known(command.background))
    if command.repeated:
        say("step_repeated", Known(True))
    if command.pipe:
        say("step_pipe", Known(posixpath.basename(command.pipe)))
        say("step_pipe_hides_failure", Known(hides))
    kills = _kills(command, srun)
    say("step_kills_on_failure", Known(True) if kills else hidden or Known(False))
    return tuple(stating.claims)


def _sizes(
    stating: Stating, asked: Mapping[str, slurm.Asked], header: Mapping[str, slurm.Asked], hidden: Unresolved | None
) -> None:
    """Over how many nodes the step runs, and in how many tasks: its own options before those of the header."""
    # Fewer tasks than nodes need fewer nodes.
    if "ntasks" in asked and asked["ntasks"].value in (Known("1"), Known(1)):
        one = asked["ntasks"]
        stating.say("step_nodes", Known(1), one.span, one.spelling, strength=Strength.SCHEDULER)
    else:
        nodes = asked.get("nodes") or header.get("nodes")
        if nodes is not None:
            value = hidden if hidden is not None and "nodes" not in asked else slurm.nodes_of(nodes.value)
            stating.say("step_nodes", value, nodes.span, nodes.spelling, strength=Strength.SCHEDULER)
    _tasks(stating, asked, header, hidden)


def _tasks(
    stating: Stating, asked: Mapping[str, slurm.Asked], header: Mapping[str, slurm.Asked], hidden: Unresolved | None
) -> None:
    """How many tasks the step has in all and on each node, from whichever of the two is given."""
    tasks = asked.get("ntasks") or (None if {"nodes", "ntasks_per_node"} & set(asked) else header.get("ntasks"))
    each = asked.get("ntasks_per_node") or header.get("ntasks_per_node")
    over = asked.get("nodes") or header.get("nodes")
    nodes: Value = slurm.nodes_of(over.value) if over is not None else Known(1)
    if tasks is not None:
        said_here, total = tasks, as_int(tasks.value)
        on_one = lift(lambda a, b: -(-int(str(a)) // int(str(b))), total, nodes)
    elif each is not None:
        said_here, on_one = each, as_int(each.value)
        total = lift(lambda a, b: int(str(a)) * int(str(b)), on_one, nodes)
    else:
        return
    own = "ntasks" in asked or "ntasks_per_node" in asked
    for quantity, value in (("step_tasks", total), ("step_tasks_per_node", on_one)):
        known = value if hidden is None or own else hidden
        stating.say(quantity, known, said_here.span, said_here.spelling, strength=Strength.SCHEDULER)


def _program(command: Command, srun: Wrapper) -> Value:
    """The plain name of what srun starts; of `bash -c '...'` the first word of the code."""
    words = peel(command).words
    if not words:
        return Unresolved("a program that cannot be told")
    name = program_name(words)
    if name in ("bash", "sh") and len(words) > 2 and (text_of(words[1]) or "").startswith("-"):
        inside = (text_of(words[2]) or "").split()
        return Known(posixpath.basename(inside[0])) if inside else Unresolved("code that comes from outside")
    return Known(name) if name else Unresolved(f"`{words[0].spelling[:40]}`, which comes from outside")


def _kills(command: Command, srun: Wrapper) -> bool:
    given = srun.scanned.last("kill")
    if given is not None:
        return "0" not in alternatives(given.value)
    if any((text_of(word) or "").startswith("-K") for word in srun.scanned.unknown):
        return True
    variable = _variable(command, "SLURM_KILL_BAD_EXIT")
    return variable is not None and variable.value not in (Known("0"), Known(""))


def _variable(command: Command, name: str) -> Variable | None:
    """A variable that srun sees."""
    return command.environment.get(name)


def _chores(command: Command, words: Sequence[str]) -> tuple[Claim, ...]:
    """Directories that the script makes, and whether it queues itself again."""
    if not words or command.outer is not None:
        return ()
    stating = Stating("shell", Scope(), command.condition)
    spelling = " ".join(" ".join(word.spelling.split()) for word in command.words)[:_LONGEST]
    name = posixpath.basename(words[0])
    if name in _REACHING:
        stating.say("reaches_nodes", Known(name), command.span, spelling)
    elif words[0] == "mkdir":
        for word in words[1:]:
            if word and not word.startswith("-"):
                stating.say("directory_made", Known(word.rstrip("/")), command.span, spelling)
    elif words[:2] == ["scontrol", "requeue"]:
        stating.say("requeues_itself", Known(True), command.span, spelling)
    return tuple(stating.claims)


def _waiting(command: Command, words: Sequence[str]) -> tuple[Claim, ...]:
    """What `wait` and `trap` say. Only those of the script itself: a shell inside srun waits for its own."""
    if not words or command.outer is not None or words[0] not in ("wait", "trap"):
        return ()
    stating = Stating("shell", Scope(), command.condition)
    spelling = " ".join(" ".join(word.spelling.split()) for word in command.words)[:_LONGEST]

    def say(quantity: str, value: Value) -> None:
        stating.say(quantity, value, command.span, spelling, strength=Strength.FLAG, relation=Relation.SETS)

    if words[0] == "wait":
        if len(words) == 1:
            say("plain_wait", Known(True))
        else:
            say("failure_watch", Known("wait"))
        return tuple(stating.claims)
    for word in words[2:]:
        match = _SIGNAL.fullmatch(word.upper())
        if match is None:
            continue
        signal = match[1] or _NUMBERED.get(match[2], match[2])
        if signal in ("EXIT", "ERR", "CHLD"):
            say("failure_watch", Known(f"trap {signal}"))
        say("trapped_signal", Known(signal))
    return tuple(stating.claims)
