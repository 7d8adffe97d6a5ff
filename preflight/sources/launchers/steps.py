"""Job steps of a script: what each srun starts, training or not, and whether its failure is noticed.

Each step has its own scope, with the name of a launch on the same line. The claims of a step are located at its `srun`,
or at the option that makes them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from preflight.model.job import (
    Claim,
    Known,
    Launch,
    Relation,
    Scope,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    lift,
)
from preflight.model.job.value import SETTING_PREFIX
from preflight.sources.base import Command, Variable
from preflight.sources.launchers import slurm
from preflight.sources.launchers.claim_builder import ClaimBuilder, option_setting, state_launcher, variable_setting
from preflight.sources.launchers.option_parser import is_python, join_spans, python_program, text_of
from preflight.sources.launchers.wrappers import Wrapper, exported_names, program_name, strip_wrappers

#: Steps read from one script.
_MAX_STEPS = 200
_MAX_SPELLING = 100
#: Programs that reach the nodes of an allocation by themselves.
_REMOTE_STARTERS = frozenset(
    (
        *("mpirun", "mpiexec", "mpiexec.hydra", "horovodrun", "deepspeed", "pdsh", "clush", "ssh", "parallel", "ray"),
        *("ibrun", "prun", "jsrun", "flux", "colossalai"),
    )
)
#: Commands that end at once.
_INSTANT = frozenset(("echo", "printf", "date", "cd", "export", "set", "true", ":", "unset", "mkdir", "ls", "hostname"))
_SIGNAL = re.compile(r"(?:SIG)?([A-Z]+[0-9]?)|([0-9]+)")
_SIGNAL_NAMES = {"2": "INT", "10": "USR1", "12": "USR2", "15": "TERM", "0": "EXIT", "18": "CONT", "1": "HUP"}


def state_steps(
    commands: Sequence[Command], header: Mapping[str, slurm.BatchOption], text: str, launches: Sequence[Launch] = ()
) -> tuple[Claim, ...]:
    """State the claims about the steps of one script, and about how it waits for them.

    Args:
        commands: the evaluated commands.
        header: the options of the `#SBATCH` header; empty without one.
        text: the script, for constructs that are in no command (`${PIPESTATUS[0]}`).
        launches: the launches of the script; a step has the scope of the launch that it starts.
    """
    claims: list[Claim] = []
    seen: dict[str, int] = {}
    others = {launch.id for launch in launches if "srun" not in (launch.launcher, *launch.wrappers)}
    keeps_status = "PIPESTATUS" in text
    pipefail: set[int] = {0} if re.match(r"#!.*\bpipefail\b", text) else set()
    for command in commands:
        shell = id(command.outer) if command.outer is not None else 0
        words = [text_of(word) or "" for word in command.words]
        if words and words[0] == "set" and "pipefail" in words:
            before = words[words.index("pipefail") - 1]
            pipefail.discard(shell) if before.startswith("+") else pipefail.add(shell)
        claims.extend(_wait_claims(command, words))
        claims.extend(_setup_claims(command, words))
        srun = next((w for w in strip_wrappers(command).wrappers if w.name == "srun" and w.command is command), None)
        if srun is not None and len(seen) < _MAX_STEPS:
            key = f"{command.span.path}:{command.span.line}"
            seen[key] = seen.get(key, 0) + 1
            step = key if seen[key] == 1 else f"{key}#{seen[key]}"
            # `srun mkdir /scratch && torchrun train.py` is a step and, beside it, a launch.
            scope = Scope(launch=f"{step} srun" if step in others else step)
            hides = not keeps_status and shell not in pipefail
            claims.extend(_step_claims(command, srun, header, scope, hides=hides))
        elif seen and command.outer is None and is_python(command.words):
            builder = ClaimBuilder("shell", Scope(), command.condition)
            builder.add("program_beside_steps", Known(True), command.span, command.words[0].spelling)
            claims.extend(builder.claims)
    claims.extend(_left_behind(commands))
    return tuple(dict.fromkeys(claims))


def state_waits(commands: Sequence[Command]) -> Iterator[Claim]:
    """State where a script waits for all that it has started in the background."""
    for command in commands:
        if command.outer is None and [text_of(word) for word in command.words] == ["wait"]:
            builder = ClaimBuilder("shell", Scope(), command.condition)
            builder.add("background_awaited", Known(True), command.span, "wait", strength=Strength.FLAG)
            yield from builder.claims


def _left_behind(commands: Sequence[Command]) -> Iterator[Claim]:
    """State the last command of a script that is in the background, if nothing after it takes time."""
    own = [command for command in commands if command.outer is None]
    for command in reversed(own):
        words = [text_of(word) or "" for word in command.words]
        if command.background and words:
            builder = ClaimBuilder("shell", Scope(), command.condition)
            spelling = " ".join(" ".join(word.spelling.split()) for word in command.words)[:_MAX_SPELLING]
            builder.add("left_behind", Known(True), command.span, spelling, strength=Strength.FLAG)
            yield from builder.claims
        if not words or posixpath.basename(words[0]) not in _INSTANT:
            return


def _step_claims(
    command: Command, srun: Wrapper, header: Mapping[str, slurm.BatchOption], scope: Scope, *, hides: bool
) -> tuple[Claim, ...]:
    builder = ClaimBuilder("srun", scope, command.condition)
    words = strip_wrappers(command).words
    spelling = " ".join(" ".join(word.spelling.split()) for word in command.words)[:_MAX_SPELLING]
    span = join_spans(srun.word.span, command.words[-1].span)

    def add(quantity: str, value: Value, shown: str = spelling) -> None:
        builder.add(quantity, value, span, shown, strength=Strength.SCHEDULER)

    add("step", _program(command))
    if is_python(words):
        program = python_program(words)
        if program is not None and program.module:
            add("step_module", program.words[0].value)
    state_launcher(builder, "srun", srun.word, srun.scanned)
    export = srun.scanned.last("export")
    names = exported_names(export) if export is not None else None
    if export is not None and names != []:
        listed: Value = (
            Known(",".join(names))
            if names is not None
            else Unresolved(f"{export.spelling}: the names are known only at run time")
        )
        builder.add(f"{SETTING_PREFIX}srun.export_names", listed, export.span, export.spelling)
    options = slurm.from_options(srun.scanned.given)
    unknown_options = Unresolved("options of srun that are known only at run time") if srun.scanned.incomplete else None
    _state_sizes(builder, options, header, unknown_options)
    cores = option_setting(srun.scanned.last("cpus_per_task")) or variable_setting(
        _variable(command, "SRUN_CPUS_PER_TASK")
    )
    if cores is not None:
        builder.add_setting("step_cpus_per_task", cores, as_int)
    elif unknown_options is not None:
        add("step_cpus_per_task", unknown_options)
    elif "cpus_per_gpu" in options or "cpu_bind" in options:
        option = options.get("cpus_per_gpu") or options["cpu_bind"]
        why = Unresolved(f"{option.spelling} determines the cores")
        builder.add("step_cpus_per_task", why, option.span, option.spelling, strength=Strength.SCHEDULER)
    gpus = next((options[name] for name in ("gpus", "gpus_per_node", "gres") if name in options), None)
    if gpus is not None:
        shown = str(gpus.value.value) if isinstance(gpus.value, Known) else ""
        value = Known(shown) if shown else Unresolved("the GPUs of the step are known only at run time")
        builder.add("step_gpus", value, gpus.span, gpus.spelling, strength=Strength.SCHEDULER)
    add("step_background", Known(command.background))
    if command.repeated:
        add("step_repeated", Known(True))
    if command.pipe:
        add("step_pipe", Known(posixpath.basename(command.pipe)))
        add("step_pipe_hides_failure", Known(hides))
    kills = _kills_on_failure(command, srun)
    add("step_kills_on_failure", Known(True) if kills else unknown_options or Known(False))
    return tuple(builder.claims)


def _state_sizes(
    builder: ClaimBuilder,
    options: Mapping[str, slurm.BatchOption],
    header: Mapping[str, slurm.BatchOption],
    unknown_options: Unresolved | None,
) -> None:
    """State the nodes and tasks of a step; its own options override the header's."""
    # Fewer tasks than nodes need fewer nodes.
    if "ntasks" in options and options["ntasks"].value in (Known("1"), Known(1)):
        task_count = options["ntasks"]
        builder.add("step_nodes", Known(1), task_count.span, task_count.spelling, strength=Strength.SCHEDULER)
    else:
        nodes = options.get("nodes") or header.get("nodes")
        if nodes is not None:
            value = (
                unknown_options
                if unknown_options is not None and "nodes" not in options
                else slurm.nodes_of(nodes.value)
            )
            builder.add("step_nodes", value, nodes.span, nodes.spelling, strength=Strength.SCHEDULER)
    _state_tasks(builder, options, header, unknown_options)


def _state_tasks(
    builder: ClaimBuilder,
    options: Mapping[str, slurm.BatchOption],
    header: Mapping[str, slurm.BatchOption],
    unknown_options: Unresolved | None,
) -> None:
    """State the tasks of a step, in total and per node, from whichever of the two is given."""
    tasks = options.get("ntasks") or (None if {"nodes", "ntasks_per_node"} & set(options) else header.get("ntasks"))
    per_node = options.get("ntasks_per_node") or header.get("ntasks_per_node")
    node_count = options.get("nodes") or header.get("nodes")
    nodes: Value = slurm.nodes_of(node_count.value) if node_count is not None else Known(1)
    if tasks is not None:
        own_tasks, total = tasks, as_int(tasks.value)
        on_one = lift(lambda a, b: -(-int(str(a)) // int(str(b))), total, nodes)
    elif per_node is not None:
        own_tasks, on_one = per_node, as_int(per_node.value)
        total = lift(lambda a, b: int(str(a)) * int(str(b)), on_one, nodes)
    else:
        return
    own = "ntasks" in options or "ntasks_per_node" in options
    for quantity, value in (("step_tasks", total), ("step_tasks_per_node", on_one)):
        known = value if unknown_options is None or own else unknown_options
        builder.add(quantity, known, own_tasks.span, own_tasks.spelling, strength=Strength.SCHEDULER)


def _program(command: Command) -> Value:
    """The name of the program that srun starts; for `bash -c '...'`, the first word of the code."""
    words = strip_wrappers(command).words
    if not words:
        return Unresolved("an unknown program")
    name = program_name(words)
    if name in ("bash", "sh") and len(words) > 2 and (text_of(words[1]) or "").startswith("-"):
        inside = (text_of(words[2]) or "").split()
        return Known(posixpath.basename(inside[0])) if inside else Unresolved("code that is known only at run time")
    return Known(name) if name else Unresolved(f"`{words[0].spelling[:40]}`, which is known only at run time")


def _kills_on_failure(command: Command, srun: Wrapper) -> bool:
    given = srun.scanned.last("kill")
    if given is not None:
        return "0" not in alternatives(given.value)
    if any((text_of(word) or "").startswith("-K") for word in srun.scanned.unknown):
        return True
    variable = _variable(command, "SLURM_KILL_BAD_EXIT")
    return variable is not None and variable.value not in (Known("0"), Known(""))


def _variable(command: Command, name: str) -> Variable | None:
    """A variable in the environment of srun."""
    return command.environment.get(name)


def _setup_claims(command: Command, words: Sequence[str]) -> tuple[Claim, ...]:
    """State the directories that the script creates, the programs that reach nodes, and whether it requeues itself."""
    if not words or command.outer is not None:
        return ()
    builder = ClaimBuilder("shell", Scope(), command.condition)
    spelling = " ".join(" ".join(word.spelling.split()) for word in command.words)[:_MAX_SPELLING]
    name = posixpath.basename(words[0])
    if name in _REMOTE_STARTERS:
        builder.add("reaches_nodes", Known(name), command.span, spelling)
    elif words[0] == "mkdir":
        for word in words[1:]:
            if word and not word.startswith("-"):
                builder.add("directory_made", Known(word.rstrip("/")), command.span, spelling)
    elif words[:2] == ["scontrol", "requeue"]:
        builder.add("requeues_itself", Known(True), command.span, spelling)
    return tuple(builder.claims)


def _wait_claims(command: Command, words: Sequence[str]) -> tuple[Claim, ...]:
    """State the script's own `wait` and `trap` commands; a shell inside srun waits for its own processes."""
    if not words or command.outer is not None or words[0] not in ("wait", "trap"):
        return ()
    builder = ClaimBuilder("shell", Scope(), command.condition)
    spelling = " ".join(" ".join(word.spelling.split()) for word in command.words)[:_MAX_SPELLING]

    def add(quantity: str, value: Value) -> None:
        builder.add(quantity, value, command.span, spelling, strength=Strength.FLAG, relation=Relation.SETS)

    if words[0] == "wait":
        if len(words) == 1:
            add("plain_wait", Known(True))
        else:
            add("failure_watch", Known("wait"))
        return tuple(builder.claims)
    for word in words[2:]:
        match = _SIGNAL.fullmatch(word.upper())
        if match is None:
            continue
        signal = match[1] or _SIGNAL_NAMES.get(match[2], match[2])
        if signal in ("EXIT", "ERR", "CHLD"):
            add("failure_watch", Known(f"trap {signal}"))
        add("trapped_signal", Known(signal))
    return tuple(builder.claims)
