"""The jobs with what the runs of their programs show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from preflight.model.job import Claim, Job, Known, Launch, Note, Span, Strength
from preflight.sources.base import SourceFile, suppressions
from preflight.sources.python.simulation import (
    call_settings,
    process_numbers,
    resolution,
    transpiled_roles,
)
from preflight.sources.python.simulation.argument_parser import OPEN
from preflight.sources.python.simulation.launch_runs import (
    MAX_PROGRAMS,
    Files,
    run_script,
    runs_of,
    variables_of,
    words_of,
)
from preflight.sources.python.simulation.run_claims import (
    claim_at,
    event_place,
    gets_own,
    is_not_reached,
    is_of_own,
    launch_claims,
    taken_twice,
    unmatched_messages,
)
from preflight.sources.python.simulation.world import World

#: Claims that show that a script is for several ranks or devices.
_OF_SEVERAL_RANKS = frozenset(
    (
        *("uses_ddp", "uses_fsdp", "training_framework", "backend", "parallel_environment"),
        *("setting.paddle_v2.function", "setting.fluid_executor.function", "setting.fluid_compiled.function"),
    )
)


def simulated(job: Job, derived: Job, files_of: Callable[[Launch], Files]) -> Job:
    """Return the job with what its programs certainly do, which replaces what their text shows less well.

    Args:
        derived: the job with the numbers of its ranks.
    """
    launches = job.launches or tuple(_launch_stand_ins(job))
    notes: list[Note] = []
    runs = runs_of(derived, launches, files_of, notes)
    by_id = {launch.id: launch for launch in job.launches}
    own = {
        key: {event_place(each) for each in found[-1].events if gets_own(each)} for key, found in runs.items() if found
    }
    shown = [
        claim
        for claim in resolution.resolved(job.claims, by_id, runs)
        if not is_not_reached(claim, runs) and not is_of_own(claim, own.get(claim.scope.launch, ()))
    ]
    known = replace(job, claims=tuple(shown))
    new = [
        claim
        for launch in launches
        if launch.id in runs
        for claim in launch_claims(known, launch, runs[launch.id], files_of(launch))
    ]
    for launch in launches:
        new += taken_twice(derived, launch, runs.get(launch.id, ()))
        new += unmatched_messages(derived, launch, runs.get(launch.id, ()))
    new += _numbers(derived, launches, files_of)
    new += _roles(derived, launches, files_of)
    better = {(claim.scope, call_settings.place_of(claim.quantity, claim.span)) for claim in new}
    kept = (c for c in shown if (c.scope, call_settings.place_of(c.quantity, c.span)) not in better)
    modules = {claim.span.path for claim in new} - {file.path for file in job.files}
    read = [files_of(launch).tree.read(path) for launch in launches[:1] for path in sorted(modules)]
    comments = [each for file in read if isinstance(file, SourceFile) for each in suppressions(file)]
    suppressed = tuple(dict.fromkeys((*job.suppressions, *comments)))
    return replace(job, claims=(*kept, *new), suppressions=suppressed, notes=(*job.notes, *notes))


def _launch_stand_ins(job: Job) -> Iterator[Launch]:
    """Yield a stand-in for the launch of a script that no file starts; its line and its ranks are unknown."""
    for file in job.files[:1]:
        if file.path.endswith(".py") and any(claim.quantity in _OF_SEVERAL_RANKS for claim in job.claims):
            yield Launch("", "", Span(file.path, 1, 1, 1, 1), program=file.path)


def _numbers(job: Job, launches: Sequence[Launch], files_of: Callable[[Launch], Files]) -> Iterator[Claim]:
    """Yield the numbers that processes of one script take as their own."""
    for launch in process_numbers.processes(launches):
        files = files_of(launch)
        script = files.tree.read(launch.program)
        if not isinstance(script, SourceFile):
            continue
        variables = variables_of(job, launch)
        world = World(None, None, arguments=words_of(job, launch, OPEN), variables=variables, is_closed=True)
        found = run_script(script, replace(world, read=files.opened, names=files.entries), files.tree)
        taken = process_numbers.taken_process_number(found, launch, variables)
        if taken is not None:
            claim = claim_at("taken_number", "", taken.file, taken.node, launch)
            group = replace(claim, quantity="taken_group", value=Known(taken.group))
            not_set = replace(claim, quantity="variables_not_set", value=Known(taken.not_set))
            yield replace(claim, value=Known(taken.number), because=(group, not_set))


def _roles(job: Job, launches: Sequence[Launch], files_of: Callable[[Launch], Files]) -> Iterator[Claim]:
    """Yield the role that each process of a Fluid job passes to its transpiler, if no variable or option sets it."""
    started = [each for each in launches if each.launcher == "python" and each.program and not each.condition]
    for launch in started[:MAX_PROGRAMS]:
        files = files_of(launch)
        script = files.tree.read(launch.program)
        read = (files.tree.read(file.path) for file in job.files if file.path.endswith(".py"))
        is_fluid = any(isinstance(each, SourceFile) and ".transpile(" in each.text for each in read)
        if not isinstance(script, SourceFile) or not is_fluid:
            continue
        variables = variables_of(job, launch)
        world = World(None, None, arguments=words_of(job, launch, OPEN), variables=variables, is_closed=True)
        found = run_script(script, replace(world, read=files.opened, names=files.entries), files.tree)
        for each in transpiled_roles.settings(found):
            if not job.setting(each.quantity, launch.scope):
                claim = claim_at(each.quantity, "", each.file, each.node, launch)
                claim = replace(claim, value=each.value, strength=Strength.ENVIRONMENT)
                yield replace(claim, origin=launch.span) if resolution.is_on_line(each.value, launch) else claim
