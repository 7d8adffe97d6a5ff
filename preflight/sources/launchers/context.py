"""Where the ranks of a launch really run: interpreter, directory, container, set-up lines, environment."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from preflight.job import Claim, Known, Reference, Scope, Strength, Unresolved, Value, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.redact import HIDDEN, is_secret
from preflight.sources.base import Command, LaunchLine, Tree, Variable, Word
from preflight.sources.launchers import mpi, slurm
from preflight.sources.launchers.options import text_of
from preflight.sources.launchers.paths import paths_of, relative
from preflight.sources.launchers.stating import Stating, count_of
from preflight.sources.launchers.wrappers import Wrapper

_ACTIVATE = lazy_pattern(r"(?:source|\.)\s+(?P<folder>\S+)/bin/activate\b")
#: More variables of one launch are not claimed; real scripts export some dozens.
MOST_VARIABLES = 300
#: Beginnings of the variables by which ranks are told how to talk to each other.
_OF_LIBRARIES = lazy_pattern(r"(?:NCCL|RCCL|TORCH_NCCL|TORCH_DISTRIBUTED|GLOO|TP_SOCKET|UCX|FI|PET)_")
#: Variables of the shell itself, not of the job.
_SHELL_OWN = frozenset(["PWD", "OLDPWD", "SHLVL", "_", "IFS", "OPTIND", "PS1", "PS4", "BASH", "BASHPID"])


def state_environment(line: LaunchLine, seen: dict[str, Variable]) -> Stating:
    """One claim for each variable the launch sees; secrets are named, never shown."""
    stating = Stating("environment", line.scope, line.command.condition)
    for name in sorted(seen)[:MOST_VARIABLES]:
        variable = seen[name]
        if name in _SHELL_OWN or variable.span.snippet.lstrip().startswith("#SBATCH"):
            continue
        value, spelling = variable.value, variable.spelling
        if not spelling.startswith((name, "export ")):
            spelling = f"{name}={spelling}"
        if is_secret(name):
            value, spelling = Unresolved("redacted"), f"{name}={HIDDEN}"
        stating.say(
            f"env.{name}",
            value,
            variable.span,
            spelling,
            strength=Strength.ENVIRONMENT,
            condition=variable.condition or line.command.condition,
        )
    return stating


def exported(final: Mapping[str, Variable], scope: Scope) -> tuple[Claim, ...]:
    """What a script that launches nothing exports for libraries of the field: it is there to be sourced."""
    stating = Stating("environment", scope)
    for name, variable in sorted(final.items()):
        if variable.exported and _OF_LIBRARIES.match(name) and not is_secret(name):
            spelling = variable.spelling
            if not spelling.startswith((name, "export ")):
                spelling = f"{name}={spelling}"
            stating.say(
                f"env.{name}",
                variable.value,
                variable.span,
                spelling,
                strength=Strength.ENVIRONMENT,
                condition=variable.condition,
            )
    return tuple(stating.claims)


def state_context(
    line: LaunchLine, wrappers: tuple[Wrapper, ...], interpreter: Word | None, tree: Tree
) -> tuple[Stating, list[Reference]]:
    """Interpreter, working directory, container and set-up lines, and what mpirun in front says."""
    stating = Stating("shell", line.scope, line.command.condition)
    references: list[Reference] = []
    command = line.command
    prelude = _prelude_of(command)
    for word in prelude:
        stating.say("prelude", word.value, word.span, word.spelling)
    _state_interpreter(stating, line, interpreter, prelude)
    if command.directory is not None:
        stating.say(
            "working_directory",
            Known(command.directory or "."),
            command.span,
            "cd",
            strength=Strength.ENVIRONMENT,
        )
    for wrapper in wrappers:
        _state_container(stating, wrapper)
        for given in wrapper.scanned.every("env_file"):
            targets = [relative(path, line, tree) for path in paths_of(given.value, given.parts)]
            references.extend(Reference(path, "environment", given.span, line.scope) for path in targets if path)
        if wrapper.name in ("mpirun", "horovodrun"):
            own = Stating(wrapper.name, line.scope, line.command.condition)
            references.extend(mpi.state(own, wrapper.scanned, wrapper.word, line, tree))
            stating.claims.extend(own.claims)
        elif wrapper.name in ("pdsh", "clush"):
            references.extend(_state_fan(stating, wrapper, line, tree))
    return stating, references


def _state_fan(stating: Stating, wrapper: Wrapper, line: LaunchLine, tree: Tree) -> list[Reference]:
    """`pdsh -w node[0-3]`: the line is started once on each of these hosts."""
    own = Stating(wrapper.name, line.scope, line.command.condition)
    hosts, given = wrapper.scanned.last("hosts"), wrapper.scanned.last("hostfile")
    if hosts is not None:
        own.given("hosts", hosts, slurm.hosts_of, strength=Strength.SCHEDULER)
        own.given("nodes", hosts, lambda value: count_of(slurm.hosts_of(value)), strength=Strength.SCHEDULER)
    word = wrapper.word
    own.say("tasks_per_node", Known(1), word.span, word.spelling, strength=Strength.SCHEDULER)
    stating.claims.extend(own.claims)
    paths = paths_of(given.value, given.parts) if given is not None else ()
    targets = [relative(path, line, tree) for path in paths]
    return [Reference(path, "hostfile", given.span, line.scope) for path in targets if path and given is not None]


def _prelude_of(command: Command) -> tuple[Word, ...]:
    found: list[Word] = list(command.prelude)
    outer = command.outer
    while outer is not None:
        found = [word for word in outer.prelude if word not in found] + found
        outer = outer.outer
    return tuple(found)


def _state_interpreter(stating: Stating, line: LaunchLine, interpreter: Word | None, prelude: tuple[Word, ...]) -> None:
    word = interpreter or line.words[0]
    text = text_of(word) or ""
    value: Value
    if interpreter is not None and ("/" in text or not text):
        value = word.value
    elif interpreter is None and text.startswith("/"):
        # A launcher installed by pip stands beside the interpreter that runs it.
        value = Known(posixpath.join(posixpath.dirname(text), "python"))
    else:
        folder = next((m["folder"] for w in reversed(prelude) if (m := _ACTIVATE.search(_text(w)))), None)
        if folder is None:
            if interpreter is None:
                return
            value = word.value
        else:
            known = "$" not in folder
            value = Known(f"{folder}/bin/python") if known else Unresolved(f"{folder}/bin/python")
    stating.say("interpreter", value, word.span, word.spelling)


def _text(word: Word) -> str:
    return text_of(word) or word.spelling


def _state_container(stating: Stating, wrapper: Wrapper) -> None:
    workdir = wrapper.scanned.last("workdir", "container_workdir")
    if wrapper.image is not None:
        image = wrapper.image
        value = lift(lambda item: f"{wrapper.name} {item}", image.value)
        stating.say("container", value, image.span, image.spelling)
        stating.given("working_directory", workdir)
        return
    pyxis = wrapper.scanned.last("container_image", "image")
    if pyxis is not None and wrapper.name in ("srun", "shifter"):
        name = "pyxis" if wrapper.name == "srun" else "shifter"
        stating.given("container", pyxis, lambda value: lift(lambda item: f"{name} {item}", value))
        stating.given("working_directory", workdir)


def state_copies(
    line: LaunchLine,
    wrappers: tuple[Wrapper, ...],
    header: dict[str, slurm.Asked],
    *,
    elsewhere: bool,
    reaches_nodes: bool,
    scheduler: str = "slurm",
) -> Stating:
    """How many copies of the line run and on how many nodes, as Slurm sees it.

    `header`: the `#SBATCH` options in force, empty where there are none. `elsewhere`: the script starts other things
    on other nodes, so that nothing can be said about a bare line. `reaches_nodes`: the launcher goes to other nodes
    itself (deepspeed). `scheduler`: whose header that is.
    """
    stating = Stating(scheduler, line.scope, line.command.condition)
    srun = next((wrapper for wrapper in reversed(wrappers) if wrapper.name == "srun"), None)
    if srun is not None:
        _state_srun(stating, srun, header)
    elif header and not wrappers_reach_nodes(wrappers) and not elsewhere and not reaches_nodes:
        _state_bare(stating, line, header)
    return stating


def wrappers_reach_nodes(wrappers: tuple[Wrapper, ...]) -> bool:
    """Whether something in front of the line runs it on other nodes, or may."""
    return any(w.name in _REMOTE for w in wrappers)


_REMOTE = ("srun", "mpirun", "horovodrun", "ssh", "pdsh", "clush", "ibrun", "jsrun", "aprun", "pbsdsh", "blaunch")


def _state_bare(stating: Stating, line: LaunchLine, header: dict[str, slurm.Asked]) -> None:
    word = line.words[0]
    starter = "srun" if stating.source == "slurm" else "mpiexec or ssh"
    spelling = f"{word.spelling} (no {starter} in front: runs on the first node only)"
    because = tuple(slurm.state(Stating(stating.source), {k: v for k, v in header.items() if k == "nodes"}).values())
    for quantity in ("nodes", "tasks_per_node"):
        stating.say(quantity, Known(1), word.span, spelling, strength=Strength.SCHEDULER, because=because)


def _state_srun(stating: Stating, srun: Wrapper, header: dict[str, slurm.Asked]) -> None:
    asked = slurm.from_options(srun.scanned.given)
    one_node_of_several = ("nodelist" in asked or "relative" in asked) and _is_one(
        asked.get("nodes"), asked.get("ntasks")
    )
    if one_node_of_several:
        # One step a node (`srun -N1 -n1 -w "$node" torchrun --node_rank=$i`): together they are the job.
        for dest in ("nodes", "ntasks", "nodelist"):
            asked.pop(dest, None)
        slurm.state(stating, asked)
        for quantity, value in (("tasks_per_node", Known(1)), ("single_node_step", Known(True))):
            stating.say(quantity, value, srun.word.span, srun.word.spelling, strength=Strength.SCHEDULER)
        return
    whole = Stating("slurm", Scope())
    outer = slurm.state(whole, header)
    own = slurm.state(stating, asked)
    nodes = own.get("nodes") or outer.get("nodes")
    tasks = own.get("tasks")
    if tasks is not None and "nodes" not in own and nodes is not None:
        fewer = lift(lambda t, n: min(int(str(t)), int(str(n))), tasks.value, nodes.value)
        if fewer != nodes.value and not isinstance(fewer, Unresolved):
            spelling = f"{tasks.spelling} (fewer tasks than nodes)"
            stating.say("nodes", fewer, tasks.span, spelling, strength=Strength.SCHEDULER, because=(tasks, nodes))
        elif "tasks_per_node" not in own:
            slurm.spread(stating, tasks, nodes)
    each_node = own.get("tasks_per_node") or (outer.get("tasks_per_node") if "nodes" in own else None)
    if tasks is None and nodes is not None and each_node is not None:
        # What the header's own product says does not hold for this step.
        slurm.multiplied(stating, nodes, each_node)
    says_tasks = any("tasks" in said or "tasks_per_node" in said for said in (own, outer))
    if nodes is not None and not says_tasks and not srun.scanned.incomplete and "gpus_per_task" not in header:
        spelling = f"{srun.word.spelling} (without --ntasks: one task on each node)"
        stating.say("tasks_per_node", Known(1), srun.word.span, spelling, strength=Strength.DEFAULT, because=(nodes,))
    elif "nodes" in own and "tasks" not in own and "tasks_per_node" not in own and "tasks_per_node" not in outer:
        outer_tasks = outer.get("tasks")
        if outer_tasks is not None and nodes is not None:
            slurm.spread(stating, outer_tasks, nodes)


def _is_one(*asked: slurm.Asked | None) -> bool:
    return any(option is not None and option.value in (Known("1"), Known(1)) for option in asked)
