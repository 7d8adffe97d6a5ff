"""`python train.py` itself, and launches whose launcher is known only at run time.

The variables are those of torch's `env://` rendezvous (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK;
documentation of torch.distributed.init_process_group), of Paddle's role makers
(paddle/distributed/fleet/base/role_maker.py; TRAINING_ROLE, PADDLE_TRAINER_ID, PADDLE_PSERVERS_IP_PORT_LIST, POD_IP,
PADDLE_PORT, ...), and TF_CONFIG, which makes it a task of TensorFlow.

How many ranks it starts is unknown. It still counts as a launch, so the job is not treated as one without launches.
"""

from __future__ import annotations

import functools
import itertools
import posixpath
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from preflight.model.job import (
    WHOLE_JOB,
    Known,
    Note,
    NoteKind,
    Reference,
    Relation,
    Unresolved,
    Value,
    as_int,
    lift,
)
from preflight.model.job.value import SETTING_PREFIX, numbers
from preflight.sources.base import Command, LaunchLine, Reading, SourceFile, Tree, Variable, Word
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    state_endpoint,
    state_options,
    variable_setting,
    variables_of,
)
from preflight.sources.launchers.option_parser import (
    PythonProgram,
    file_named,
    is_python,
    line_of,
    module_path,
    python_program,
    relative,
    script_at,
    text_of,
    texts,
)
from preflight.sources.launchers.script_arguments import read_program
from preflight.sources.launchers.wrappers import strip_wrappers
from preflight.sources.value_readers import as_strings, as_text, count_of, index_of

_TASK_STARTERS = ("srun", "mpirun", "horovodrun", "jsrun")
_RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK")
_PADDLE_RANK_VARIABLES = ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE", "PADDLE_TRAINER_ID")
_PADDLE_PEER_VARIABLES = (
    "PADDLE_TRAINERS_NUM",
    "PADDLE_TRAINERS",
    "PADDLE_TRAINER_ENDPOINTS",
    "PADDLE_PSERVERS_IP_PORT_LIST",
    "PADDLE_MASTER",
    "PADDLE_CURRENT_ENDPOINT",
)
#: Any of these alone makes a process one of several.
_MAKE_RANKS = (
    *("TRAINING_ROLE", "PADDLE_TRAINERS_NUM", "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_INIT_TRAINER_ID"),
    *("TF_CONFIG", "OMPI_COMM_WORLD_SIZE", "DMLC_ROLE", "DGL_ROLE"),
)
#: Any of these makes a process a rank of Paddle's collective mode, unless it has a parameter-server role.
_PADDLE_COLLECTIVE_VARIABLES = ("PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS_NUM")


def has_ranks(environment: Mapping[str, Variable]) -> bool:
    """Return whether the variables make a process one of several."""
    if "MASTER_ADDR" in environment and any(name in environment for name in _RANK_VARIABLES):
        return True
    if "RANK" in environment and "WORLD_SIZE" in environment:
        return True
    if any(name in environment for name in _MAKE_RANKS):
        return True
    return any(name in environment for name in _PADDLE_RANK_VARIABLES) and any(
        name in environment for name in _PADDLE_PEER_VARIABLES
    )


def read_python(line: LaunchLine, tree: Tree) -> Reading:
    """Read `python train.py` in a distributed context, which the caller has established: ranks, sizes, rendezvous and
    roles from the variables.
    """
    found = python_program(line.words)
    if found is None:
        return Reading()
    launcher = next((w for w in reversed(line.wrappers) if w in _TASK_STARTERS), "python")
    program = read_program(line, launcher, found.words, tree, module=found.module)
    builder = ClaimBuilder("environment", line.scope, line.command.condition)
    environment = line.command.environment
    if _is_parameter_server(environment):
        _state_parameter_server(builder, environment)
    elif any(name in environment for name in _PADDLE_COLLECTIVE_VARIABLES):
        _state_paddle(builder, environment)
    state_options(builder, "python", variables_of(environment))
    return program.reading(builder.claims)


#: The list of servers, as Paddle's role maker reads it and as scripts of its 1.x models read it themselves.
_SERVER_LISTS = ("PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_PSERVER_ENDPOINTS")


#: The number of trainers, as they read it. Operators of Kubernetes give the second name the trainers' hosts.
_COUNTS = ("PADDLE_TRAINERS_NUM", "PADDLE_TRAINERS")


def _first_set(names: tuple[str, ...], environment: Mapping[str, Variable]) -> str:
    """Return the first of the names that is set, or the first of all when none is."""
    return next((name for name in names if name in environment), names[0])


def _is_parameter_server(environment: Mapping[str, Variable]) -> bool:
    return any(name in environment for name in ("TRAINING_ROLE", "PADDLE_TRAINING_ROLE", *_SERVER_LISTS))


def _state_parameter_server(builder: ClaimBuilder, environment: Mapping[str, Variable]) -> None:
    add = functools.partial(_state_variable, builder, environment)
    role_name = _first_set(("TRAINING_ROLE", "PADDLE_TRAINING_ROLE"), environment)
    servers_name = _first_set(_SERVER_LISTS, environment)
    add(role_name if role_name in environment else servers_name, "ps_mode", lambda _: Known(True))
    add(role_name, "ps_role", as_text)
    add(servers_name, "ps_server_endpoints", as_strings)
    add(servers_name, "ps_servers", lambda value: count_of(as_strings(value)))
    add("PADDLE_TRAINER_ENDPOINTS", "ps_worker_endpoints", as_strings)
    count = _first_set(_COUNTS, environment)
    if count == _COUNTS[0] or numbers(environment[count].value):
        add(count, "ps_workers", as_int)
    add("PADDLE_MASTER", "rendezvous_endpoint", as_text)
    add("PADDLE_CURRENT_ENDPOINT", "ps_current_endpoint", as_text)
    role = environment.get(role_name)
    address, port = environment.get("POD_IP"), environment.get("PADDLE_PORT")
    # Paddle's role maker reads both for servers only; a trainer inherits them when one script starts both roles.
    is_trainer = role is not None and texts(role.value) == ("TRAINER",)
    own: Value | None = None
    if address is not None and port is not None:
        own = lift(lambda host, number: f"{host}:{number}", address.value, port.value)
        if "PADDLE_CURRENT_ENDPOINT" not in environment and not is_trainer:
            add("POD_IP", "ps_current_endpoint", lambda _: own or address.value)
    if role is not None and texts(role.value) in (("PSERVER",),):
        # The index of a server is the position of its own endpoint in the list.
        servers = environment.get(servers_name)
        if own is not None and servers is not None:
            index = lift(index_of, own, as_strings(servers.value))
            if not isinstance(index, Unresolved):
                add("POD_IP", "ps_index", lambda _: index)
    else:
        add("PADDLE_TRAINER_ID", "ps_index", as_int)


def _state_paddle(builder: ClaimBuilder, environment: Mapping[str, Variable]) -> None:
    add = functools.partial(_state_variable, builder, environment)
    add("PADDLE_TRAINER_ID", "rank", as_int)
    add("PADDLE_TRAINERS_NUM", "world_size", as_int, relation=Relation.REQUIRES)
    # The list defines one rank per entry; the number alone says how many ranks each rank waits for.
    relation = Relation.SETS if "PADDLE_TRAINERS_NUM" in environment else Relation.REQUIRES
    add("PADDLE_TRAINER_ENDPOINTS", "world_size", lambda v: count_of(as_strings(v)), relation=relation)
    state_endpoint(builder, variable_setting(environment.get("PADDLE_MASTER")))


def _state_variable(
    builder: ClaimBuilder,
    environment: Mapping[str, Variable],
    name: str,
    quantity: str,
    convert: Callable[[Value], Value],
    *,
    relation: Relation = Relation.SETS,
) -> None:
    """Add claims for a quantity from a variable, when it is set."""
    builder.add_setting(quantity, variable_setting(environment.get(name)), convert, relation=relation)


_OF_PADDLE = re.compile(r"\b(?:paddle|PdArgumentParser|ppdet)")
_OF_RANKS = re.compile(
    r"environ\s*\[\s*[\"'](?:LOCAL_RANK|RANK|WORLD_SIZE)[\"']\s*\]|torch\.distributed|paddle\.distributed|DataParallel"
    r"|init_dist|distributed\.init|SyncBatchNorm|PdArgumentParser|DistributeTranspiler|fluid\.incubate\.fleet"
    r"|SlurmClusterResolver|kv(?:store)?\.create|\bpservers\s*=|^(?:import|from) (?:(?:pytorch_)?lightning|ray\b)"
    r"|TrainingArguments\([^#]{0,2000}\bfsdp\s*=|underflow_overflow",
    re.MULTILINE,
)
#: Words of a plain command that are searched for an option.
_MAX_OPTIONS = 200
#: Wrappers that do not change the environment of the script.
_TRANSPARENT_WRAPPERS = frozenset({"env", "time", "nohup", "nice", "taskset", "numactl", "exec"})


_SPAWNS = re.compile(
    r"\b(?:mp|multiprocessing)\.spawn\s*\(|\bpaddle\b[\s\S]*?\bdist(?:ributed)?\.spawn\s*\("
    r"|\bimport ray\b[\s\S]*?\bplacement_group\s*\(|\bray\.train\b[\s\S]*?\bScalingConfig\s*\("
)


def _plain_run(command: Command) -> tuple[LaunchLine, PythonProgram] | None:
    """Return a command that runs a script as one process, without its wrappers; None for any other."""
    stripped = strip_wrappers(command)
    if not is_python(stripped.words) or any(wrapper.name not in _TRANSPARENT_WRAPPERS for wrapper in stripped.wrappers):
        return None
    found = python_program(stripped.words)
    return (line_of(command, stripped.words), found) if found is not None and found.words else None


def _plain_script(command: Command, tree: Tree) -> SourceFile | None:
    """Return the script that a command runs as one process."""
    run = _plain_run(command)
    if run is None:
        return None
    line, found = run
    name = text_of(found.words[0]) or ""
    return script_at(module_path(name, line, tree) if found.module else relative(name, line, tree), tree)


def spawns_ranks(command: Command, tree: Tree) -> bool:
    """Return whether a command runs a script as one process, and the script's text spawns the ranks or starts them in
    Ray.
    """
    file = _plain_script(command, tree)
    return file is not None and _SPAWNS.search(file.text) is not None


def takes_a_role(command: Command, tree: Tree) -> bool:
    """Return whether a command runs a script as one process that takes its own role: a server or a trainer of Fluid,
    or the rank that it passes to torch.
    """
    file = _plain_script(command, tree)
    if file is None:
        return False
    folder = posixpath.dirname(file.path)
    modules = (tree.read(posixpath.join(folder, f"{name}.py")) for name in _IMPORTS.findall(file.text)[:_MAX_MODULES])
    return any(isinstance(each, SourceFile) and _TAKES_A_ROLE.search(each.text) for each in (file, *modules))


_TAKES_A_ROLE = re.compile(r"DistributeTranspiler|init_process_group\([^()]*(?:\([^()]*\)[^()]*)*\brank\s*=")
_IMPORTS = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
_MAX_MODULES = 20


#: Changes the variables by which programs see that they are in a job of Slurm: `unset SLURM_NTASKS`.
_HIDES_SLURM = re.compile(
    r"\b(?:unset|pop|del)\b[^\n]{0,200}\bSLURM_|-u\s*SLURM_|\bSLURM_(?:JOB_NAME|NTASKS)\b['\"\]]{0,2}\s*=(?!=)"
)


def hides_slurm(text: str) -> bool:
    """Return whether a script changes the variables by which programs see that they are in a job of Slurm."""
    return _HIDES_SLURM.search(text) is not None


#: Starts further processes, which may be ranks of the same group.
_STARTS_OTHERS = re.compile(r"\bProcess\s*\(|\bPopen\s*\(|\bos\.fork\s*\(")


def plain_program(command: Command, tree: Tree) -> Reading:
    """Return the claim that a script runs as one process, and a reference to it, if its text mentions ranks.

    Most plain python commands prepare data or evaluate, and are ignored.
    """
    run = _plain_run(command)
    if run is None or run[1].module or command.outer is not None:
        return Reading()
    if any(name in command.environment for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")):
        return Reading()
    line, found = run
    word = found.words[0]
    path = relative(text_of(word) or "", line, tree)
    file = script_at(path, tree)
    builder = ClaimBuilder("python", condition=command.condition)
    for option, following in itertools.pairwise(found.words[1:_MAX_OPTIONS]):
        # A convention of OpenMMLab's tools and those that were made after them.
        if text_of(option) == "--launcher":
            builder.add("launcher_option", following.value, following.span, f"--launcher {following.spelling}")
    if path is None or file is None or not _OF_RANKS.search(file.text):
        return Reading(claims=tuple(builder.claims))
    first = line.words[0]
    spelling = f"{first.spelling} {word.spelling}"
    builder.add("plain_program", Known(path), first, spelling)
    arguments = tuple(text_of(each) or "" for each in found.words[1:_MAX_OPTIONS])
    builder.add("plain_arguments", Known(arguments), first, spelling)
    if _STARTS_OTHERS.search(file.text):
        builder.add("starts_processes", Known(True), first, spelling)
    script = tree.read(command.span.path)
    if any(hides_slurm(each.text) for each in (file, script) if isinstance(each, SourceFile)):
        builder.add("slurm_hidden", Known(True), first, spelling)
    visible = command.environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        builder.add("plain_visible_devices", visible.value, visible)
    references: tuple[Reference, ...] = (Reference(path, "script", word.span),)
    if _OF_PADDLE.search(file.text) is not None:
        # Started alone, Paddle's programs set back what is meant for several ranks.
        program = read_program(line, "python", found.words, tree)
        own = [claim for claim in program.claims if claim.quantity.startswith(SETTING_PREFIX)]
        builder.claims.extend(replace(claim, scope=WHOLE_JOB) for claim in own)
        references += tuple(
            replace(found, scope=WHOLE_JOB) for found in program.references if found.role not in ("script", "")
        )
    return Reading(claims=tuple(builder.claims), references=references)


#: Names that users give to a variable with a launcher.
_NAME = re.compile(
    r"launch|torchrun|deepspeed|accelerate|mpi|srun|dist|starter|(?:^|[_{$])(?:run|cmd|exec)", re.IGNORECASE
)
#: Patterns that only a program of several ranks contains.
_DISTRIBUTED = re.compile(
    r"init_process_group|init_distributed|DistributedDataParallel|FullyShardedDataParallel|fully_shard|fleet\.init"
    r"|deepspeed\.initialize|initialize_megatron|\bAccelerator\(|init_parallel_env|hvd\.init"
)
#: Words after the launcher that are searched for its program.
_MAX_WORDS = 30


def unknown_launcher(words: Sequence[Word], tree: Tree | None, command: Command) -> int | None:
    """Return the index of the program that an unknown launcher starts; None if the line is not a launch."""
    if len(words) < 2 or not isinstance(words[0].value, Unresolved) or is_python(words):
        return None
    at = _program_at(words)
    if at is None:
        return None
    if _NAME.search(words[0].spelling):
        return at
    file = file_named(text_of(words[at]), LaunchLine("", tuple(words), command), tree)
    return at if file is not None and _DISTRIBUTED.search(file.text) else None


def _program_at(words: Sequence[Word]) -> int | None:
    for index, word in enumerate(words[1:_MAX_WORDS], start=1):
        if is_python(words[index:]):
            found = python_program(words[index:])
            module = found is not None and found.module
            return words.index(found.words[0]) if found is not None and not module else None
        text = text_of(word) or ""
        if text.endswith(".py"):
            return index
    return None


def read_unknown(line: LaunchLine, tree: Tree, *, at: int) -> Reading:
    """Read the program of a line whose launcher is unknown, with a note about what is unknown; `at` is its index."""
    launcher, word = line.words[0], line.words[at]
    program = read_program(line, "unknown", line.words[at:], tree)
    message = (
        f"`{launcher.spelling[:60]}` is known only at run time, so the number of {word.spelling} ranks that it "
        "starts is unknown; the launch was not checked"
    )
    note = Note(NoteKind.UNSUPPORTED, message, launcher.span, required=True)
    return Reading(program.claims, (program.launch,), program.references, (note,))
