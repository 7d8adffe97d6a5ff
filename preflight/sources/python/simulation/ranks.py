"""Runs the program of a launch on a few of its ranks, and compares what they do."""

from __future__ import annotations

import ast
import difflib
import gc
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from preflight._util.redaction import HIDDEN, scrub
from preflight.model.job import Claim, Job, Known, Launch, Span, Unresolved, Value
from preflight.model.job.value import texts
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python import imports
from preflight.sources.python.called_settings import SOURCE
from preflight.sources.python.module import Positions, last, parse_silently
from preflight.sources.python.simulation import call_settings, resolution
from preflight.sources.python.simulation.argument_parser import OPEN
from preflight.sources.python.simulation.interpreter import Interpreter
from preflight.sources.python.simulation.known_functions import OF_RANK_NAMES, Library, World
from preflight.sources.python.simulation.libraries import table
from preflight.sources.python.simulation.run_state import Event, ExpressionPlace, Failure, Parsed, Run
from preflight.sources.python.simulation.values import OutOfSteps

#: The kind of variables that a launcher sets.
_KINDS = {
    **dict.fromkeys(("torchrun", "torch.distributed.launch", "deepspeed", "accelerate"), "torch"),
    "paddle": "paddle",
    **dict.fromkeys(("mpirun", "horovodrun"), "mpirun"),
    "srun": "srun",
}
#: The feature of a script with a collective that some ranks do not come to.
ALONE = "collective_called_on_one_rank"
#: Features, and other claims, that say the same of what is written in a script.
_OF_ONE_RANK = frozenset(
    (
        *(ALONE, "rank_skips_collective", "return_by_file_before_collective", "divided_state_on_one_rank"),
        *("forward_on_one_rank", "forward_on_one_rank_with_buffers"),
    )
)
_WAITING = (
    *("guarded_collective", "guarded_gather", "guarded_trainer_save", "collective_order_differs"),
    *("collective_unmatched", "collective_in_rank_loop"),
)
#: Claims that show that a script is for several ranks.
_OF_SEVERAL_RANKS = frozenset(("uses_ddp", "uses_fsdp", "training_framework", "backend"))
#: How a condition is shown on which ranks part, by its kind.
_WORDS = {"while": "while", "for": "for ... in"}
#: Launchers that pass the local rank as an option (torch/distributed/launch.py, deepspeed/launcher/launch.py).
_GIVING_LOCAL_RANK = ("torch.distributed.launch", "deepspeed")
#: What shows that a file does something when it is started.
_IS_PROGRAM = re.compile(r"__main__|^(?:for|while|with|try)\b", re.MULTILINE)
#: Bytes of the modules that are kept parsed, which takes some thirty times as much memory.
_MAX_PARSED = 1280 * 1024
#: Attributes that a text sets, or sets with others.
_STORED = re.compile(r"\.(\w+)[ \t]*(?:(?::[^=\n]+)?(?://|\*\*|<<|>>|[-+*/|&^%@])?=(?!=)|,| in )")
#: Programs with the same lines are run once; of others, so many.
_MAX_PROGRAMS = 8


@dataclass(frozen=True, slots=True)
class Files:
    """The files that a launch finds.

    Args:
        tree: those of the user.
        opened: the text of a file that the program opens.
        entries: what is in a folder that the program looks into.
    """

    tree: Tree
    opened: Callable[[str], str | None]
    entries: Callable[[str], Sequence[str]]


def simulated(job: Job, derived: Job, files_of: Callable[[Launch], Files]) -> Job:
    """The job with what its programs certainly do, which replaces what their text shows less well.

    Args:
        derived: the job with the numbers of its ranks.
    """
    launches = job.launches or tuple(_unlaunched(job))
    runs = runs_of(derived, launches, files_of)
    shown = list(resolution.resolved(job.claims, {launch.id: launch for launch in job.launches}, runs))
    known = replace(job, claims=tuple(shown))
    new = [
        claim
        for launch in launches
        if launch.id in runs
        for claim in _of_launch(known, launch, runs[launch.id], files_of(launch).tree)
    ]
    better = {(claim.scope, call_settings.place_of(claim.quantity, claim.span)) for claim in new}
    kept = (c for c in shown if (c.scope, call_settings.place_of(c.quantity, c.span)) not in better)
    return replace(job, claims=(*kept, *new))


def _unlaunched(job: Job) -> Iterator[Launch]:
    """A stand-in for the launch of a script that no file starts; its line and its ranks are not known."""
    for file in job.files[:1]:
        if file.path.endswith(".py") and any(claim.quantity in _OF_SEVERAL_RANKS for claim in job.claims):
            yield Launch("", "", Span(file.path, 1, 1, 1, 1), program=file.path)


def runs_of(job: Job, launches: Sequence[Launch], files_of: Callable[[Launch], Files]) -> dict[str, list[Run]]:
    """What a few ranks of each launch do, by the launch; nothing for a program that is one too many."""
    wanted = resolution.places_of(job.claims)
    made: dict[tuple[object, ...], list[Run]] = {}
    found: dict[str, list[Run]] = {}
    for launch in launches:
        if not launch.program.endswith(".py") or {"-h", "--help", "--version"} & set(launch.arguments):
            continue
        worlds, files = _worlds(job, launch), files_of(launch)
        script = files.tree.read(launch.program)
        key = (launch.program, launch.launcher, launch.arguments, worlds[0].world_size, launch.started_at)
        if not isinstance(script, SourceFile) or not (launch.launcher or _IS_PROGRAM.search(script.text)):
            continue
        if key not in made and len(made) < _MAX_PROGRAMS:
            *single, of_any = [replace(world, read=files.opened, names=files.entries) for world in worlds]
            runs = [run(script, of_any, files.tree, wanted)]
            # A program that is too long for one run is so for the others.
            if launch.launcher and runs[0].is_complete:
                runs = [*(run(script, world, files.tree, wanted) for world in single), *runs]
            made[key] = runs
        found[launch.id] = made.get(key, [])
    return found


def _of_launch(job: Job, launch: Launch, runs: Sequence[Run], tree: Tree) -> Iterator[Claim]:
    """What the runs of a launch show that no text does."""
    script = tree.read(launch.program)
    if not isinstance(script, SourceFile):
        return
    if not runs:
        yield _not_followed(script, launch, f"of the programs of this job, {_MAX_PROGRAMS} others are followed")
        return
    yield from _partings(job, launch, runs)
    if not launch.launcher:
        return
    failure = next((each.failure for each in runs if each.failure is not None), None)
    if failure is not None and _is_given(failure, script, tree):
        yield _outcome(failure, launch)
        return
    if failure is not None or not all(each.is_complete for each in runs):
        why = f"{launch.program} cannot be followed to its end"
        yield _not_followed(script, launch, why)
        yield replace(_claim("program_followed", "", script, _start(script), launch), value=Unresolved(why))
        if failure is not None:
            yield from _of_calls(job, launch, runs)
        return
    if any(each.is_wrapped for each in runs):
        yield _claim("program_followed", launch.program, script, _start(script), launch)
    checks = {decided for each in runs for decided in each.checks}
    if True in checks:
        yield _claim("program_outcome", "", script, _start(script), launch)
    elif checks:
        yield _not_followed(script, launch, f"the checks of {launch.program} need values that no file shows")
    if any("RANK" in each.variables for each in runs):
        setter = _claim("rank_setter", "", script, _start(script), launch)
        yield replace(setter, value=Unresolved(f"{launch.program} sets RANK"))
    yield from _of_calls(job, launch, runs)
    if not _is_known(job, launch):
        yield from _of_lone_rank(launch, runs)


def _of_calls(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """The settings of calls."""

    def new(quantity: str, value: Value, at: call_settings.Place) -> Claim:
        claim = replace(_claim(quantity, "", at.file, at.node, launch), value=value)
        return replace(claim, origin=launch.span) if resolution.is_on_line(value, launch) else claim

    calls = [claim for claim in job.claims if claim.source == SOURCE and claim.scope.launch in ("", launch.id)]
    stated = {call_settings.place_of(claim.quantity, claim.span): claim for claim in calls}
    modules = {event.file.path: event.file.text for each in runs for event in each.events}
    return call_settings.claims(runs, list(modules.values()), stated, new)


def _of_lone_rank(launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """The collective that some ranks do not come to."""
    for other in [each for each in runs[1:] if each.role == runs[0].role and not each.is_of_any]:
        event = alone(runs[0], other)
        if event is not None:
            guard = next(iter(event.guards), None)
            because = (_claim("script_feature", f"part of {ALONE}", guard.file, guard.test, launch),) if guard else ()
            yield replace(_claim("script_feature", ALONE, event.file, event.node, launch), because=because)
            return


def _not_followed(script: SourceFile, launch: Launch, why: str) -> Claim:
    return replace(_claim("program_outcome", "", script, _start(script), launch), value=Unresolved(why))


def _partings(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """The collectives that some ranks may not come to, each place once."""
    seen: set[tuple[str, int, int]] = set()
    for each in next((each for each in runs if each.is_of_any), runs[0]).divergences:
        place = (each.file.path, getattr(each.node, "lineno", 0), getattr(each.node, "col_offset", 0))
        is_said = each.of_rank and _is_known(job, launch)
        if place in seen or is_said or (each.of_rank and each.kind == "if" and not _is_of_one(runs, each.event)):
            continue
        seen.add(place)
        kind = f"{each.kind} of some ranks" if each.of_rank else each.kind
        claim = _claim("rank_local_exit", kind, each.file, each.node, launch)
        kind = "layer" if each.event.is_layer else "step"
        step = _claim("guarded_collective", kind, each.event.file, each.event.node, launch)
        text = Positions(each.file.path, each.file.text).text(each.test)
        words = "except" if text == "StopIteration" else _WORDS.get(each.kind, "if")
        written = f"{words} {text}"
        yield replace(claim, spelling=written, because=(step,))


def _is_known(job: Job, launch: Launch) -> bool:
    """Whether a collective that some ranks do not come to is seen in the text of the script already."""
    features = {text for claim in job.about("script_feature", launch.scope) for text in texts(claim.value)}
    return bool(features & _OF_ONE_RANK) or any(job.about(quantity, launch.scope) for quantity in _WAITING)


def _start(script: SourceFile) -> ast.AST:
    parsed = _MODULES.parsed(script)
    return parsed.tree.body[0] if parsed is not None and parsed.tree.body else ast.Pass(lineno=1, col_offset=0)


def _outcome(failure: Failure, launch: Launch) -> Claim:
    """The claim that a program stops."""
    if failure.is_parser:
        shown = f"refuses this line: {failure.shown}"
    else:
        spelling = Positions(failure.file.path, failure.file.text).text(failure.node)
        shown = f"stops at its own check `{spelling}`: with this line, {failure.shown}"
    claim = _claim("program_outcome", shown, failure.file, failure.node, launch)
    return replace(claim, source="assert") if failure.is_assert else claim


def _is_given(failure: Failure, script: SourceFile, tree: Tree) -> bool:
    """Whether a failure is due to what the launch gives, and not to the program, or to how it was read."""
    blind = run(script, World(), tree).failure
    return blind is None or _place(blind) != _place(failure)


def _place(failure: Failure) -> tuple[str, int, int]:
    node = failure.node
    return failure.file.path, getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def run(
    script: SourceFile, world: World, tree: Tree, wanted: Mapping[str, Collection[ExpressionPlace]] | None = None
) -> Run:
    """Run a script for one rank.

    Args:
        wanted: the expressions whose values are to be kept, by their files.
    """
    # What a run makes is in cycles, which fill the memory of this process: they are freed at once, and only they are
    # searched. What a program that calls this one has frozen stays so.
    is_frozen = gc.get_freeze_count() > 0
    if not is_frozen:
        gc.freeze()
    try:
        found = _run(script, world, tree, wanted or {})
        gc.collect()
        return found
    finally:
        if not is_frozen:
            gc.unfreeze()


def _run(script: SourceFile, world: World, tree: Tree, wanted: Mapping[str, Collection[ExpressionPlace]]) -> Run:
    def find(importing: SourceFile, name: str, level: int) -> SourceFile | None:
        path = imports.file_of(tree, importing, name, level)
        found = tree.read(path) if path is not None else None
        return found if isinstance(found, SourceFile) else None

    library = Library(world)
    interpreter = Interpreter(library, find, _MODULES.parsed, wanted)
    failure, is_complete = None, True
    try:
        failure = interpreter.run(script)
    except (OutOfSteps, RecursionError):
        is_complete = False
    interpreter.free()
    outcomes = {place: frozenset(found) for place, found in interpreter.outcomes.items()}
    variables = frozenset(library.given)
    is_of_any = world.rank is None
    return Run(
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
    )


class _Modules:
    """The modules that were parsed last: all ranks, and most launches of a tree, run the same ones."""

    def __init__(self) -> None:
        self._parsed: dict[str, Parsed | None] = {}
        self._size = 0

    def parsed(self, file: SourceFile) -> Parsed | None:
        """The statements of a module; None if it cannot be parsed."""
        if file.text not in self._parsed:
            if self._size > _MAX_PARSED:
                self._parsed, self._size = {}, 0
            self._parsed[file.text] = _parse(file.text)
            self._size += file.size_bytes
        return self._parsed[file.text]


_MODULES = _Modules()


def _parse(text: str) -> Parsed | None:
    try:
        tree = parse_silently(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return Parsed(tree, frozenset(_STORED.findall(text)))


def _worlds(job: Job, launch: Launch) -> list[World]:
    """What the launch gives the ranks that are run."""
    world, local = _count(job, "world_size", launch), _count(job, "processes_per_node", launch)
    nodes = _count(job, "nodes", launch)
    if world is None and nodes is not None and local is not None:
        world = nodes * local
    if _differ(job, launch):
        world = None
    names = table()["variables"].get(_KINDS.get(launch.launcher, ""), {})
    given = {
        claim.quantity.removeprefix("env."): str(claim.value.value)
        for claim in job.environment(launch.scope)
        if isinstance(claim.value, Known) and claim.source != "python"
    }
    # The last rank, and the first one of the last node, differ from the first in every condition on ranks.
    places = [(0, 0)]
    if names and (local is None or local > 1) and (world is None or world > 1):
        places.append(((world or local) - 1, local - 1) if local is not None else (1, 1))
    if names and local is not None and world is not None and world > local:
        places.append((world - local, 0))
    roles = [("worker", place) for place in places]
    has_servers = job.value("ps_mode", launch.scope) == Known(True)
    if has_servers:
        world, local = _count(job, "ps_workers", launch), None
        roles = [("worker", (0, 0)), *([("worker", (1, 1))] if world is None or world > 1 else []), ("server", (0, 0))]
    worlds = []
    for role, (rank, local_rank) in roles:
        words = _words(launch, str(local_rank))
        each = World(rank, local_rank, world, local, words, role=role if "paddle" in launch.launcher else "")
        each = replace(each, has_servers=has_servers)
        variables = {name: each.symbol(symbol) for symbol, found in names.items() for name in found}
        known = {name: str(value) for name, value in variables.items() if isinstance(value, int)}
        if each.role:
            known["TRAINING_ROLE"] = "TRAINER" if role == "worker" else "PSERVER"
        worlds.append(replace(each, variables={**given, **known}))
    size = {name: str(world) for name in names.get("world_size", ()) if world is not None}
    local_size = {name: str(local) for name in names.get("local_world_size", ()) if local is not None}
    shared = {name: value for name, value in given.items() if not OF_RANK_NAMES.search(name)}
    any_rank = World(None, None, world, local, _words(launch, OPEN), {**shared, **size, **local_size})
    return [*worlds, replace(any_rank, has_servers=has_servers)]


def _words(launch: Launch, local_rank: str) -> tuple[str | None, ...] | None:
    """The words that the program gets; None if they are not known."""
    if launch.span.path == launch.program:
        # A launch in the program itself says nothing of the line that the program is started with.
        return None
    words = tuple(None if word is None or HIDDEN in word else word for word in launch.arguments)
    if launch.launcher in _GIVING_LOCAL_RANK:
        # Before torch 2.0 with `_`, since then with `-`: that which the program does not declare is left over.
        words = (f"--local_rank={local_rank}", f"--local-rank={local_rank}", *words)
    return words


def _differ(job: Job, launch: Launch) -> bool:
    """Whether other lines start the same program with other numbers of ranks, maybe as nodes of the same job."""
    others = [each for each in job.launches if each.program == launch.program]
    return len({_count(job, "processes_per_node", each) for each in others}) > 1 and bool(
        job.setting("node_rank", launch.scope)
    )


def _count(job: Job, quantity: str, launch: Launch) -> int | None:
    value = job.value(quantity, launch.scope)
    return int(value.value) if isinstance(value, Known) and isinstance(value.value, (int, float)) else None


def alone(first: Run, other: Run) -> Event | None:
    """A collective that one of two ranks calls and the other does not, in whatever part of the program."""
    if not (first.is_complete and other.is_complete):
        return None
    started = [
        {event.path for event in one.events if last(event.name) == "init_process_group"} for one in (first, other)
    ]
    if started[0] != started[1]:
        # They are in groups of their own.
        return None
    if any(rounds != first.rounds[place] for place, rounds in other.rounds.items() if place in first.rounds):
        # Long loops are not counted: the ranks may take turns.
        return None
    sides = [[each for each in one.events if _may_wait(each)] for one in (first, other)]
    # What cannot be read may hold a counterpart.
    unread = [{(each.name, each.path) for each in side if not each.waits} for side in sides]
    if unread[0] != unread[1]:
        return None
    called = [[each for each in side if each.waits] for side in sides]
    names = [[last(each.name) for each in side] for side in called]
    if sorted(names[0]) == sorted(names[1]):
        return None
    matcher = difflib.SequenceMatcher(None, names[0], names[1], autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        lone = called[0][start:end] if kind == "delete" else called[1][other_start:other_end]
        places = {each.path for each in (called[1] if kind == "delete" else called[0])}
        # Of several calls of one name, that which only one of them comes to.
        lone = [*(each for each in (*lone, *called[0], *called[1]) if each.path not in places), *lone]
        doubtful = {last(each.name) for side in called for each in side if each.doubt > 1}
        found = next((each for each in lone if each.doubt < 2 and last(each.name) not in doubtful), None)
        if kind in ("delete", "insert") and found is not None:
            return found
    return None


def _is_of_one(runs: Sequence[Run], event: Event) -> bool:
    """Whether only one of two ranks may come to a call, which otherwise wait for each other in the same ones."""
    single = [each for each in runs if not each.is_of_any and each.role == runs[0].role]
    calls = [[each for each in run.events if _may_wait(each)] for run in single if run.is_complete]
    for other in calls[1:]:
        sides = [[each for each in side if each.path == event.path] for side in (calls[0], other)]
        rest = [sorted(last(each.name) for each in side if each.path != event.path) for side in (calls[0], other)]
        if bool(sides[0]) != bool(sides[1]) and rest[0] == rest[1]:
            return True
    return False


def _may_wait(event: Event) -> bool:
    """Whether other ranks may be needed in a call: in a collective, and in what is not there to be read."""
    return event.waits or not imports.is_foreign(event.name)


def _claim(quantity: str, value: str, file: SourceFile, node: ast.AST, launch: Launch) -> Claim:
    positions = Positions(file.path, file.text)
    span = positions.span(node)
    spelling = positions.text(node)
    return Claim(
        quantity, Known(value), replace(span, snippet=scrub(span.snippet)), spelling, "python", scope=launch.scope
    )
