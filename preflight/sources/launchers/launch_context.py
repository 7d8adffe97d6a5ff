"""The context in which the ranks of a launch run: interpreter, directory, container, setup commands, environment."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Mapping, Sequence

from preflight._util.redaction import HIDDEN
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Reference, Scope, Span, Strength, Unresolved, Value, lift
from preflight.sources.base import Command, LaunchLine, SourceFile, Tree, Variable, Word
from preflight.sources.configs.packages import LOCKS
from preflight.sources.configs.packages import ROLE as LOCK_ROLE
from preflight.sources.launchers import mpi, slurm
from preflight.sources.launchers.claim_builder import ClaimBuilder, state_choices, state_launcher, state_unknown
from preflight.sources.launchers.option_parser import file_references, paths_of, relative, text_of
from preflight.sources.launchers.wrappers import Wrapper
from preflight.sources.tables import load_table
from preflight.sources.value_readers import count_of

_ACTIVATE = re.compile(r"(?:source|\.)\s+(?P<folder>\S+)/bin/activate\b")
#: Variables claimed for one launch; real scripts export a few dozen.
MAX_VARIABLES = 300
#: Variables that configure communication between ranks.
_LIBRARY_VARIABLE = re.compile(r"(?:NCCL|RCCL|TORCH_NCCL|TORCH_DISTRIBUTED|GLOO|TP_SOCKET|UCX|FI|PET)_")
#: Variables that belong to the shell, not to the job.
_SHELL_VARIABLES = frozenset(["PWD", "OLDPWD", "SHLVL", "_", "IFS", "OPTIND", "PS1", "PS4", "BASH", "BASHPID"])
#: Variables that a launched program or launcher reads, and that mean nothing to the shell itself.
_READ_BY_PROGRAMS = re.compile(
    r"(?:NCCL|RCCL|TORCH_NCCL|GLOO|UCX|FI|PADDLE|FLAGS|DMLC|HOROVOD)_\w+|(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES"
    r"|MASTER_(?:ADDR|PORT)|NPROC_PER_NODE|NNODES|NODE_RANK|WORLD_SIZE|LOCAL_RANK|FORCE_TORCHRUN|OMP_NUM_THREADS"
    r"|CUDA_DEVICE_MAX_CONNECTIONS|PYTORCH_(?:CUDA_)?ALLOC_CONF|TF_CONFIG"
)
#: Options of programs around a launch whose value is a variable: `docker run -e`, `mpirun -x`, `tmux -e`.
_SETS_VARIABLE = re.compile(r"-[eExv]|-g?env|--(?:env|environment|export|setenv|variable)")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Z][A-Z0-9_]{2,60})=.*", re.DOTALL)


def state_unread_variables(line: LaunchLine, visible: Mapping[str, Variable], tree: Tree) -> tuple[Claim, ...]:
    """State each variable that the launch is meant to see and does not.

    It is assigned and not exported, or its assignment stands among the arguments.
    """
    builder = ClaimBuilder("environment", line.scope, line.command.condition)
    texts: dict[str, str] = {}
    for name in sorted(set(line.command.variables) - set(visible)):
        variable = line.command.variables[name]
        path = variable.span.path
        if not _READ_BY_PROGRAMS.fullmatch(name) or line.command.outer is not None:
            continue
        if path not in texts:
            file = tree.read(path)
            texts[path] = file.text if isinstance(file, SourceFile) else ""
        # What the script names again, it may pass on: `--master_port $MASTER_PORT`, `-x NCCL_DEBUG`.
        if len(re.findall(rf"\b{name}\b", texts[path])) == 1:
            spelling = variable.spelling if variable.spelling.startswith(name) else f"{name}={variable.spelling}"
            builder.add(
                "unexported_variable", Known(name), variable.span, spelling, condition=variable.condition or None
            )
    for before, word in itertools.pairwise(line.command.words):
        match = _ASSIGNMENT.fullmatch(word.spelling)
        if _SETS_VARIABLE.fullmatch(before.spelling):
            continue
        if match is not None and _READ_BY_PROGRAMS.fullmatch(match["name"]) and word.span not in _before(line):
            builder.add("variable_as_argument", Known(match["name"]), word.span, word.spelling)
    return tuple(builder.claims)


def state_withheld_variables(
    line: LaunchLine, wrappers: Sequence[Wrapper], visible: Mapping[str, Variable]
) -> tuple[Claim, ...]:
    """State each variable that the script exports and that the list of `srun --export` keeps from the tasks."""
    builder = ClaimBuilder("environment", line.scope, line.command.condition)
    srun = next((wrapper for wrapper in wrappers if wrapper.name == "srun"), None)
    option = srun.scanned.last("export") if srun is not None and not srun.passes_environment else None
    if option is None:
        return ()
    hidden = set(line.command.variables) - set(visible) - _SHELL_VARIABLES
    for name in sorted(name for name in hidden if line.command.variables[name].exported)[:MAX_VARIABLES]:
        variable = line.command.variables[name]
        own = ClaimBuilder("environment", line.scope, variable.condition)
        set_here = own.add("withheld_variable", Known(name), variable.span, f"{name}=")
        builder.add("withheld_variable", Known(name), option.span, option.spelling, because=(set_here,))
    return tuple(builder.claims)


def _before(line: LaunchLine) -> frozenset[Span]:
    """The words before the program, which may be `env NAME=value`."""
    found = set()
    for word in line.command.words:
        text = text_of(word) or ""
        if not _ASSIGNMENT.fullmatch(word.spelling) and text not in ("env", "sudo") and not text.startswith("-"):
            break
        found.add(word.span)
    return frozenset(found)


def state_environment(line: LaunchLine, visible: dict[str, Variable]) -> ClaimBuilder:
    """State one claim per variable that the launch sees; secrets are named but their values are never shown."""
    builder = ClaimBuilder("environment", line.scope, line.command.condition)
    for name in sorted(visible)[:MAX_VARIABLES]:
        variable = visible[name]
        if name in _SHELL_VARIABLES or variable.span.snippet.lstrip().startswith("#SBATCH"):
            continue
        value, spelling = variable.value, variable.spelling
        if not spelling.startswith((name, "export ")):
            spelling = f"{name}={spelling}"
        if is_secret(name):
            value, spelling = Unresolved("redacted"), f"{name}={HIDDEN}"
        builder.add(
            f"env.{name}",
            value,
            variable.span,
            spelling,
            strength=Strength.ENVIRONMENT,
            condition=variable.condition or line.command.condition,
        )
    return builder


def library_exports(final: Mapping[str, Variable], scope: Scope) -> tuple[Claim, ...]:
    """State the communication settings that a script without launches exports, because other scripts source it."""
    builder = ClaimBuilder("environment", scope)
    for name, variable in sorted(final.items()):
        if variable.exported and _LIBRARY_VARIABLE.match(name) and not is_secret(name):
            spelling = variable.spelling
            if not spelling.startswith((name, "export ")):
                spelling = f"{name}={spelling}"
            builder.add(
                f"env.{name}",
                variable.value,
                variable.span,
                spelling,
                strength=Strength.ENVIRONMENT,
                condition=variable.condition,
            )
    return tuple(builder.claims)


def state_context(
    line: LaunchLine, wrappers: tuple[Wrapper, ...], interpreter: Word | None, tree: Tree
) -> tuple[ClaimBuilder, list[Reference]]:
    """State interpreter, working directory, container, setup commands, and the claims of mpirun wrappers."""
    builder = ClaimBuilder("shell", line.scope, line.command.condition)
    references: list[Reference] = []
    command = line.command
    prelude = _prelude(command)
    for word in prelude:
        builder.add("prelude", word.value, word.span, word.spelling)
    _state_interpreter(builder, line, interpreter, prelude)
    if command.directory is not None:
        builder.add(
            "working_directory", Known(command.directory or "."), command.span, "cd", strength=Strength.ENVIRONMENT
        )
    references.extend(_settings_file(line, tree))
    if any(wrapper.name in _OTHER_MACHINES for wrapper in wrappers):
        _state_variables_left_here(builder, line)
    for wrapper in wrappers:
        references.extend(_lock(line, wrapper, tree))
        _state_container(builder, wrapper)
        for given in wrapper.scanned.every("env_file"):
            references.extend(file_references(given, "environment", line, tree))
        if wrapper.name in ("mpirun", "horovodrun"):
            own = ClaimBuilder(wrapper.name, line.scope, line.command.condition)
            references.extend(mpi.state(own, wrapper.scanned, wrapper.word, line, tree))
            if wrapper.name == "mpirun":
                state_launcher(own, "mpirun", wrapper.word, wrapper.scanned, written=True)
            if wrapper.name == "horovodrun":
                state_unknown(own, wrapper.scanned)
                state_choices(own, wrapper.scanned, load_table("horovodrun"))
                state_launcher(own, "horovodrun", wrapper.word, wrapper.scanned, written=True)
            builder.claims.extend(own.claims)
        elif wrapper.name == "docker":
            repeated = frozenset(("ulimit", "network"))
            state_launcher(builder, "docker_run", wrapper.word, wrapper.scanned, repeated=repeated)
        elif wrapper.name == "apptainer":
            state_launcher(builder, "apptainer", wrapper.word, wrapper.scanned, written=True)
        elif wrapper.name == "jsrun":
            own = ClaimBuilder("jsrun", line.scope, line.command.condition)
            mpi.state_resource_sets(own, wrapper.scanned)
            builder.claims.extend(own.claims)
        elif wrapper.name in ("pdsh", "clush"):
            references.extend(_state_parallel_shell(builder, wrapper, line, tree))
    return builder, references


#: Programs that run a command on another machine, in an environment of its own.
_OTHER_MACHINES = ("ssh", "pdsh", "clush")
_USED_VARIABLE = re.compile(r"\$\{?(?P<name>[A-Za-z_][A-Za-z0-9_]{0,60})")


def _state_variables_left_here(builder: ClaimBuilder, line: LaunchLine) -> None:
    """State each variable of this script that a command for another machine leaves to the shell there."""
    here = line.command.outer.variables if line.command.outer is not None else {}
    for word in line.words:
        for match in _USED_VARIABLE.finditer(word.spelling):
            variable = here.get(match["name"])
            # In double quotes this script expands it, and takes its own value.
            inside = isinstance(word.value, Unresolved) and match["name"] in word.value.set_by_caller
            if variable is not None and inside and match["name"] not in line.command.variables:
                name, condition = Known(match["name"]), variable.condition or None
                builder.add("variable_left_here", name, word.span, word.spelling, condition=condition)


def _settings_file(line: LaunchLine, tree: Tree) -> list[Reference]:
    """The file that NCCL_CONF_FILE names, from which NCCL takes settings that the environment does not have."""
    variable = line.command.environment.get("NCCL_CONF_FILE")
    targets = [relative(path, line, tree) for path in paths_of(variable.value)] if variable is not None else []
    return [Reference(path, "environment", variable.span, line.scope) for path in targets if path and variable]


def _lock(line: LaunchLine, wrapper: Wrapper, tree: Tree) -> list[Reference]:
    """The lock file of `uv run`, `poetry run` and the like, which is in the directory they run in."""
    target = relative(LOCKS[wrapper.name], line, tree) if wrapper.name in LOCKS else None
    if target is None or not isinstance(tree.read(target), SourceFile):
        return []
    return [Reference(target, LOCK_ROLE, wrapper.word.span)]


def _state_parallel_shell(builder: ClaimBuilder, wrapper: Wrapper, line: LaunchLine, tree: Tree) -> list[Reference]:
    """State the hosts of `pdsh -w node[0-3]`: the line is started once on each of them."""
    own = ClaimBuilder(wrapper.name, line.scope, line.command.condition)
    hosts, given = wrapper.scanned.last("hosts"), wrapper.scanned.last("hostfile")
    if hosts is not None:
        own.add_setting("hosts", hosts, slurm.hosts_of, strength=Strength.SCHEDULER)
        own.add_setting("nodes", hosts, lambda value: count_of(slurm.hosts_of(value)), strength=Strength.SCHEDULER)
    word = wrapper.word
    own.add("tasks_per_node", Known(1), word.span, word.spelling, strength=Strength.SCHEDULER)
    builder.claims.extend(own.claims)
    return list(file_references(given, "hostfile", line, tree))


def _prelude(command: Command) -> tuple[Word, ...]:
    found: list[Word] = list(command.prelude)
    outer = command.outer
    while outer is not None:
        found = [word for word in outer.prelude if word not in found] + found
        outer = outer.outer
    return tuple(found)


def _state_interpreter(
    builder: ClaimBuilder, line: LaunchLine, interpreter: Word | None, prelude: tuple[Word, ...]
) -> None:
    word = interpreter or line.words[0]
    text = text_of(word) or ""
    value: Value
    if interpreter is not None and ("/" in text or not text):
        value = word.value
    elif interpreter is None and text.startswith("/"):
        # pip installs a launcher beside the interpreter that runs it.
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
    builder.add("interpreter", value, word.span, word.spelling)


def _text(word: Word) -> str:
    return text_of(word) or word.spelling


def _state_container(builder: ClaimBuilder, wrapper: Wrapper) -> None:
    workdir = wrapper.scanned.last("workdir", "container_workdir")
    if wrapper.image is not None:
        image = wrapper.image
        value = lift(lambda item: f"{wrapper.name} {item}", image.value)
        builder.add("container", value, image.span, image.spelling)
        builder.add_setting("working_directory", workdir)
        return
    pyxis = wrapper.scanned.last("container_image", "image")
    if pyxis is not None and wrapper.name in ("srun", "shifter"):
        name = "pyxis" if wrapper.name == "srun" else "shifter"
        builder.add_setting("container", pyxis, lambda value: lift(lambda item: f"{name} {item}", value))
        builder.add_setting("working_directory", workdir)


def state_task_counts(
    line: LaunchLine,
    wrappers: tuple[Wrapper, ...],
    header: dict[str, slurm.BatchOption],
    *,
    elsewhere: bool,
    reaches_nodes: bool,
    scheduler: str = "slurm",
) -> ClaimBuilder:
    """State how many copies of the line run and on how many nodes.

    Args:
        line: the launch line.
        wrappers: the programs before it.
        header: the options of the batch header; empty without one.
        elsewhere: whether the script starts other programs on other nodes; then nothing is stated for a line without
        srun.
        reaches_nodes: whether the launcher reaches other nodes itself, as deepspeed does.
        scheduler: the scheduler of the header.
    """
    builder = ClaimBuilder(scheduler, line.scope, line.command.condition)
    srun = next((wrapper for wrapper in reversed(wrappers) if wrapper.name == "srun"), None)
    if srun is not None:
        _state_srun(builder, srun, header)
    elif header and not wrappers_reach_nodes(wrappers) and not elsewhere and not reaches_nodes:
        _state_without_starter(builder, line, header)
    return builder


def wrappers_reach_nodes(wrappers: tuple[Wrapper, ...]) -> bool:
    """Whether a wrapper runs the line on other nodes, or may."""
    return any(w.name in _REMOTE_STARTERS for w in wrappers)


_REMOTE_STARTERS = (
    *("srun", "mpirun", "horovodrun", "ssh", "pdsh", "clush", "ibrun", "jsrun", "aprun", "pbsdsh", "blaunch"),
)


def _state_without_starter(builder: ClaimBuilder, line: LaunchLine, header: dict[str, slurm.BatchOption]) -> None:
    word = line.words[0]
    starter = "srun" if builder.source == "slurm" else "mpiexec or ssh"
    spelling = f"{word.spelling} (without {starter}: runs on the first node only)"
    because = tuple(
        slurm.state(ClaimBuilder(builder.source), {k: v for k, v in header.items() if k == "nodes"}).values()
    )
    for quantity in ("nodes", "tasks_per_node"):
        builder.add(quantity, Known(1), word.span, spelling, strength=Strength.SCHEDULER, because=because)


def _state_srun(builder: ClaimBuilder, srun: Wrapper, header: dict[str, slurm.BatchOption]) -> None:
    options = slurm.from_options(srun.scanned.given)
    is_single_node_step = ("nodelist" in options or "relative" in options) and _requests_one(
        options.get("nodes"), options.get("ntasks")
    )
    if is_single_node_step:
        # One step per node (`srun -N1 -n1 -w "$node" torchrun --node_rank=$i`); together they are the job.
        for dest in ("nodes", "ntasks", "nodelist"):
            options.pop(dest, None)
        slurm.state(builder, options)
        for quantity, value in (("tasks_per_node", Known(1)), ("single_node_step", Known(True))):
            builder.add(quantity, value, srun.word.span, srun.word.spelling, strength=Strength.SCHEDULER)
        return
    whole = ClaimBuilder("slurm", Scope())
    outer = slurm.state(whole, header)
    own = slurm.state(builder, options)
    nodes = own.get("nodes") or outer.get("nodes")
    tasks = own.get("tasks")
    if tasks is not None and "nodes" not in own and nodes is not None:
        fewer = lift(lambda t, n: min(int(str(t)), int(str(n))), tasks.value, nodes.value)
        if fewer != nodes.value and not isinstance(fewer, Unresolved):
            spelling = f"{tasks.spelling} (fewer tasks than nodes)"
            builder.add("nodes", fewer, tasks.span, spelling, strength=Strength.SCHEDULER, because=(tasks, nodes))
        elif "tasks_per_node" not in own:
            slurm.add_tasks_per_node(builder, tasks, nodes)
    tasks_per_node = own.get("tasks_per_node") or (outer.get("tasks_per_node") if "nodes" in own else None)
    if tasks is None and nodes is not None and tasks_per_node is not None:
        # The task count derived from the header alone does not apply to this step.
        slurm.add_total_tasks(builder, nodes, tasks_per_node)
    sets_tasks = any("tasks" in claims_of or "tasks_per_node" in claims_of for claims_of in (own, outer))
    if nodes is not None and not sets_tasks and not srun.scanned.incomplete and "gpus_per_task" not in header:
        spelling = f"{srun.word.spelling} (without --ntasks: one task on each node)"
        builder.add("tasks_per_node", Known(1), srun.word.span, spelling, strength=Strength.DEFAULT, because=(nodes,))
    elif "nodes" in own and "tasks" not in own and "tasks_per_node" not in own and "tasks_per_node" not in outer:
        outer_tasks = outer.get("tasks")
        if outer_tasks is not None and nodes is not None:
            slurm.add_tasks_per_node(builder, outer_tasks, nodes)


def _requests_one(*options: slurm.BatchOption | None) -> bool:
    return any(option is not None and option.value in (Known("1"), Known(1)) for option in options)
