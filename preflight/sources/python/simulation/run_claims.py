"""Claims that the runs of a program show: what its ranks do differently, and what they do wrong alike."""

from __future__ import annotations

import ast
import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from preflight._util.redaction import scrub
from preflight.model.job import Claim, Job, Known, Launch, Strength, Unresolved, Value
from preflight.model.job.value import texts
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python import imports
from preflight.sources.python.called_settings import SOURCE
from preflight.sources.python.collectives import is_met_in_loop
from preflight.sources.python.data_loaders import is_for_evaluation, may_divide
from preflight.sources.python.module import Positions, last
from preflight.sources.python.rank_conditions import RankSet
from preflight.sources.python.simulation import (
    call_settings,
    differing_values,
    exchanged_files,
    misused_wrappers,
    point_to_point,
    resolution,
)
from preflight.sources.python.simulation.data_origins import divides_twice, is_passed_on
from preflight.sources.python.simulation.divergence import trained_apart
from preflight.sources.python.simulation.frozen_parameters import WRAPPERS, unfrozen
from preflight.sources.python.simulation.launch_runs import MAX_PROGRAMS, MODULES, Files, run_script, world_size_of
from preflight.sources.python.simulation.libraries import names, symbol_of
from preflight.sources.python.simulation.run_state import Event, Failure, Guard, Parsed, Run
from preflight.sources.python.simulation.values import (
    DictValue,
    External,
    Own,
    Unknown,
    mixed,
)
from preflight.sources.python.simulation.world import World
from preflight.sources.python.written_files import OWN_DISKS, STATE

#: The feature of a script with a collective that some ranks do not come to.
ALONE = "collective_called_on_one_rank"
_METHODS_OF_DATA = names("methods_of_data")
#: Features, and other claims, that say the same of what is written in a script.
_OF_ONE_RANK = frozenset(
    (
        *(ALONE, "rank_skips_collective", "return_by_file_before_collective", "divided_state_on_one_rank"),
        *("forward_on_one_rank", "forward_on_one_rank_with_buffers"),
    )
)
#: What is wrong only if all ranks have the same path, or the same data.
_OF_ALL = ("folder_made", "shared_path", "checkpoint_written", "data_unsplit")
_WAITING = (
    *("guarded_collective", "guarded_gather", "guarded_trainer_save", "collective_order_differs"),
    "collective_in_rank_loop",
)
#: Stands for a branch that may not be taken.
_UNSURE = "a condition that is not known"
#: Words for what exchanges gradients, and lines that use nothing.
_WRAPPERS = re.compile(
    r"DataParallel|\bDDP\(|Distributed\w*Optimizer|distributed_model|fully_shard|[aA]ccelerator|deepspeed"
)
_UNUSED = re.compile(r"^[ \t]*(?:from|import)[ \t].*$|#.*$", re.MULTILINE)
_STARTS = names("group_starts")
#: Calls that start processes of the program, which are its ranks.
_SPAWNS = names("spawning")
#: Libraries that stop where they are asked for ranks before they have started, and the feature of such a script.
_ASKED = {"horovod": "asked_before_start:{}", "torch": "asked_before_group"}
#: How a condition is shown on which ranks part, by its kind.
_WORDS = {"while": "while", "for": "for ... in"}
_SAVES = ("torch.save", "paddle.save")
_EACH_NODE = RankSet.LOCAL_FIRST.value


def launch_claims(job: Job, launch: Launch, runs: Sequence[Run], files: Files) -> Iterator[Claim]:
    """Yield claims that only the runs of a launch show."""
    tree = files.tree
    script = tree.read(launch.program)
    if not isinstance(script, SourceFile):
        return
    if not runs:
        why = f"{launch.program} was not followed: of each job, {MAX_PROGRAMS} programs are, for a limited time"
        yield _not_followed(script, launch, why)
        return
    yield from _partings(job, launch, runs)
    yield from _undivided_claims(job, launch, runs[-1])
    for event in runs[-1].events:
        if divides_twice(event):
            claim = claim_at("data_divided_twice", last(event.name), event.file, event.node, launch)
            yield replace(claim, value=Unresolved("it depends on the run")) if event.doubt > 1 else claim
    yield from _written_on_each_node(job, launch, runs)
    yield from _written_by_all(job, launch, runs)
    yield from _split_by_local_rank(launch, runs)
    yield from _exchanged_files(job, launch, runs)
    yield from _trained_apart(launch, runs[-1])
    yield from _spawned_launches(job, launch, runs[-1])
    yield from _asked_early(launch, runs[-1])
    for name, event, other in (*differing_values.features(runs[-1]), *misused_wrappers.features(runs[-1])):
        feature = claim_at("script_feature", name, event.file, event.node, launch)
        because = claim_at("script_feature", name, other.file, other.node, launch) if other is not None else None
        yield replace(feature, because=() if because is None else (because,))
    yield from _parser_claims(launch, runs[-1])
    for optimizer, divided in call_settings.early_optimizers(runs[-1].events):
        because = claim_at("uses_fsdp", "", divided.file, divided.node, launch)
        because = replace(because, value=Known(True), condition=_UNSURE if divided.doubt > 1 else "")
        early = claim_at("early_optimizer", "fsdp", optimizer.file, optimizer.node, launch)
        yield replace(early, because=(because,))
    yield from _unfrozen_claims(launch, runs[-1])
    if not launch.launcher:
        if runs[-1].is_complete:
            yield from _function_claims(job, launch, runs, files)
        return
    failure = next((each.failure for each in runs if each.failure is not None), None)
    if failure is not None and _is_given(failure, script, tree):
        yield _outcome(failure, launch)
        return
    if failure is not None or not all(each.is_complete for each in runs):
        why = f"{launch.program} cannot be followed to its end"
        yield _not_followed(script, launch, why)
        yield replace(claim_at("program_followed", "", script, _start(script), launch), value=Unresolved(why))
        yield from _branch_claims(runs[-1], why, launch)
        if failure is not None:
            yield from _call_claims(job, launch, runs)
        elif all(each.is_complete or each.has_left_out for each in runs):
            yield from _lone_rank_claims(job, launch, runs)
        return
    if any(each.is_wrapped for each in runs):
        yield claim_at("program_followed", launch.program, script, _start(script), launch)
    checks = {decided for each in runs for decided in each.checks}
    has_open_end = launch.arguments[-1:] == (None,)
    if True in checks and not (has_open_end and False in checks):
        yield claim_at("program_outcome", "", script, _start(script), launch)
    elif checks:
        yield _not_followed(script, launch, f"the checks of {launch.program} need values that no file states")
    if any("RANK" in each.variables for each in runs):
        setter = claim_at("rank_setter", "", script, _start(script), launch)
        yield replace(setter, value=Unresolved(f"{launch.program} sets RANK"))
    yield from _function_claims(job, launch, runs, files)
    yield from _lone_rank_claims(job, launch, runs)


def _asked_early(launch: Launch, found: Run) -> Iterator[Claim]:
    """Yield the first question for the rank or the number of ranks that comes before the call that joins them."""
    started = next((event for event in found.events if last(event.name) in _STARTS), None)
    if started is None or started.doubt > 1:
        return
    for event in found.events[: found.events.index(started)]:
        package = next((each for each in _ASKED if event.name.startswith(f"{each}.")), "")
        if package and not event.doubt and symbol_of("calls", event.name) in ("rank", "local_rank", "world_size"):
            feature = _ASKED[package].format(launch.program)
            claim = claim_at("script_feature", feature, event.file, event.node, launch)
            yield replace(claim, because=(claim_at("script_feature", feature, started.file, started.node, launch),))
            return


def taken_twice(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield the number with which two ranks of the launch join one group."""
    total = world_size_of(job, launch)
    first: dict[int, int] = {}
    for run in runs:
        rank = run.place[0]
        joins = (each for each in run.events if last(each.name) == "init_process_group" and not each.doubt)
        event = next(joins, None) if rank is not None else None
        if event is None or rank is None or event.keywords.get("world_size") != total:
            continue
        number = event.keywords.get("rank")
        if type(number) is int and first.setdefault(number, rank) != rank:
            claim = claim_at("rank_taken_twice", "", event.file, event.node, launch)
            yield replace(claim, value=Known((number, first[number], rank)))
            return


def unmatched_messages(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield the messages between two ranks that miss their counterpart."""
    total = world_size_of(job, launch)
    for each in point_to_point.unmatched(runs, total) if total is not None else ():
        feature = "message_never_sent" if each.is_receive else "message_never_received"
        yield claim_at("script_feature", feature, each.event.file, each.event.node, launch)


#: Arguments for the number of a part and the number of parts in calls that divide data.
_PARTS = (
    *(("rank", "world_size"), ("index", "num_shards"), ("shard_id", "num_shards"), ("shard_index", "num_shards")),
    *(("cur_shard", "shard_count"), ("process_index", "process_count"), ("rank", "num_replicas")),
)


def _split_by_local_rank(launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield a call that divides data into a part for each rank, and gives a rank the part of its local rank."""
    for run in runs:
        rank, local_rank = run.place
        for event in run.events if rank != local_rank else ():
            for part, parts in _PARTS:
                number, count = event.keywords.get(part), event.keywords.get(parts)
                is_of_all = type(count) is int and rank is not None and rank < count
                # A loop may go over all parts.
                is_only = all(e.keywords.get(part) == number for e in run.events if e.node is event.node)
                if is_of_all and type(number) is int and number == local_rank and event.doubt < 2 and is_only:
                    yield claim_at("script_feature", "split_by_local_rank", event.file, event.node, launch)
                    return


def _spawned_launches(job: Job, launch: Launch, found: Run) -> Iterator[Claim]:
    """Yield the processes that each process of the launch starts, where the text of the script does not show them."""
    is_shown = bool(job.about("spawned_processes", launch.scope))
    for event in found.events:
        if event.name in _SPAWNS and not event.doubt:
            count = event.keywords.get("nprocs", event.arguments[2] if len(event.arguments) > 2 else None)
            unknown = Unresolved("its number of processes is known only at run time")
            value = Known(count) if type(count) is int else unknown
            if isinstance(value, Known) or not is_shown:
                yield replace(claim_at("spawned_processes", "", event.file, event.node, launch), value=value)


def _trained_apart(launch: Launch, found: Run) -> Iterator[Claim]:
    """Yield gradients that a completely evaluated program never exchanges."""
    apart = trained_apart(found.events) if found.is_complete and not found.failure else None
    if apart is None:
        return
    modules = {event.file.path: event.file.text.splitlines() for event in found.events}
    for path, first, end in found.not_reached:
        if path in modules:
            modules[path][first - 1 : end] = [""] * (end - first + 1)
    # A wrapper that a variable names is not seen as one.
    if not any(_WRAPPERS.search(_UNUSED.sub("", "\n".join(lines))) for lines in modules.values()):
        joined, taken = apart
        joins = replace(claim_at("ranks_joined", "", joined.file, joined.node, launch), value=Known(joined.name))
        yield replace(claim_at("gradients_taken", "", taken.file, taken.node, launch), because=(joins,))


def _unfrozen_claims(launch: Launch, found: Run) -> Iterator[Claim]:
    """Yield parameters that are put back into training, and the wrapping that has missed them."""
    wraps = [at for at, event in enumerate(found.events) if event.name.endswith(WRAPPERS)]
    for switch, before, missed in unfrozen(found.switches, wraps):
        claim = claim_at("parameters_unfrozen", switch.part, switch.file, switch.node, launch)
        frozen = claim_at("parameters_unfrozen", before.part, before.file, before.node, launch)
        if missed is not None:
            wrap = found.events[missed]
            wrapped = replace(claim_at("uses_ddp", "", wrap.file, wrap.node, launch), value=Known(True))
            claim = replace(claim, because=(wrapped, frozen))
        if not found.is_complete:
            claim = replace(claim, value=Unresolved(f"{launch.program} cannot be followed to its end"))
        yield claim


def _call_claims(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield the settings of calls."""

    def new(quantity: str, value: Value, at: call_settings.Place) -> Claim:
        claim = replace(claim_at(quantity, "", at.file, at.node, launch), value=value)
        return replace(claim, origin=launch.span) if resolution.is_on_line(value, launch) else claim

    calls = [claim for claim in job.claims if claim.source == SOURCE and claim.scope.launch in ("", launch.id)]
    stated = {call_settings.place_of(claim.quantity, claim.span): claim for claim in calls}
    modules = {event.file.path: event.file.text for each in runs for event in each.events}
    return call_settings.claims(runs, list(modules.values()), stated, new)


def _function_claims(job: Job, launch: Launch, runs: Sequence[Run], files: Files) -> Iterator[Claim]:
    """Yield claims from the functions of modules that a program calls, and from the calls that it reaches."""
    shown = list(_module_claims(job, launch, runs, files))
    calls = list(_call_claims(replace(job, claims=(*job.claims, *shown)), launch, runs))
    better = {call_settings.place_of(claim.quantity, claim.span) for claim in calls}
    yield from (claim for claim in shown if call_settings.place_of(claim.quantity, claim.span) not in better)
    yield from calls


def _module_claims(job: Job, launch: Launch, runs: Sequence[Run], files: Files) -> Iterator[Claim]:
    """Yield claims from the source of functions that a program certainly calls."""
    entered: dict[str, set[tuple[int, int]]] = {}
    for path, first, end in runs[-1].entered:
        if path != launch.program:
            entered.setdefault(path, set()).add((first, end))
    known = {call_settings.place_of(claim.quantity, claim.span) for claim in job.claims}
    for path, functions in sorted(entered.items()):
        file = files.tree.read(path)
        parsed = MODULES.parsed(file) if isinstance(file, SourceFile) else None
        if not isinstance(file, SourceFile) or parsed is None:
            continue
        lines = _lines_of(parsed, functions)
        own = {event_place(each) for each in runs[-1].events if gets_own(each)}
        found = [
            replace(claim, scope=launch.scope, strength=Strength.CONFIG)
            for claim in files.reading(file).claims
            if claim.span.line in lines and call_settings.place_of(claim.quantity, claim.span) not in known
            if not is_of_own(claim, own) and not is_not_reached(claim, {launch.id: runs})
        ]
        yield from resolution.resolved(found, {launch.id: launch}, {launch.id: runs})


def is_not_reached(claim: Claim, runs: Mapping[str, Sequence[Run]]) -> bool:
    """Return whether a claim rests on a part of its program that no rank reaches."""
    of_launch = runs.get(claim.scope.launch, ())
    parts = of_launch[-1].not_reached if of_launch else ()
    return any(
        path == each.span.path and first <= each.span.line <= end
        for each in (claim, *claim.because)
        for path, first, end in parts
    )


def is_of_own(claim: Claim, own: Collection[tuple[str, int, int]]) -> bool:
    """Return whether a claim is about a call with a rank's own values, although the claim is about shared ones."""
    return claim.quantity in _OF_ALL and (claim.span.path, claim.span.line, claim.span.column) in own


def event_place(event: Event) -> tuple[str, int, int]:
    return event.file.path, event.node.lineno, event.node.col_offset + 1


def gets_own(event: Event) -> bool:
    """Return whether a call has an argument that each rank has for itself, apart from the object that it saves."""
    given = event.arguments[1:] if last(event.name) == "save" else event.arguments
    return isinstance(mixed(event.function, *given, *event.keywords.values()), Own)


def _lines_of(parsed: Parsed, functions: Collection[tuple[int, int]]) -> set[int]:
    """Return the lines of some functions, without those of functions in them."""
    found: set[int] = set()
    # Inner functions come after those around them.
    for node in ast.walk(parsed.tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            end = node.end_lineno or node.lineno
            lines = range(node.lineno, end + 1)
            found = found.union(lines) if (node.lineno, end) in functions else found.difference(lines)
    return found


def _lone_rank_claims(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield the collective that some ranks do not reach: claims of the script's source about it become certain."""
    for other in [each for each in runs[1:] if each.role == runs[0].role and not each.is_of_any]:
        gathers = {claim.span for claim in job.about("guarded_gather")}
        event = alone(runs[0], other) or alone(runs[0], other, {(at.path, at.line, at.column) for at in gathers})
        shown = claim_at("collective_unmatched", "", event.file, event.node, launch) if event is not None else None
        if shown is not None and shown.span in gathers | {claim.span for claim in job.about("guarded_collective")}:
            yield replace(shown, value=Known(True))
            return
        if event is not None and not _is_known(job, launch, *{file.path for file, _ in event.calls}):
            yield _guard_claim(event, next(iter(_deciding(event, runs[0], other)), None), launch)
            return


def _branch_claims(run: Run, why: str, launch: Launch) -> Iterator[Claim]:
    """Yield the collectives that some ranks may make alone in a program that is not followed to where the others may
    join.
    """
    branches = [each for each in run.divergences if each.kind == "if" and each.of_rank]
    for each in branches:
        if sum(_is_same_collective(each.event, other.event) for other in branches) == 1:
            claim = claim_at("collective_unmatched", "", each.event.file, each.event.node, launch)
            yield replace(claim, value=Unresolved(why))


def _is_same_collective(one: Event, other: Event) -> bool:
    return last(one.name) == last(other.name)


def _deciding(event: Event, *runs: Run) -> Iterator[Guard]:
    """Yield the conditions around a call that hold on only one of some ranks."""
    for guard in event.guards:
        place = (guard.file.path, guard.test.lineno, guard.test.col_offset)
        if len({run.outcomes.get(place) for run in runs}) > 1:
            yield guard


def _guard_claim(event: Event, guard: Guard | None, launch: Launch) -> Claim:
    """Return the claim that a rank makes a collective alone, at the call under the condition that allows it."""
    if guard is None:
        return claim_at("script_feature", ALONE, event.file, event.node, launch)
    file, call = event.calls[min(guard.depth, len(event.calls) - 1)]
    because = claim_at("script_feature", f"part of {ALONE}", event.file, event.node, launch)
    return replace(claim_at("script_feature", ALONE, file, call, launch), because=(because,))


def _parser_claims(launch: Launch, run: Run) -> Iterator[Claim]:
    """Yield the options of the only parser of a program."""
    parser = run.parsers[0] if len(run.parsers) == 1 else None
    if parser is not None and parser.options:
        strict = claim_at("strict_arguments", "", parser.file, parser.node, launch)
        yield replace(strict, value=Known(True))
        yield replace(strict, quantity="declared_options", value=Known(parser.options))


def _not_followed(script: SourceFile, launch: Launch, why: str) -> Claim:
    return replace(claim_at("program_outcome", "", script, _start(script), launch), value=Unresolved(why))


def _partings(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield the collectives that some ranks may not reach, each place once."""
    seen: set[tuple[str, int, int]] = set()
    for each in next((each for each in runs if each.is_of_any), runs[0]).divergences:
        place = (each.file.path, getattr(each.node, "lineno", 0), getattr(each.node, "col_offset", 0))
        is_said = each.of_rank and _is_known(job, launch, each.file.path, each.event.file.path)
        parsed = MODULES.parsed(each.file)
        inside = _branches(parsed, each.test) if each.kind == "if" else frozenset()
        if (
            place in seen
            or is_said
            or (each.of_rank and each.kind == "if" and not _is_of_one(runs, each.event, inside))
        ):
            continue
        if parsed is not None and each.kind == "if" and is_met_in_loop(parsed.tree, each.event.node, each.test):
            continue
        seen.add(place)
        kind = f"{each.kind} of some ranks" if each.of_rank else each.kind
        claim = claim_at("rank_local_exit", kind, each.file, each.node, launch)
        kind = "layer" if each.event.is_layer else "step"
        step = claim_at("guarded_collective", kind, each.event.file, each.event.node, launch)
        text = Positions(each.file.path, each.file.text).text(each.test)
        handlers = ast.walk(parsed.tree) if parsed is not None else ()
        is_caught = any(isinstance(node, ast.ExceptHandler) and node.type is each.test for node in handlers)
        words = "except" if is_caught else _WORDS.get(each.kind, "if")
        written = f"{words} {text}"
        yield replace(claim, spelling=written, because=(step,))


def _branches(parsed: Parsed | None, test: ast.expr) -> frozenset[ast.AST]:
    """Return the nodes of the `if` statement with this condition."""
    nodes = ast.walk(parsed.tree) if parsed is not None else ()
    found = next((node for node in nodes if isinstance(node, ast.If) and node.test is test), None)
    return frozenset(ast.walk(found)) if found is not None else frozenset()


def _undivided_claims(job: Job, launch: Launch, run: Run) -> Iterator[Claim]:
    """Yield the data that every rank reads whole, where the text of the script does not show them."""
    known = {claim.span.path for claim in job.about("data_unsplit", launch.scope)}
    for event, kind, method in run.undivided:
        file, spelling = event.file, ""
        node: ast.AST = event.node
        # Each worker of a loader may choose its part by itself.
        if is_passed_on(event, run.events) or event.keywords.get("worker_init_fn") is not None:
            continue
        if method is not None and method.owner is not None:
            file, node = method.frame.module.file, method.owner.node
            spelling = f"class {method.owner.node.name}"
        elif is_for_evaluation(event.node, file.text) or any(
            may_divide(each.text, is_followed=run.is_complete) for each, _ in event.calls
        ):
            continue
        if file.path not in known:
            known.add(file.path)
            claim = claim_at("data_unsplit", kind, file, node, launch)
            followed = claim_at("program_followed", launch.program, event.file, _start(event.file), launch)
            because = (followed,) if run.is_complete else ()
            yield replace(claim, spelling=spelling or claim.spelling, because=because)


def _written_on_each_node(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield files that the first rank on every node, and no other rank, saves under one path."""
    known = {claim.span.path for claim in job.about("checkpoint_written", launch.scope)}
    singles = {run.place: [e for e in run.events if e.name in _SAVES] for run in runs if not run.is_of_any}
    firsts = [events for (rank, local), events in singles.items() if local == 0 and rank]
    others = [events for (_, local), events in singles.items() if local]
    shared = {e.path: e for run in runs if run.is_of_any for e in run.events if e.name in _SAVES and not gets_own(e)}
    for event in singles.get((0, 0), ()) if firsts and others else ():
        paths = [{each.path: _saved_to(each) for each in events} for events in (*firsts, *others)]
        on_each = all(event.path in each for each in paths[: len(firsts)])
        if not on_each or any(event.path in each for each in paths[len(firsts) :]) or not event.guards:
            continue
        path = _saved_to(event)
        same = all(each[event.path] == path for each in paths[: len(firsts)])
        is_shared = event.path in shared if path is None else OWN_DISKS.match(path) is None
        if same and is_shared and event.file.path not in known:
            known.add(event.file.path)
            guard = event.guards[-1]
            because = claim_at("checkpoint_guard", _EACH_NODE, guard.file, guard.test, launch)
            written = claim_at("checkpoint_written", _EACH_NODE, event.file, event.node, launch)
            yield replace(written, because=(because,))


#: Words of conditions that only some ranks may meet.
_OF_SOME = re.compile(
    r"rank|master|main|primary|chief|leader|first|zero|worker|trainer_id|saver|gpu|shard|process", re.IGNORECASE
)


def _written_by_all(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield checkpoints that every rank saves under one path, wherever the program does so."""
    known = {claim.span.path for claim in job.about("checkpoint_written", launch.scope)}
    singles = [run for run in runs if not run.is_of_any]
    if not launch.launcher or (not singles and runs[-1].asks_for_rank):
        return
    places = [{event.path: _saved_to(event) for event in run.events if event.name in _SAVES} for run in singles]
    for event in runs[-1].events if runs[-1].is_of_any and runs[-1].is_wrapped else ():
        if event.name not in _SAVES or len(event.arguments) < 2:
            continue
        is_state = _holds_state(event.arguments[0]) or STATE.search(ast.unparse(event.node.args[0]))
        is_file = is_state and isinstance(event.arguments[1], (str, Unknown))
        if not is_file or event.file.path in known or gets_own(event):
            continue
        tests = [branch.test for branch in event.branches.values() if branch.test is not None]
        # A path, or a decorator, may name the rank in a way that is not followed.
        texts = [ast.unparse(each) for each in (*tests, event.within) if each is not None]
        if any(branch.is_own for branch in event.branches.values()) or any(map(_OF_SOME.search, texts)):
            continue
        if all(event.path in each and each[event.path] == places[0][event.path] for each in places):
            known.add(event.file.path)
            claim = claim_at("checkpoint_written", RankSet.ALL.value, event.file, event.node, launch)
            yield claim if _saved_to(event) is not None and not tests else replace(claim, condition=_UNSURE)


def _holds_state(value: Any, depth: int = 0) -> bool:
    """Return whether a value is the state of a model, or a dictionary with one in it."""
    if isinstance(value, DictValue) and not depth:
        return any(_holds_state(each, depth + 1) for each in (value.items or {}).values())
    return isinstance(value, External) and value.last == "state_dict()"


def _exchanged_files(job: Job, launch: Launch, runs: Sequence[Run]) -> Iterator[Claim]:
    """Yield files of rank 0 that ranks read although they are not on their node, or not there yet."""
    known = {claim.span.path for claim in job.about("local_checkpoint_read", launch.scope)}
    for each in exchanged_files.not_there(runs):
        if each.read.file.path not in known:
            known.add(each.read.file.path)
            wrote = claim_at("checkpoint_written", RankSet.FIRST.value, each.written.file, each.written.node, launch)
            read = claim_at("local_checkpoint_read", each.path, each.read.file, each.read.node, launch)
            yield replace(read, because=(wrote,))
    known = {claim.span.path for claim in job.about("shared_path", launch.scope)}
    found = [("written by one rank", each) for each in exchanged_files.not_awaited(runs)]
    found += [("made by one rank", each) for each in exchanged_files.not_made(runs)]
    for kind, each in found:
        if each.written.file.path not in known:
            known.add(each.written.file.path)
            read = claim_at("shared_path", "read by every rank", each.read.file, each.read.node, launch)
            wrote = claim_at("shared_path", kind, each.written.file, each.written.node, launch)
            if each.read.doubt > 1:
                wrote = replace(wrote, value=Unresolved("whether the others read it depends on the run"))
            yield replace(wrote, because=(read,))


def _saved_to(event: Event) -> str | None:
    """Return the path that something is saved to, if it is known."""
    given = (*event.arguments[1:2], event.keywords.get("f"), event.keywords.get("path"))
    return next((each for each in given if isinstance(each, str)), None)


def _is_known(job: Job, launch: Launch, *paths: str) -> bool:
    """Return whether the source of one of these files already shows a collective that some ranks do not reach."""
    claims = [claim for claim in job.about("script_feature", launch.scope) if _OF_ONE_RANK & set(texts(claim.value))]
    claims += [claim for quantity in _WAITING for claim in job.about(quantity, launch.scope)]
    return any(claim.span.path in paths for claim in claims)


def _start(script: SourceFile) -> ast.AST:
    parsed = MODULES.parsed(script)
    return parsed.tree.body[0] if parsed is not None and parsed.tree.body else ast.Pass(lineno=1, col_offset=0)


def _outcome(failure: Failure, launch: Launch) -> Claim:
    """Return the claim that a program stops."""
    if failure.is_parser:
        shown = f"rejects this line: {failure.shown}"
    else:
        spelling = Positions(failure.file.path, failure.file.text).text(failure.node)
        shown = f"stops at its own check `{spelling}`: with this line, {failure.shown}"
    claim = claim_at("program_outcome", shown, failure.file, failure.node, launch)
    return replace(claim, source="assert") if failure.is_assert else claim


def _is_given(failure: Failure, script: SourceFile, tree: Tree) -> bool:
    """Return whether a failure is due to the launch, and not to the program or to how it was read."""
    blind = run_script(script, World(), tree).failure
    return blind is None or _place(blind) != _place(failure)


def _place(failure: Failure) -> tuple[str, int, int]:
    node = failure.node
    return failure.file.path, getattr(node, "lineno", 0), getattr(node, "col_offset", 0)


def alone(first: Run, other: Run, gathers: Collection[tuple[str, int, int]] = ()) -> Event | None:
    """Return a collective that one of two ranks calls and the other does not, in any part of the program.

    Args:
        gathers: the places of further calls where a rank waits for the others.
    """
    if not all(run.is_complete or run.has_left_out for run in (first, other)):
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
    sides = [
        [event._replace(waits=event.waits or _place_of(event) in gathers) for event in one.events]
        for one in (first, other)
    ]
    sides = [[each for each in side if _may_wait(each)] for side in sides]
    # What cannot be read may hold a counterpart.
    unread = [{(each.name, each.path, _ranks_given(each)) for each in side if not each.waits} for side in sides]
    called = [[each for each in side if each.waits] for side in sides]
    names = [[last(each.name) for each in side] for side in called]
    if sorted(names[0]) == sorted(names[1]):
        return None
    # What both may come to, or neither, joins no rank that is alone.
    on_both = {each.path for each in called[0]} & {each.path for each in called[1]}
    apart = [[each for each in side if each.path not in on_both] for side in called]
    doubtful = {last(each.name) for side in apart for each in side if each.doubt > 1}
    certain = [Counter(last(each.name) for each in side if each.doubt < 2) for side in apart]
    possible = [Counter(last(each.name) for each in side) for side in apart]
    matcher = difflib.SequenceMatcher(None, names[0], names[1], autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        lone = called[0][start:end] if kind == "delete" else called[1][other_start:other_end]
        places = {each.path for each in (called[1] if kind == "delete" else called[0])}
        # Of several calls of one name, that which only one of them comes to.
        lone = [*(each for each in (*lone, *called[0], *called[1]) if each.path not in places), *lone]
        with_it, without = (0, 1) if kind == "delete" else (1, 0)
        # Every call of the other rank that may be a counterpart has one without it.
        unmatched = certain[with_it] - possible[without]
        found = next(
            (e for e in lone if e.doubt < 2 and (last(e.name) not in doubtful or last(e.name) in unmatched)), None
        )
        if unread[without] - unread[with_it]:
            continue
        if kind in ("delete", "insert") and found is not None:
            return found
    return None


def _place_of(event: Event) -> tuple[str, int, int]:
    return event.file.path, event.node.lineno, event.node.col_offset + 1


def _ranks_given(event: Event) -> tuple[int, ...]:
    """Return the numbers, possibly of ranks, that are passed to a library's function."""
    given = (*event.arguments, *event.keywords.values()) if event.name and event.is_statement else ()
    return tuple(each for each in given if isinstance(each, int))


def _is_of_one(runs: Sequence[Run], event: Event, inside: Collection[ast.AST]) -> bool:
    """Return whether only one of two ranks may reach a call, which otherwise wait for each other in the same ones.

    Args:
        inside: the nodes of the statement around the call that only one of them may come to.
    """
    single = [each for each in runs if not each.is_of_any and each.role == runs[0].role]
    calls = [[each for each in run.events if _may_wait(each)] for run in single if run.is_complete]
    for other in calls[1:]:
        sides, rest = [], []
        for side in (calls[0], other):
            below = [each for each in side if each.path == event.path or any(call in inside for _, call in each.calls)]
            sides.append(below)
            rest.append(Counter(last(each.name) for each in side if each not in below))
        is_doubtful = all(each.doubt > 1 for side in sides for each in side)
        # Only a call of the rank that does not come to it could be the counterpart.
        with_it, without = rest if sides[0] else rest[::-1]
        if bool(sides[0]) != bool(sides[1]) and is_doubtful and not without - with_it:
            return True
    return False


def _may_wait(event: Event) -> bool:
    """Return whether other ranks may be needed in a call: in a collective, and in what is not there to be read."""
    function = event.node.func
    is_of_data = not event.name and isinstance(function, ast.Attribute) and function.attr in _METHODS_OF_DATA
    return event.waits or not (is_of_data or imports.is_foreign(event.name))


def claim_at(quantity: str, value: str, file: SourceFile, node: ast.AST, launch: Launch) -> Claim:
    positions = Positions(file.path, file.text)
    span = positions.span(node)
    spelling = positions.text(node)
    return Claim(
        quantity, Known(value), replace(span, snippet=scrub(span.snippet)), spelling, "python", scope=launch.scope
    )
