"""From one evaluated command to what it claims: wrappers off, launcher found, its reader asked, context added."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from preflight.job import Claim, Known, Note, NoteKind, Scope, Span
from preflight.lazy.dataclasses import dataclass
from preflight.sources.base import Command, LauncherReader, LaunchLine, Reading, Tree, Variable, Word
from preflight.sources.launchers import slurm
from preflight.sources.launchers.accelerate import AccelerateReader
from preflight.sources.launchers.colossalai import ColossalReader
from preflight.sources.launchers.composer import ComposerReader
from preflight.sources.launchers.containers import state_containers
from preflight.sources.launchers.context import (
    MOST_VARIABLES,
    state_context,
    state_copies,
    state_environment,
    wrappers_reach_nodes,
)
from preflight.sources.launchers.deepspeed import DeepSpeedReader
from preflight.sources.launchers.defaults import with_default
from preflight.sources.launchers.fabric import FabricReader
from preflight.sources.launchers.installing import read_installs
from preflight.sources.launchers.options import text_of
from preflight.sources.launchers.origins import with_origins
from preflight.sources.launchers.overrides import starts_ranks
from preflight.sources.launchers.paddle import PaddleReader
from preflight.sources.launchers.paddle_v2 import PaddleV2Reader
from preflight.sources.launchers.paddle_wrapper import PaddleWrapperReader, is_wrapper
from preflight.sources.launchers.plain import plain_program
from preflight.sources.launchers.program import ProgramReader, is_program
from preflight.sources.launchers.programs import is_python, python_program
from preflight.sources.launchers.python import PythonReader, has_ranks
from preflight.sources.launchers.ray import RayReader
from preflight.sources.launchers.torchrun import TorchrunReader
from preflight.sources.launchers.torchx import TorchxReader
from preflight.sources.launchers.training_clis import (
    AxolotlReader,
    LlamaFactoryReader,
    SwiftReader,
    TrlReader,
    TuneReader,
)
from preflight.sources.launchers.wrapper_tables import KINDS
from preflight.sources.launchers.wrappers import (
    Peeled,
    Wrapper,
    environment_of,
    find_launcher,
    only_talks,
    peel,
    program_name,
)

#: Launchers in the order in which they are asked; plain python is tried when none of them answers.
READERS: tuple[LauncherReader, ...] = (
    TorchrunReader(),
    DeepSpeedReader(),
    AccelerateReader(),
    PaddleReader(),
    PaddleWrapperReader(),
    PaddleV2Reader(),
    RayReader(),
    ComposerReader(),
    FabricReader(),
    ColossalReader(),
    TorchxReader(),
    LlamaFactoryReader(),
    AxolotlReader(),
    TrlReader(),
    TuneReader(),
    SwiftReader(),
)
_PLAIN = PythonReader()
_PROGRAM = ProgramReader()
#: Launches of one script that are read.
_MOST_LAUNCHES = 100
#: Modules and scripts that are tools, even where srun starts several of them.
_TOOLS = frozenset(
    [
        "setup.py",
        "venv",
        "pip",
        "ensurepip",
        "http.server",
        "json.tool",
        "site",
        "torch.utils.collect_env",
        "wandb",
        "pytest",
    ]
)


@dataclass(frozen=True, slots=True)
class _Found:
    """A launcher on a line: its reader, its words, and the interpreter in front of `-m`."""

    reader: LauncherReader
    words: tuple[Word, ...]
    interpreter: Word | None


def read_commands(
    commands: Sequence[Command],
    header: Mapping[str, slurm.Asked],
    tree: Tree,
    *,
    batch: bool,
    scheduler: str = "slurm",
) -> Reading:
    """All that the commands of one script claim.

    Args:
        commands: as evaluated, inner ones behind their outer one.
        header: the script's `#SBATCH` options, or those of another scheduler under their names.
        tree: for the files they name.
        batch: the script has such a header, so it runs on the first node of an allocation.
        scheduler: whose header it is.
    """
    elsewhere = any(_starts_elsewhere(command) for command in commands)
    claims: list[Claim] = []
    result = Reading()
    inside: dict[Span, list[Scope]] = {}
    for command, line in launch_lines(commands, header if batch else None):
        if len(result.launches) >= _MOST_LAUNCHES:
            message = f"{_MOST_LAUNCHES} launches were read; what stands behind them was not looked at"
            result = replace(result, notes=(*result.notes, Note(NoteKind.UNSUPPORTED, message, command.span)))
            break
        if line is None:
            plain = plain_program(command, tree)
            claims.extend(plain.claims)
            result = replace(result, references=(*result.references, *plain.references))
            continue
        reading = _read(line, dict(header) if batch else {}, tree, elsewhere=elsewhere, scheduler=scheduler)
        if not reading.launches:
            continue
        claims.extend(reading.claims)
        for wrapper in line.wrappers:
            inside.setdefault(wrapper.word.span, []).append(line.line.scope)
        result = replace(
            result,
            launches=(*result.launches, *reading.launches),
            references=(*result.references, *reading.references),
            notes=(*result.notes, *reading.notes),
        )
    claims.extend(state_containers(commands, inside))
    if result.launches:
        installed = read_installs(commands, tree)
        claims.extend(installed.claims)
        result = replace(result, references=(*result.references, *installed.references))
    return replace(result, claims=tuple(dict.fromkeys(claims)))


def launch_lines(
    commands: Sequence[Command], header: Mapping[str, slurm.Asked] | None
) -> Iterator[tuple[Command, Line | None]]:
    """Every command but those of which an inner one says the same, with the launch line that it is, or None."""
    inner: dict[int, list[Command]] = {}
    for command in commands:
        if command.outer is not None:
            inner.setdefault(id(command.outer), []).append(command)
    ids: dict[str, int] = {}
    for command in commands:
        if not _is_read_inside(command, inner.get(id(command), ())):
            yield command, launch_line(command, header, ids)


def _is_read_inside(command: Command, inner: Sequence[Command]) -> bool:
    """Whether the rest of this very line (`ssh node1 torchrun ...`) stands among the commands as an inner one."""
    places = {word.span for word in command.words} if inner else set()
    return any(each.words and each.words[0].span in places for each in inner)


@dataclass(frozen=True, slots=True)
class Line:
    """A launch line with everything that was found around it.

    `prefixed`: something unknown stands in front of the launcher and may well start it on other nodes.
    """

    line: LaunchLine
    found: _Found
    wrappers: tuple[Wrapper, ...]
    environment: dict[str, Variable]
    prefixed: bool = False


def launch_line(
    command: Command, header: Mapping[str, slurm.Asked] | None = None, ids: dict[str, int] | None = None
) -> Line | None:
    """The launch a command is, or None.

    `header`: the options of the batch script it stands in, None outside of one. `ids` counts the launches of each
    line for their ids.
    """
    words = with_default(command.words, _starts_something)
    if words is not command.words:
        command = replace(command, words=words)
    peeled = peel(command)
    if not peeled.words or only_talks(program_name(peeled.words)):
        return None
    found = _launcher(peeled.words)
    prefixed = False
    if found is None:
        at = find_launcher(peeled.words, _is_launcher)
        if at is not None:
            found = _launcher(peeled.words[at:])
            prefixed = True
    environment: dict[str, Variable] = {}
    if found is not None or is_python(peeled.words):
        environment = environment_of(command, peeled.wrappers)
    program = python_program(peeled.words) if found is None and is_python(peeled.words) else None
    if program is not None and posixpath.basename(text_of(program.words[0]) or "") not in _TOOLS:
        ranked = _is_distributed(header, peeled.wrappers, environment) or starts_ranks(program.words[1:])
        found = _Found(_PLAIN, peeled.words, peeled.words[0]) if ranked else None
    if found is None and _is_spread(peeled):
        found = _Found(_PROGRAM, peeled.words, None)
        environment = environment_of(command, peeled.wrappers)
    if found is None:
        return None
    key = f"{command.span.path}:{command.span.line}"
    counter = ids if ids is not None else {}
    counter[key] = counter.get(key, 0) + 1
    launch_id = key if counter[key] == 1 else f"{key}#{counter[key]}"
    line = LaunchLine(
        launch_id=launch_id,
        words=found.words,
        command=replace(command, environment=environment),
        wrappers=tuple(wrapper.name for wrapper in peeled.wrappers if wrapper.name != "env"),
    )
    return Line(line, found, peeled.wrappers, environment, prefixed)


def _starts_something(name: str) -> bool:
    return name in KINDS or name.startswith("python") or any(name in reader.names for reader in READERS)


def _is_spread(peeled: Peeled) -> bool:
    """Whether mpirun stands directly in front of a program of no special kind, and starts more than one of it."""
    if not peeled.wrappers or peeled.wrappers[-1].name not in ("mpirun", "horovodrun"):
        return False
    count = peeled.wrappers[-1].scanned.last("np")
    return count is not None and count.value not in (Known("1"), Known(1)) and is_program(peeled.words[0])


def _is_launcher(name: str) -> bool:
    """Whether a word somewhere on a line is a launcher by its name; `paddle` may be anything there."""
    return name != "paddle" and any(name in reader.names for reader in READERS)


def _launcher(words: Sequence[Word]) -> _Found | None:
    name = program_name(words)
    for reader in READERS:
        if name in reader.names:
            return _Found(reader, tuple(words), None)
    if not is_python(words):
        return None
    program = python_program(words)
    if program is None:
        return None
    inner = text_of(program.words[0]) or ""
    for reader in READERS:
        if program.module and f"-m {inner}" in reader.names:
            return _Found(reader, program.words, program.interpreter)
        # `python /opt/env/bin/torchrun`, `python .../torch/distributed/launch.py`
        as_module = inner.removesuffix(".py").replace("/", ".")
        if not program.module and (
            posixpath.basename(inner) in reader.names
            or any(
                as_module.endswith("." + module[3:])
                for module in reader.names
                if module.startswith("-m ") and "." in module
            )
        ):
            return _Found(reader, program.words, program.interpreter)
    if not program.module and inner.endswith(".py") and is_wrapper(program.words):
        return _Found(PaddleWrapperReader(), program.words, program.interpreter)
    return None


def _is_distributed(
    header: Mapping[str, slurm.Asked] | None, wrappers: Sequence[Wrapper], environment: Mapping[str, Variable]
) -> bool:
    if has_ranks(environment):
        return True
    for wrapper in reversed(wrappers):
        if wrapper.name == "horovodrun":
            return True
        if wrapper.name == "mpirun":
            count = wrapper.scanned.last("np")
            return count is None or count.value not in (Known("1"), Known(1))
        if wrapper.name == "srun":
            return not _single(wrapper, header)
    return False


def _single(srun: Wrapper, header: Mapping[str, slurm.Asked] | None) -> bool:
    """Whether srun starts one task only: a preparation or a conversion, not ranks."""
    asked = slurm.from_options(srun.scanned.given)
    if "ntasks" in asked:
        return _is_one(asked["ntasks"])
    if header is None and not asked:
        # Typed inside an allocation: nobody knows how large.
        return False
    counts = {**(header or {}), **asked}
    if "ntasks" in counts and not ({"nodes", "ntasks_per_node"} & set(asked)):
        return _is_one(counts["ntasks"])
    return all(_is_one(counts[dest]) for dest in ("nodes", "ntasks_per_node") if dest in counts)


def _is_one(asked: slurm.Asked) -> bool:
    return asked.value in (Known("1"), Known(1))


def _starts_elsewhere(command: Command) -> bool:
    """Whether a command starts something of weight on other nodes."""
    peeled = peel(command)
    if not wrappers_reach_nodes(peeled.wrappers):
        return program_name(peeled.words) in ("parallel-ssh", "pssh", "ray", "dsh", "parallel")
    if not peeled.words:
        return True
    name = program_name(peeled.words)
    words = (text_of(peeled.words[0]) or "").split()
    return name not in slurm.HARMLESS and not (words and posixpath.basename(words[0]) in slurm.HARMLESS)


def _read(line: Line, header: dict[str, slurm.Asked], tree: Tree, *, elsewhere: bool, scheduler: str) -> Reading:
    launch = line.line
    reading = line.found.reader.read(launch, tree)
    if not reading.launches:
        return reading
    context, references = state_context(launch, line.wrappers, line.found.interpreter, tree)
    copies = state_copies(
        launch,
        line.wrappers,
        header,
        elsewhere=elsewhere or line.prefixed,
        reaches_nodes=any(started.launcher in ("deepspeed", "colossalai", "torchx") for started in reading.launches),
        scheduler=scheduler,
    )
    environment = state_environment(launch, line.environment)
    notes = reading.notes
    if len(line.environment) > MOST_VARIABLES:
        message = f"{MOST_VARIABLES} variables of this launch were read; it is given more"
        notes = (*notes, Note(NoteKind.UNSUPPORTED, message, launch.command.span))
    return replace(
        reading,
        claims=with_origins((*copies.claims, *reading.claims, *context.claims, *environment.claims), launch.command),
        notes=notes,
        references=(*reading.references, *references),
    )
