"""Reads evaluated commands: removes wrappers, finds the launcher, lets its reader state claims, adds the context."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from preflight._util import toml
from preflight._util.sequences import grouped
from preflight.model.job import Claim, Known, Note, NoteKind, Scope, Span
from preflight.model.job.job import SUBMISSION
from preflight.model.job.value import numbers as numbers_in
from preflight.sources.base import Command, LauncherReader, LaunchLine, Reading, SourceFile, Tree, Variable, Word
from preflight.sources.containers import is_container_file
from preflight.sources.hydra.configuration import FRAMEWORKS
from preflight.sources.hydra.run_config import framework_of_line, framework_of_program
from preflight.sources.launchers import (
    batch_jobs,
    mpi,
    paddle,
    server_launchers,
    slurm,
    torch_launchers,
    training_clis,
)
from preflight.sources.launchers.batch_jobs import applied_clusters, state_waits, submitted_task
from preflight.sources.launchers.claim_builder import ClaimBuilder, with_origins
from preflight.sources.launchers.framework_arguments import ARGUMENT_FRAMEWORKS, argument_framework, starts_ranks
from preflight.sources.launchers.launch_context import (
    MAX_VARIABLES,
    read_installs,
    state_containers,
    state_context,
    state_environment,
    state_quoted_commands,
    state_task_counts,
    state_unread_variables,
    withheld_variable_claims,
    wrappers_reach_nodes,
)
from preflight.sources.launchers.mpi import app_contexts, is_program
from preflight.sources.launchers.option_parser import (
    GivenOption,
    PythonProgram,
    file_named,
    is_python,
    known_prefix,
    python_program,
    text_of,
)
from preflight.sources.launchers.python import (
    has_ranks,
    hides_slurm,
    plain_program,
    read_python,
    read_unknown,
    spawns_ranks,
    takes_a_role,
    unknown_launcher,
)
from preflight.sources.launchers.script_arguments import gives_rank, is_one_of_several
from preflight.sources.launchers.wrappers import (
    WRAPPER_SYNTAX,
    StrippedCommand,
    Wrapper,
    environment_of,
    find_launcher,
    only_mentions_programs,
    program_name,
    strip_wrappers,
    with_default,
)

#: How the line of each launcher is read; `programs.toml` has the names of each.
_READERS: dict[str, LauncherReader] = {
    "torchrun": torch_launchers.read_torchrun,
    "deepspeed": torch_launchers.read_deepspeed,
    "accelerate": torch_launchers.read_accelerate,
    "paddle": paddle.read_paddle,
    "paddle-wrapper": paddle.read_paddle_wrapper,
    "paddle-v2": paddle.read_paddle_v2,
    "ray": batch_jobs.read_ray,
    "composer": torch_launchers.read_composer,
    "fabric": torch_launchers.read_fabric,
    "colossalai": torch_launchers.read_colossalai,
    "torchx": torch_launchers.read_torchx,
    "determined": torch_launchers.read_determined,
    "llamafactory": training_clis.read_llamafactory,
    "axolotl": training_clis.read_axolotl,
    "trl": training_clis.read_trl,
    "tune": training_clis.read_tune,
    "swift": training_clis.read_swift,
    "primus": training_clis.read_primus,
    "nemo": training_clis.read_nemo,
    "paddleformers": training_clis.read_paddleformers,
    "fairseq": training_clis.read_fairseq,
    "server-launcher": server_launchers.read_server_launcher,
    "xpk": batch_jobs.read_xpk,
}
_NAMES = toml.beside(__file__, "programs.toml")["names"]
_BY_NAME = {name: _READERS[key] for key, names in _NAMES.items() for name in names}
_REACHES_NODES = ("deepspeed", "colossalai", "torchx", "xpk")
#: Programs that start all ranks of a Ray cluster.
_STARTS_ALL = frozenset(
    [framework.name for framework in FRAMEWORKS if framework.starts_ranks]
    + [framework.name for framework in ARGUMENT_FRAMEWORKS]
)
#: Launches read from one script.
_MAX_LAUNCHES = 100
#: Modules and scripts that do not train, even when srun starts several copies.
_TOOLS = toml.words(__file__, "words.toml", "tools")


_DEFAULTED = re.compile(r"\$\(\w+\)|\$\{\w+:?-")


class _LauncherMatch(NamedTuple):
    """A launcher on a line: how it is read, its words, and the interpreter before `-m`."""

    read: LauncherReader
    words: tuple[Word, ...]
    interpreter: Word | None


def read_commands(
    commands: Sequence[Command],
    header: Mapping[str, GivenOption],
    tree: Tree,
    *,
    batch: bool,
    scheduler: str = "slurm",
    ids: dict[str, int] | None = None,
) -> Reading:
    """Read the claims of the commands of one script.

    Args:
        commands: the evaluated commands; inner ones follow their outer one.
        header: the options of the script's batch header, under Slurm's names.
        tree: looks up the files that they name.
        batch: whether the script has such a header and therefore runs on the first node of an allocation.
        scheduler: the scheduler of the header.
        ids: counts the launches on each line, also of scripts that several containers start.
    """
    elsewhere = any(_starts_elsewhere(command) for command in commands)
    roles = [command for command in commands if takes_a_role(command, tree)]
    claims: list[Claim] = []
    result = Reading()
    scopes_by_word: dict[Span, list[Scope]] = {}
    ids = {} if ids is None else ids
    for command, line in launch_lines(commands, header if batch else None, tree, ids):
        if len(result.launches) >= _MAX_LAUNCHES:
            message = f"{_MAX_LAUNCHES} launches were read; later launches were not checked"
            note = Note(NoteKind.TOO_LARGE, message, command.span, required=True)
            result = result.joined(Reading(notes=(note,)))
            break
        if line is None and spawns_ranks(command, tree):
            line = plain_line(command, tree, ids, "#spawn")
        elif line is None and len(roles) > 1 and command in roles:
            line = plain_line(command, tree, ids)
        if line is None:
            plain = plain_program(command, tree)
            claims.extend(plain.claims)
            submitted = submitted_task(command, tree)
            claims.extend(submitted.claims)
            result = replace(result, references=(*result.references, *plain.references, *submitted.references))
            continue
        reading = _read_line(line, dict(header) if batch else {}, tree, elsewhere=elsewhere, scheduler=scheduler)
        if not reading.launches:
            continue
        claims.extend(reading.claims)
        for wrapper in line.wrappers:
            scopes_by_word.setdefault(wrapper.word.span, []).append(line.line.scope)
        numbers = {**result.numbers, line.line.launch_id: command.number}
        result = replace(result.joined(replace(reading, claims=())), numbers=numbers)
    claims.extend(state_containers(commands, scopes_by_word))
    claims.extend(state_quoted_commands(commands))
    if any(launch.concurrent for launch in result.launches):
        claims.extend(state_waits(commands))
    if any(launch.launcher == "ray" for launch in result.launches):
        clusters = [reference for command in commands for reference in applied_clusters(command, tree)]
        result = replace(result, references=(*result.references, *clusters))
    if result.launches:
        installed = read_installs(commands, tree)
        claims.extend(installed.claims)
        result = replace(result, references=(*result.references, *installed.references))
    return replace(result, claims=tuple(dict.fromkeys(claims)))


def _id_of(command: Command, ids: dict[str, int], mark: str = "") -> str:
    """Return the id of a launch: its line, and its number where the line launches more than once."""
    key = f"{command.span.path}:{command.span.line}{mark}"
    ids[key] = ids.get(key, 0) + 1
    return key if ids[key] == 1 else f"{key}#{ids[key]}"


def plain_line(command: Command, tree: Tree, ids: dict[str, int], mark: str = "") -> Line:
    """Return the launch of a program that is started as one process and spawns its ranks, or is itself one of the
    ranks.
    """
    stripped = strip_wrappers(command)
    environment = environment_of(command, stripped.wrappers, tree)
    line = LaunchLine(
        launch_id=_id_of(command, ids, mark),
        words=tuple(stripped.words),
        command=replace(command, environment=environment),
        wrappers=tuple(wrapper.name for wrapper in stripped.wrappers if wrapper.name != "env"),
    )
    return Line(line, _LauncherMatch(read_python, line.words, line.words[0]), stripped.wrappers, environment)


def launch_lines(
    commands: Sequence[Command],
    header: Mapping[str, GivenOption] | None,
    tree: Tree | None = None,
    ids: dict[str, int] | None = None,
) -> Iterator[tuple[Command, Line | None]]:
    """Yield every command with its launch line; None if it is not one.

    A command is skipped when the rest of its line is among the commands as an inner one.
    """
    inner = grouped((id(command.outer), command) for command in commands if command.outer is not None)
    ids = {} if ids is None else ids
    for command in commands:
        inside = inner.get(id(command), ())
        if not _has_inner_command(command, inside):
            # The commands that a script starts are in the list themselves.
            yield command, launch_line(command, header, ids, tree, followed=bool(inside))


def _has_inner_command(command: Command, inner: Sequence[Command]) -> bool:
    """Return whether the rest of this line (`ssh node1 torchrun ...`) is among the inner commands."""
    places = {word.span for word in command.words} if inner else set()
    return any(command_inside.words and command_inside.words[0].span in places for command_inside in inner)


class Line(NamedTuple):
    """A launch line with its reader, wrappers and environment.

    `prefixed`: an unknown program comes before the launcher and may start it on other nodes.
    """

    line: LaunchLine
    found: _LauncherMatch
    wrappers: tuple[Wrapper, ...]
    environment: dict[str, Variable]
    prefixed: bool = False


def launch_line(
    command: Command,
    header: Mapping[str, GivenOption] | None = None,
    ids: dict[str, int] | None = None,
    tree: Tree | None = None,
    *,
    followed: bool = False,
) -> Line | None:
    """Return the launch that a command is, or None.

    Args:
        command: the command.
        header: the options of the batch script it is in; None outside of one.
        ids: counts the launches on each line, for their ids.
        tree: where programs and configuration files are looked up; without it only the words are known.
        followed: whether the command starts a script whose commands have been read.
    """
    words = with_default(command.words, _starts_something)
    if words is not command.words:
        command = replace(command, words=words)
    stripped = strip_wrappers(command)
    if not stripped.words or only_mentions_programs(program_name(stripped.words)):
        return None
    found = _find_launcher(stripped.words)
    prefixed = False
    script = ""
    if found is None:
        at = find_launcher(stripped.words, _is_launcher)
        if at is not None:
            found = _find_launcher(stripped.words[at:])
            prefixed = True
            # A script that starts its arguments may set variables for them.
            name = program_name(stripped.words)
            script = name if found is not None and name.endswith(_SCRIPTS) else ""
            if "--" in map(text_of, stripped.words[:at]):
                script = SUBMISSION
    if found is None:
        stripped, found = _submitted_launcher(command, stripped)
        prefixed = prefixed or found is not None
        script = SUBMISSION if found is not None else script
    program = python_program(stripped.words) if found is None and is_python(stripped.words) else None
    if program is not None and posixpath.basename(text_of(program.words[0]) or "") not in _TOOLS:
        given = program.words[1:]
        environment = environment_of(command, stripped.wrappers, tree)
        ranked = (
            _is_distributed(header, stripped.wrappers, environment)
            or starts_ranks(given, LaunchLine("", stripped.words, command), tree)
            or is_one_of_several(given)
            or (tree is not None and not program.module and _is_given_rank(command, program, environment, tree))
            or _starts_all_ranks(command, program, tree)
            or (tree is not None and _identifies_process(command, program, environment, tree))
            or (tree is not None and _needs_tasks(command, program, stripped.wrappers, header, tree))
        )
        found = _LauncherMatch(read_python, stripped.words, stripped.words[0]) if ranked else None
    if found is None and not followed and _is_program_of_ranks(stripped, header):
        found = _LauncherMatch(mpi.read_compiled, stripped.words, None)
    if found is None and not followed:
        at = unknown_launcher(stripped.words, tree, command)
        found = _LauncherMatch(partial(read_unknown, at=at), stripped.words, None) if at is not None else None
    if found is None:
        return None
    environment = environment_of(command, stripped.wrappers, tree)
    line = LaunchLine(
        launch_id=_id_of(command, ids if ids is not None else {}),
        words=found.words,
        command=replace(command, environment=environment),
        wrappers=(
            *([command.submitter] if command.submitter else ()),
            *(wrapper.name for wrapper in stripped.wrappers if wrapper.name != "env"),
            *([script] if script else ()),
        ),
    )
    return Line(line, found, stripped.wrappers, environment, prefixed)


#: Ends of the names of shell scripts.
_SCRIPTS = (".sh", ".bash")


def _submitted_launcher(command: Command, stripped: StrippedCommand) -> tuple[StrippedCommand, _LauncherMatch | None]:
    """Return the launcher after `--` of a script that submits jobs: `python submit.py --gpus 8 -- torchrun x.py`.

    A quoted `&&` between commands is a word.
    """
    words = stripped.words
    at = next((number for number, word in enumerate(words) if text_of(word) == "--"), None)
    if at is None or not is_python(words):
        return stripped, None
    rest = words[at + 1 :]
    ends = [number for number, word in enumerate(rest) if text_of(word) in ("&&", ";", "||")]
    for start, end in zip([-1, *ends], [*ends, len(rest)], strict=True):
        part = tuple(rest[start + 1 : end])
        inner = strip_wrappers(replace(command, words=part)) if part else None
        found = _find_launcher(inner.words) if inner is not None and inner.words else None
        if inner is not None and found is not None:
            return inner, found
    return stripped, None


def _is_given_rank(command: Command, program: PythonProgram, environment: Mapping[str, Variable], tree: Tree) -> bool:
    """Return whether an option or a variable that a program reads itself sets its rank."""
    file = file_named(text_of(program.words[0]), LaunchLine("", program.words, command), tree)
    return gives_rank(file.path if file is not None else None, program.words[1:], environment, tree)


#: Joins a group of processes.
_JOINS = re.compile(
    r"\b(?:init_process_group|init_rpc|init_parallel_env|distributed\.initialize|DistributeTranspiler|fleet\.init"
    r"|(?:UserDefined|PaddleCloud)\w*RoleMaker)\s*\("
)
#: Variables that a script may set for each of several processes.
_OF_ONE_PROCESS = re.compile(r"RANK|ROLE|INDEX|CURRENT_ENDPOINT|(?:^|_)ID$", re.IGNORECASE)


def _identifies_process(
    command: Command, program: PythonProgram, environment: Mapping[str, Variable], tree: Tree
) -> bool:
    """Return whether a program in the background joins a group and its line identifies the process: `ROLE=server python
    train.py &`, `python train.py --role server &`.
    """
    path = text_of(program.words[0]) if command.concurrent else None
    file = file_named(path, LaunchLine("", program.words, command), tree)
    if file is None or not file.path.endswith(".py") or _JOINS.search(file.text) is None:
        return False
    own = [name for name, given in environment.items() if given.span.line == command.span.line]
    own += [known_prefix(word).partition("=")[0] for word in program.words[1:] if known_prefix(word).startswith("--")]
    return any(_OF_ONE_PROCESS.search(name) and re.search(rf"[\"']{name}[\"']", file.text) for name in own)


#: A program of Lightning that trains on several devices: its Trainer takes all of them, or more than one.
_OF_LIGHTNING = re.compile(r"^\s*(?:import|from) (?:pytorch_)?lightning\b", re.MULTILINE)
_ON_SEVERAL_DEVICES = re.compile(r"\bTrainer\([^#]{0,2000}?\bdevices\s*=\s*(?:[\"'](?:auto|-1)[\"']|-1|[2-9]|\d\d)")


def _needs_tasks(
    command: Command,
    program: PythonProgram,
    wrappers: Sequence[Wrapper],
    header: Mapping[str, GivenOption] | None,
    tree: Tree,
) -> bool:
    """Return whether srun starts one task on several GPUs of a node for a program of Lightning that trains on all of
    them: Lightning leaves it to Slurm to start their ranks.
    """
    if not wrappers or wrappers[-1].name != "srun" or program.module:
        return False
    options = {**(header or {}), **slurm.from_options(wrappers[-1].scanned.given)}
    granted = slurm.state(ClaimBuilder("slurm"), options).get("gpus_per_node")
    if "ntasks_per_node" not in options or granted is None or not all(n > 1 for n in numbers_in(granted.value) or (0,)):
        return False
    file = file_named(text_of(program.words[0]), LaunchLine("", program.words, command), tree)
    text = file.text if file is not None else ""
    script = tree.read(command.span.path)
    is_hidden = hides_slurm(text) or (isinstance(script, SourceFile) and hides_slurm(script.text))
    return bool(_OF_LIGHTNING.search(text) and _ON_SEVERAL_DEVICES.search(text)) and not is_hidden


def _starts_all_ranks(command: Command, program: PythonProgram, tree: Tree | None) -> bool:
    """Return whether a program belongs to a framework that starts all ranks itself, over Ray."""
    words = program.words
    name = known_prefix(words[0])
    by_arguments = argument_framework(name, words[1:])
    if by_arguments is not None:
        return by_arguments.starts_ranks
    if tree is None:
        framework = framework_of_program(name, words[1:])
    else:
        framework = framework_of_line(LaunchLine("", words, command), words, tree)
    return framework is not None and framework.starts_ranks


def _starts_something(name: str) -> bool:
    return name in WRAPPER_SYNTAX or name.startswith("python") or name in _BY_NAME


def _is_program_of_ranks(stripped: StrippedCommand, header: Mapping[str, GivenOption] | None) -> bool:
    """Return whether mpirun or srun directly starts several copies of a program that no other reader knows.

    mpirun without a count uses the slots of its hosts, of the allocation or of the machine. srun starts tools of all
    kinds, so a program without a path counts only if several of its tasks run on one node.
    """
    if not stripped.wrappers or not is_program(stripped.words[0]):
        return False
    starter = stripped.wrappers[-1]
    if starter.name in ("mpirun", "horovodrun"):
        return _starts_several(starter)
    if starter.name == "srun":
        by_path = "/" in (text_of(stripped.words[0]) or "")
        return (by_path and not _starts_one_task(starter, header)) or _starts_several_on_a_node(starter, header)
    return False


def _starts_several(mpirun: Wrapper) -> bool:
    count = mpirun.scanned.last("np")
    return count is None or count.value not in (Known("1"), Known(1))


def _starts_several_on_a_node(srun: Wrapper, header: Mapping[str, GivenOption] | None) -> bool:
    """Return whether srun has options to start more than one task on a node, or more tasks than nodes."""
    options = slurm.from_options(srun.scanned.given)
    counts = {**(header or {}), **options}
    per_node = counts.get("ntasks_per_node")
    if per_node is not None and "ntasks" not in options:
        return not _equals_one(per_node)
    tasks, nodes = counts.get("ntasks"), counts.get("nodes")
    if tasks is None or _equals_one(tasks) or not isinstance(tasks.value, Known):
        return False
    return nodes is None or nodes.value != tasks.value


def _is_launcher(name: str) -> bool:
    """Return whether a name anywhere on a line is a launcher; `paddle` does not count, because elsewhere on a line that
    word may mean anything.
    """
    return name != "paddle" and name in _BY_NAME


def _find_launcher(words: Sequence[Word]) -> _LauncherMatch | None:
    name = program_name(words)
    if name in _BY_NAME:
        return _LauncherMatch(_BY_NAME[name], tuple(words), None)
    program = python_program(words) if is_python(words) else None
    if program is None:
        return None
    inner = text_of(program.words[0]) or ""
    if program.module:
        read = _BY_NAME.get(f"-m {inner}")
    else:
        # `python /opt/env/bin/torchrun`, `python .../torch/distributed/launch.py`
        as_module = "." + inner.removesuffix(".py").replace("/", ".")
        file_name = posixpath.basename(inner)
        read = next(
            (
                found
                for known, found in _BY_NAME.items()
                if known == file_name
                or (known.startswith("-m ") and "." in known and as_module.endswith("." + known[3:]))
            ),
            paddle.read_paddle_wrapper if inner.endswith(".py") and paddle.is_wrapper(program.words) else None,
        )
    return _LauncherMatch(read, program.words, program.interpreter) if read is not None else None


def _is_distributed(
    header: Mapping[str, GivenOption] | None, wrappers: Sequence[Wrapper], environment: Mapping[str, Variable]
) -> bool:
    if has_ranks(environment):
        return True
    for wrapper in reversed(wrappers):
        if wrapper.name == "horovodrun":
            return True
        if wrapper.name == "mpirun":
            return _starts_several(wrapper)
        if wrapper.name == "jsrun":
            return not mpi.starts_one_task(wrapper.scanned)
        if wrapper.name == "srun":
            return not _starts_one_task(wrapper, header)
    return False


def _starts_one_task(srun: Wrapper, header: Mapping[str, GivenOption] | None) -> bool:
    """Return whether srun starts a single task, which is preparation or conversion and not a rank."""
    options = slurm.from_options(srun.scanned.given)
    if "ntasks" in options:
        return _equals_one(options["ntasks"])
    if header is None and not options:
        # Typed inside an allocation of unknown size.
        return False
    counts = {**(header or {}), **options}
    if "ntasks" in counts and not ({"nodes", "ntasks_per_node"} & set(options)):
        return _equals_one(counts["ntasks"])
    return all(_equals_one(counts[dest]) for dest in ("nodes", "ntasks_per_node") if dest in counts)


def _equals_one(options: GivenOption) -> bool:
    """Return whether an option is 1, other than by a default that the caller can change: `$(NP)` of make,
    `${NP:-1}`.
    """
    return options.value in (Known("1"), Known(1)) and _DEFAULTED.search(options.spelling) is None


def _starts_elsewhere(command: Command) -> bool:
    """Return whether a command starts a relevant program on other nodes."""
    stripped = strip_wrappers(command)
    if not wrappers_reach_nodes(stripped.wrappers):
        return program_name(stripped.words) in ("parallel-ssh", "pssh", "ray", "dsh", "parallel")
    if not stripped.words:
        return True
    name = program_name(stripped.words)
    words = (text_of(stripped.words[0]) or "").split()
    return name not in slurm.HARMLESS and not (words and posixpath.basename(words[0]) in slurm.HARMLESS)


def _read_line(line: Line, header: dict[str, GivenOption], tree: Tree, *, elsewhere: bool, scheduler: str) -> Reading:
    launch = line.line
    reading = line.found.read(launch, tree)
    if not reading.launches:
        return reading
    context, references = state_context(launch, line.wrappers, line.found.interpreter, tree)
    starts_all = any(started.launcher in _STARTS_ALL for started in reading.launches)
    copies = state_task_counts(
        launch,
        # One task starts ranks on all nodes of the Ray cluster.
        () if starts_all else line.wrappers,
        header,
        elsewhere=elsewhere or line.prefixed,
        reaches_nodes=starts_all or any(started.launcher in _REACHES_NODES for started in reading.launches),
        scheduler=scheduler,
    )
    environment = state_environment(launch, line.environment)
    unread = (
        *state_unread_variables(launch, line.environment, tree),
        *withheld_variable_claims(launch, line.wrappers, line.environment),
    )
    blanks = ClaimBuilder("shell", launch.scope, launch.command.condition)
    final = launch.words[-1]
    if _ends_at_blank(final, tree):
        blanks.add("blank_word", Known(" "), final.span, f"{final.spelling} \\ ")
    notes = reading.notes
    if len(line.environment) > MAX_VARIABLES:
        message = f"only the first {MAX_VARIABLES} variables of this launch were read"
        notes = (*notes, Note(NoteKind.TOO_LARGE, message, launch.command.span, required=True))
    notes = (*notes, *_other_programs(line.wrappers))
    launches = reading.launches
    if any(wrapper.scanned.last("detach") is not None for wrapper in line.wrappers):
        # `docker run -d` returns while the container runs.
        launches = tuple(replace(started, concurrent=True) for started in launches)
    return replace(
        reading,
        launches=launches,
        claims=with_origins(
            (*copies.claims, *reading.claims, *context.claims, *environment.claims, *unread, *blanks.claims),
            launch.command,
        ),
        notes=notes,
        references=(*reading.references, *references),
    )


def _ends_at_blank(word: Word, tree: Tree) -> bool:
    """Return whether a line ends in a backslash and blanks after the last word of a launch, and another line follows.

    Docker's parser removes blanks after the backslash, so container files continue such a line.
    """
    if is_container_file(word.span.path):
        return False
    file = tree.read(word.span.path)
    lines = file.text.split("\n") if isinstance(file, SourceFile) else []
    if not word.span.end_line < len(lines):
        return False
    rest = lines[word.span.end_line - 1][word.span.end_column - 1 :]
    return re.fullmatch(r"\s*\\[ \t]+", rest) is not None and bool(lines[word.span.end_line].strip())


def _other_programs(wrappers: Sequence[Wrapper]) -> Iterator[Note]:
    """Yield the programs of `mpirun -np 1 a : -np 2 b`, or of such an srun, after the first: they are ranks of one
    world.
    """
    for wrapper in wrappers:
        if wrapper.name not in ("mpirun", "srun"):
            continue
        first, *others = app_contexts(wrapper.command.words[1:])
        different = [words for words in others if text_of(words[-1]) != text_of(first[-1])]
        if different:
            count = len(different)
            programs = "program" if count == 1 else "programs"
            message = f"{count} more {programs} of this {wrapper.name} not read: all of them are ranks of one world"
            yield Note(NoteKind.UNSUPPORTED, message, wrapper.word.span)
