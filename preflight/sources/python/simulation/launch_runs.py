"""Runs of the program of a launch on a few of its ranks."""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from preflight._util.budget import BudgetExceeded, current, free_memory_after
from preflight._util.redaction import HIDDEN
from preflight.model.job import Job, Known, Launch, Note, NoteKind
from preflight.model.job.value import items
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.python import imports
from preflight.sources.python.module import parse_silently
from preflight.sources.python.simulation import (
    point_to_point,
    resolution,
)
from preflight.sources.python.simulation.argument_parser import OPEN
from preflight.sources.python.simulation.interpreter import Interpreter
from preflight.sources.python.simulation.known_functions import Library
from preflight.sources.python.simulation.libraries import table
from preflight.sources.python.simulation.run_state import Event, ExpressionPlace, Parsed, Run
from preflight.sources.python.simulation.values import (
    FunctionValue,
    OutOfSteps,
)
from preflight.sources.python.simulation.world import OF_RANK_NAMES, World

#: The kind of variables that a launcher sets.
_KINDS = {
    **dict.fromkeys(("torchrun", "torch.distributed.launch", "deepspeed", "accelerate"), "torch"),
    "paddle": "paddle",
    **dict.fromkeys(("mpirun", "horovodrun"), "mpirun"),
    "srun": "srun",
}
#: Launchers that pass the local rank as an option (torch/distributed/launch.py, deepspeed/launcher/launch.py).
_GIVING_LOCAL_RANK = ("torch.distributed.launch", "deepspeed")
#: What shows that a file does something when it is started.
_IS_PROGRAM = re.compile(r"__main__|^(?:for|while|with|try)\b", re.MULTILINE)
#: Characters of the modules that are kept parsed, which takes some thirty times as much memory.
_MAX_PARSED = 2048 * 1024
#: Attributes that a text sets, or sets with others.
_STORED = re.compile(r"\.(\w+)[ \t]*(?:(?::[^=\n]+)?(?://|\*\*|<<|>>|[-+*/|&^%@])?=(?!=)|,| in )")
#: Ranks that a program names and that are run besides.
_MAX_NAMED = 2
#: Programs with the same lines are run once; of others, so many.
MAX_PROGRAMS = 8


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a launch finds.

    Args:
        tree: those of the user.
        opened: the text of a file that the program opens.
        entries: what is in a folder that the program looks into.
        reading: what the text of a module shows.
    """

    tree: Tree
    opened: Callable[[str], str | None]
    entries: Callable[[str], Sequence[str]]
    reading: Callable[[SourceFile], Reading]


def runs_of(
    job: Job, launches: Sequence[Launch], files_of: Callable[[Launch], Files], notes: list[Note] | None = None
) -> dict[str, list[Run]]:
    """Return the runs of a few ranks of each launch, by launch; none for programs beyond the limits.

    Args:
        notes: takes a required note for each program that exceeds the budget.
    """
    wanted = resolution.places_of(job.claims)
    runs_by_key: dict[tuple[object, ...], list[Run]] = {}
    found: dict[str, list[Run]] = {}
    given = _given_to_each(job, launches)
    for launch in launches:
        if not launch.program.endswith(".py") or {"-h", "--help", "--version"} & set(launch.arguments):
            continue
        files = files_of(launch)
        script = files.tree.read(launch.program)
        key = (*_line_of(job, launch), *sorted(given[launch.id].items()))
        if not isinstance(script, SourceFile) or not (launch.launcher or _IS_PROGRAM.search(script.text)):
            continue
        if key not in runs_by_key and len(runs_by_key) < MAX_PROGRAMS:
            follow = functools.partial(_runs, job, launch, given[launch.id], script, files, wanted)
            try:
                runs_by_key[key] = current().attempt(follow, sum(file.size_bytes for file in job.files))
            except BudgetExceeded as exceeded:
                free_memory_after(exceeded)
                runs_by_key[key] = []
                if notes is not None and launch.launcher:
                    message = f"following {launch.program} was stopped, because it takes {exceeded.excess}"
                    notes.append(Note(NoteKind.TOO_LARGE, message, launch.span, required=True))
        found[launch.id] = runs_by_key.get(key, [])
    return found


def _line_of(job: Job, launch: Launch) -> tuple[object, ...]:
    """Return the common part of two launches of one program, without their variables."""
    return launch.program, launch.launcher, launch.arguments, world_size_of(job, launch), launch.started_at


def _given_to_each(job: Job, launches: Sequence[Launch]) -> dict[str, dict[str, str]]:
    """Return the variables that each launch certainly sets, by launch.

    If more than a few launches differ only in variables, only those with one value in all of them count.
    """
    found: dict[str, dict[str, str]] = {}
    same: dict[tuple[object, ...], list[dict[str, str]]] = {}
    for launch in launches:
        found[launch.id] = variables_of(job, launch)
        same.setdefault(_line_of(job, launch), []).append(found[launch.id])
    if len({(_line_of(job, launch), *sorted(found[launch.id].items())) for launch in launches}) <= MAX_PROGRAMS:
        return found
    for each in same.values():
        shared = set(each[0].items()).intersection(*(other.items() for other in each))
        for variables in each:
            for name in variables.keys() - dict(shared).keys():
                del variables[name]
    return found


def variables_of(job: Job, launch: Launch) -> dict[str, str]:
    """Return the variables that a launch certainly gets."""
    return {
        claim.quantity.removeprefix("env."): str(claim.value.value)
        for claim in job.environment(launch.scope)
        if isinstance(claim.value, Known) and claim.source != "python"
    }


def _runs(
    job: Job,
    launch: Launch,
    given: Mapping[str, str],
    script: SourceFile,
    files: Files,
    wanted: Mapping[str, Collection[ExpressionPlace]],
) -> list[Run]:
    """Return runs of a launch's program on a few ranks, and last on any rank."""
    of_any, singles = _worlds(job, launch, given)

    def places_in(file: SourceFile) -> Collection[ExpressionPlace]:
        further = {} if file.path == script.path else resolution.places_of(files.reading(file).claims)
        return (*wanted.get(file.path, ()), *further.get(file.path, ()))

    def follow(world: World) -> Run:
        return run_script(script, replace(world, read=files.opened, names=files.entries), files.tree, places_in)

    found = follow(of_any)
    # A program that is too long for one run is so for the others.
    if not launch.launcher or not (found.is_complete or found.has_left_out):
        return [found]
    is_same = not found.asks_for_rank and launch.launcher not in _GIVING_LOCAL_RANK and not of_any.has_servers
    if is_same:
        return [found]
    named = found.named_ranks
    if point_to_point.exchanges(found.events) and of_any.world_size and of_any.world_size <= point_to_point.MAX_RANKS:
        return [*map(follow, singles(range(of_any.world_size), most=of_any.world_size)), found]
    return [*map(follow, singles(named)), found]


def _nothing(_: SourceFile) -> Collection[ExpressionPlace]:
    return ()


def run_script(
    script: SourceFile,
    world: World,
    tree: Tree,
    wanted: Callable[[SourceFile], Collection[ExpressionPlace]] = _nothing,
) -> Run:
    """Run a script for one rank.

    Args:
        wanted: the expressions of a file whose values are to be kept.
    """
    # What a run makes is in cycles, which fill the memory of this process: they are freed at once, and only they are
    # searched. What a program that calls this one has frozen stays so.
    is_frozen = gc.get_freeze_count() > 0
    if not is_frozen:
        gc.freeze()
    try:
        found = _run(script, world, tree, wanted)
        gc.collect()
        return found
    finally:
        if not is_frozen:
            gc.unfreeze()


def _run(
    script: SourceFile, world: World, tree: Tree, wanted: Callable[[SourceFile], Collection[ExpressionPlace]]
) -> Run:
    def find(importing: SourceFile, name: str, level: int) -> SourceFile | None:
        path = imports.file_of(tree, importing, name, level)
        found = tree.read(path) if path is not None else None
        return found if isinstance(found, SourceFile) else None

    MODULES.start_run()
    library = Library(world)
    interpreter = Interpreter(library, find, MODULES.parsed, wanted)
    failure, has_ended = None, True
    undivided: list[tuple[Event, str, FunctionValue | None]] = []
    is_of_any = world.rank is None
    try:
        failure = interpreter.run(script)
        if is_of_any and interpreter.is_wrapped:
            undivided += interpreter.undivided()
    except (OutOfSteps, RecursionError):
        has_ended = False
    is_complete = has_ended and not interpreter.left_out
    outcomes = {place: frozenset(found) for place, found in interpreter.outcomes.items()}
    variables = frozenset(library.given)
    found = Run(
        interpreter.events,
        failure,
        is_complete,
        world.role,
        is_of_any,
        frozenset(interpreter.checks),
        variables,
        interpreter.values,
        outcomes,
        interpreter.rounds,
        interpreter.divergences,
        interpreter.is_wrapped,
        frozenset(interpreter.named_ranks),
        library.is_asked,
        interpreter.parsers,
        frozenset(interpreter.entered),
        interpreter.not_reached(is_finished=failure is None) if is_of_any and is_complete else (),
        library.not_set,
        undivided,
        (world.rank, world.local_rank),
        interpreter.switches,
        bool(interpreter.left_out) and has_ended,
    )
    interpreter.free()
    return found


class _Modules:
    """The modules that the last runs parsed: all ranks, and most launches of a tree, run the same ones."""

    def __init__(self) -> None:
        self._parsed: dict[str, Parsed | None] = {}
        self._used: set[str] = set()
        self._used_before: set[str] = set()
        self._size = 0

    def start_run(self) -> None:
        """Note that the modules of another run follow."""
        self._used, self._used_before = set(), self._used

    def parsed(self, file: SourceFile) -> Parsed | None:
        """Return the statements of a module; None if it cannot be parsed."""
        self._used.add(file.text)
        if file.text in self._parsed:
            return self._parsed[file.text]
        found = _parse(file.text)
        if self._size + len(file.text) > _MAX_PARSED:
            for text in self._parsed.keys() - self._used - self._used_before:
                del self._parsed[text]
            self._size = sum(map(len, self._parsed))
        # A program that is larger keeps a part of its modules, so that each run parses only the others again.
        if self._size + len(file.text) <= _MAX_PARSED:
            self._parsed[file.text] = found
            self._size += len(file.text)
        return found


MODULES = _Modules()


def _parse(text: str) -> Parsed | None:
    try:
        tree = parse_silently(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return Parsed(tree, frozenset(_STORED.findall(text)))


def world_size_of(job: Job, launch: Launch) -> int | None:
    world, local = _count(job, "world_size", launch), _count(job, "processes_per_node", launch)
    nodes = _count(job, "nodes", launch)
    if job.setting("spawned_processes", launch.scope):
        # The world of the processes that the launcher starts, which start others.
        world = _count(job, "tasks", launch)
    if world is None and nodes is not None and local is not None:
        world = nodes * local
    return None if _differ(job, launch) else world


def _worlds(job: Job, launch: Launch, given: Mapping[str, str]) -> tuple[World, Callable[..., list[World]]]:
    """Return the world of any rank of the launch, and the ranks that are run separately, including those in the
    program.
    """
    world, local = world_size_of(job, launch), _count(job, "processes_per_node", launch)
    names = table()["variables"].get(_KINDS.get(launch.launcher, ""), {})
    has_servers = job.value("ps_mode", launch.scope) == Known(True)
    if has_servers:
        world, local = _count(job, "ps_workers", launch), None
    size = {name: str(world) for name in names.get("world_size", ()) if world is not None}
    local_size = {name: str(local) for name in names.get("local_world_size", ()) if local is not None}
    shared = {name: value for name, value in given.items() if not OF_RANK_NAMES.search(name)}
    variables = {**shared, **size, **local_size}
    is_several = (local is None or local > 1) and (world is None or world > 1)
    of_any = World(None, None, world, local, words_of(job, launch, OPEN), variables, has_servers=has_servers)
    of_any = replace(of_any, is_several=bool(names) and is_several)

    def single(role: str, rank: int, local_rank: int) -> World:
        shown = role if "paddle" in launch.launcher else ""
        made = replace(
            of_any, rank=rank, local_rank=local_rank, arguments=words_of(job, launch, str(local_rank)), role=shown
        )
        numbers = {name: made.symbol(symbol) for symbol, found in names.items() for name in found}
        known = {name: str(value) for name, value in numbers.items() if isinstance(value, int)}
        if shown:
            known["TRAINING_ROLE"] = "TRAINER" if role == "worker" else "PSERVER"
        return replace(made, variables={**given, **known})

    def singles(named: Collection[int], most: int = _MAX_NAMED) -> list[World]:
        if has_servers:
            places = [("worker", 0, 0), *([("worker", 1, 1)] if is_several else []), ("server", 0, 0)]
            return [single(*place) for place in places]
        # The last rank, and the first one of the last node, differ from the first in most conditions on ranks.
        ranks = [0]
        spawns = "#spawn" in launch.id or launch.span.path == launch.program
        if is_several and (names or local is not None or spawns):
            ranks.append((world or local or 2) - 1)
        if local is not None and world is not None and world > local and names:
            ranks.append(world - local)
        ranks += [rank for rank in sorted(named) if 0 < rank < ranks[-1]][:most]
        return [single("worker", rank, rank % local if local else rank) for rank in dict.fromkeys(ranks)]

    return of_any, singles


def words_of(job: Job, launch: Launch, local_rank: str) -> tuple[str | None, ...] | None:
    """Return the words of the program's command line; None if they are unknown."""
    if launch.span.path == launch.program:
        # A launch in the program itself says nothing of the line that the program is started with.
        return _plain_words(job, launch.program)
    words = tuple(None if word is None or HIDDEN in word else word for word in launch.arguments)
    if launch.launcher in _GIVING_LOCAL_RANK:
        # Before torch 2.0 with `_`, since then with `-`: that which the program does not declare is left over.
        words = (f"--local_rank={local_rank}", f"--local-rank={local_rank}", *words)
    return words


def _plain_words(job: Job, program: str) -> tuple[str | None, ...] | None:
    """Return the words of the only plain line that starts a program; None if there is none, or several differ."""
    places = {claim.span for claim in job.about("plain_program") if claim.value == Known(program)}
    lines = {items(claim.value) for claim in job.about("plain_arguments") if claim.span in places}
    return tuple(word or None for word in next(iter(lines))) if len(lines) == 1 else None


def _differ(job: Job, launch: Launch) -> bool:
    """Return whether other lines start the same program with other numbers of ranks, maybe as nodes of the same job."""
    others = [each for each in job.launches if each.program == launch.program]
    return len({_count(job, "processes_per_node", each) for each in others}) > 1 and bool(
        job.setting("node_rank", launch.scope)
    )


def _count(job: Job, quantity: str, launch: Launch) -> int | None:
    value = job.value(quantity, launch.scope)
    return int(value.value) if isinstance(value, Known) and isinstance(value.value, (int, float)) else None
