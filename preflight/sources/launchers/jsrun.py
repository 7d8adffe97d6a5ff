"""jsrun: resource sets of IBM's Job Step Manager, and the tasks in them.

Source: jsrun(1) of IBM Job Step Manager 10.3, and the user guide of Summit. A resource set is a share of one node.
"""

from __future__ import annotations

from preflight.model.job import Known, Plain, Strength, Value, as_int, lift
from preflight.sources.base import Word
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import GivenOption, ScannedLine, table

JSRUN = table(
    {
        "sets": "-n --nrs",
        "tasks_per_set": "-a --tasks_per_rs",
        "cores_per_set": "-c --cpu_per_rs",
        "gpus_per_set": "-g --gpu_per_rs",
        "sets_per_host": "-r --rs_per_host",
        "tasks": "-p --np",
        "export": "-E --env",
        "wdir": "-h --chdir",
        "other": "-b --bind -d --launch_distribution -l --latency_priority -m --memory_per_rs -S --save_resources"
        " -U --use_resources -T --immediate_terminate_on_failure -X --exit_on_error -k --stdio_stderr -o --stdio_stdout"
        " -t --stdio_input -e --stdio_mode -M --smpiargs -P --pre_post_exec -F --env_eval -D --env_no_propagate"
        " -K --rs_per_socket -J --use_reservation -L --use_spindle -x --exclude_hosts -z --res_spec -Z --zero_rank",
    },
    {"flag": "-i -V --version -v --verbose"},
    abbreviations=False,
)


def state(builder: ClaimBuilder, scanned: ScannedLine, word: Word) -> None:
    """State the tasks in total and on each node, the nodes, and the GPUs and cores of each task."""
    sets, inside = scanned.last("sets"), scanned.last("tasks_per_set")
    in_set: Value = as_int(inside.value) if inside is not None else Known(1)
    tasks = scanned.last("tasks")
    if sets is not None and (inside is not None or tasks is None):
        _add(builder, "tasks", lift(_times, as_int(sets.value), in_set), sets, inside)
    elif tasks is not None:
        _add(builder, "tasks", as_int(tasks.value), tasks, None)
    on_host = scanned.last("sets_per_host")
    if on_host is not None:
        _add(builder, "tasks_per_node", lift(_times, as_int(on_host.value), in_set), on_host, inside)
        if sets is not None:
            nodes = lift(_nodes, as_int(sets.value), as_int(on_host.value))
            _add(builder, "nodes", nodes, sets, on_host)
    for quantity, option in (("gpus_per_task", "gpus_per_set"), ("cpus_per_task", "cores_per_set")):
        given = scanned.last(option)
        if given is not None:
            _add(builder, quantity, lift(_share, as_int(given.value), in_set), given, inside)


def _add(builder: ClaimBuilder, quantity: str, value: Value, given: GivenOption, other: GivenOption | None) -> None:
    spelling = " ".join(item.spelling for item in (given, other) if item is not None)
    builder.add(quantity, value, given.span, spelling, strength=Strength.SCHEDULER)


def starts_one_task(scanned: ScannedLine) -> bool:
    """Whether it starts a single task, which is preparation and not a rank."""
    counts = [scanned.last(name) for name in ("sets", "tasks_per_set", "tasks")]
    return all(as_int(given.value) == Known(1) for given in counts if given is not None) and any(counts)


def _times(sets: Plain, tasks: Plain) -> Plain:
    return int(str(sets)) * int(str(tasks))


def _nodes(sets: Plain, on_host: Plain) -> Plain:
    return -(-int(str(sets)) // int(str(on_host)))


def _share(amount: Plain, tasks: Plain) -> Plain:
    """The share of each task in a set; a task that shares a device sees one device."""
    return max(1, int(str(amount)) // int(str(tasks))) if int(str(amount)) else 0
