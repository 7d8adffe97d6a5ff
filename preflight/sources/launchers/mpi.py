"""mpirun, mpiexec, horovodrun and jsrun: how many processes they start, and on which hosts.

Options: Open MPI 4.1 and 5.0 `mpirun(1)`, MPICH 4 / Intel MPI `mpiexec.hydra`; those of horovodrun are generated.

Source: jsrun(1) of IBM Job Step Manager 10.3, and the user guide of Summit. A resource set is a share of one node.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from preflight._util import toml
from preflight._util.budget import truncate
from preflight.model.job import Known, Plain, Reference, Strength, Unresolved, Value, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree, Word
from preflight.sources.configs.line_files import MPI_PARAMETERS
from preflight.sources.launchers.claim_builder import ClaimBuilder, state_options
from preflight.sources.launchers.option_parser import (
    GivenOption,
    Option,
    ScannedLine,
    Table,
    declared_table,
    file_references,
    text_of,
    texts,
)
from preflight.sources.launchers.script_arguments import read_program
from preflight.sources.launchers.slurm import HARMLESS
from preflight.sources.value_readers import product_of, sum_of

#: Characters of a host list that are repeated in the claim about each host.
_MAX_LIST_LENGTH = 300
#: Hosts of a list whose slots are stated.
_MAX_HOSTS = 256

#: Options of two words: a parameter of Open MPI, a variable of MPICH and Intel MPI.
_PARAMETERS = ("-mca", "--mca", "-gmca", "--gmca", "--prtemca", "--pmixmca")
_VARIABLES = ("-genv", "-env", "--genv", "--env")
MPI = Table(
    {
        **declared_table("mpirun").options,
        **{name: Option("mca", 2) for name in _PARAMETERS},
        **{name: Option("variable", 2, pair=True) for name in _VARIABLES},
    },
    abbreviations=False,
    single_dash=True,
)
HOROVOD = declared_table("horovod")
#: Options of only one family of MPI; `_PROGRAMS` has the programs of each.
_OPEN_MPI = re.compile(
    r"--?(?:g?mca|prtemca|pmixmca|x|allow-run-as-root|npernode|pernode|tag-output|report-bindings|oversubscribe)\b"
)
_HYDRA = re.compile(r"--?(?:genv|env|genvall|genvlist|ppn|perhost|f|hosts|iface|rmk|bootstrap|print-rank-map)\b")
#: Names in paths and modules; foss, gompi and iimpi are toolchains of EasyBuild. The MPICH of Cray is another program.
_FAMILIES = {
    "openmpi": re.compile(r"[\s/_-](?:open-?mpi|ompi|hpcx|spectrum-mpi|gompi|foss)(?![a-z])"),
    "mpich": re.compile(r"[\s/_-](?:impi|iimpi|intel[-_/]?(?:oneapi[-/])?mpi|mvapich2?|(?<!cray-)mpich)(?![a-z])"),
}
_PROGRAMS: dict[str, str] = toml.beside(__file__, "programs.toml")["mpi-implementations"]


def app_contexts(words: Sequence[Word]) -> list[tuple[Word, ...]]:
    """Split `-np 1 a : -np 2 b` into the words of each program."""
    contexts: list[tuple[Word, ...]] = [()]
    for word in words:
        if text_of(word) == ":":
            contexts.append(())
        else:
            contexts[-1] = (*contexts[-1], word)
    return [context for context in contexts if context] or [()]


def merged_contexts(contexts: Sequence[ScannedLine]) -> ScannedLine:
    """Return the line that starts all programs of one mpirun, which are one world: the first program, with all
    processes.

    Hosts are those of all programs. A variable to which `-x` gives different values for different programs is not
    known.
    """
    first, *others = contexts
    if not others:
        return first
    given = [option for option in first.given if option.dest not in ("np", "host")]
    counts, hosts = ([line.last(dest) for line in contexts] for dest in ("np", "host"))
    count = counts[0] or next((option for option in counts if option is not None), None)
    if count is not None:
        values = [as_int(option.value) if option is not None else Unresolved("`-np` of a program") for option in counts]
        shown = " : ".join(option.spelling for option in counts if option is not None)
        given.append(count._replace(value=lift(sum_of, *values), spelling=shown, parts=()))
    host = next((option for option in hosts if option is not None), None)
    if host is not None:
        names = [option.value if option is not None else Unresolved("hosts of a program") for option in hosts]
        shown = " : ".join(option.spelling for option in hosts if option is not None)
        given.append(
            host._replace(value=lift(lambda *items: ",".join(map(str, items)), *names), spelling=shown, parts=())
        )
    exports = [{option.value for option in line.given if option.dest in ("export", "variable")} for line in contexts]
    same = set.intersection(*exports)
    merged = [
        option if option.dest not in ("export", "variable") or option.value in same else _unlike(option)
        for option in given
    ]
    incomplete = any(line.incomplete for line in contexts)
    return ScannedLine(tuple(merged), first.rest, incomplete, first.unknown)


def _unlike(option: GivenOption) -> GivenOption:
    """Return a variable that the programs of one mpirun do not share: its name is known, its value is not."""
    value = Unresolved("another value, or none, for another program of this mpirun")
    name = re.match(r"\w+", str(option.value.value)) if isinstance(option.value, Known) else None
    return option._replace(value=value, parts=(Known(f"{name[0]}="), value) if name is not None else ())


def state(builder: ClaimBuilder, scanned: ScannedLine, word: Word, line: LaunchLine, tree: Tree) -> Iterator[Reference]:
    """Add claims for tasks, hosts and slots, and what Open MPI's parameters set; yield the reference to the
    hostfile.
    """
    _state_program(builder, scanned, word, line)
    # The program that starts the tasks decides their number, whatever the allocation is.
    builder.add_setting("tasks", scanned.last("np"), as_int, strength=Strength.SCHEDULER)
    if (
        builder.source == "mpirun"
        and not scanned.incomplete
        and not any(
            scanned.last(name) is not None for name in ("np", "per_node", "host", "hostfile", "map_by", "spread")
        )
    ):
        value = Unresolved("the slots of the allocation, or the cores of the host")
        builder.add_default("tasks", value, word, "-np: one task per slot")
    builder.add_setting(
        "tasks_per_node",
        scanned.last("per_node"),
        lambda value: as_int(lift(lambda item: str(item).partition(":")[0], value)),
        strength=Strength.SCHEDULER,
    )
    on_each = scanned.last("per_node")
    mapped = scanned.last("map_by")
    if on_each is None and mapped is not None and not isinstance(lift(_tasks_per_node, mapped.value), Unresolved):
        on_each = mapped
        builder.add_setting(
            "tasks_per_node", mapped, lambda value: lift(_tasks_per_node, value), strength=Strength.SCHEDULER
        )
    builder.add_setting(
        "mpi_mapping", scanned.last("map_by", "oversubscribe", "spread"), lambda value: lift(str, value)
    )
    hosts = scanned.last("host")
    if hosts is not None:
        builder.add_setting("hosts", hosts, lambda value: lift(_distinct, value), strength=Strength.SCHEDULER)
        builder.add_setting(
            "nodes", hosts, lambda value: lift(lambda item: len(_distinct(item)), value), strength=Strength.SCHEDULER
        )
        if on_each is None:
            _state_spread(builder, scanned)
        _state_slots(builder, hosts)
    builder.add_setting("working_directory", scanned.last("wdir"))
    yield from file_references(scanned.last("hostfile"), "hostfile", line, tree)
    yield from file_references(scanned.last("parameters"), MPI_PARAMETERS, line, tree)


def _state_program(builder: ClaimBuilder, scanned: ScannedLine, word: Word, line: LaunchLine) -> None:
    """Add claims about which MPI implementation it is, as far as its name, its path, the modules that the script loads
    and its options show, and the claims that concern only that one.
    """
    directory, _, program = (text_of(word) or "").rpartition("/")
    name = _PROGRAMS.get(program) or _family_in(f"/{directory}") or _loaded_family(line)
    if name is None and any(_OPEN_MPI.match(given.spelling) for given in scanned.given):
        name = "openmpi"
    elif name is None and any(_HYDRA.match(given.spelling) for given in scanned.given):
        name = "mpich"
    if name is not None and builder.source == "mpirun":
        builder.add("mpi_implementation", Known(name), word)
    if name == "openmpi" or (name is None and builder.source == "mpirun"):
        builder.add("passed_variables", _passed_variables(scanned), word)
    mapped = scanned.last("map_by")
    oversubscribed = scanned.last("oversubscribe")
    if mapped is not None and any("oversubscribe" in text.lower() for text in texts(mapped.value)):
        oversubscribed = mapped
    builder.add_setting("oversubscribe", oversubscribed, lambda _: Known(True))
    for given in scanned.every("mca"):
        for text in texts(given.value):
            parameter, _, value = text.partition(" ")
            builder.add_setting(f"env.OMPI_MCA_{parameter}", given, _constant(value))
        named = re.match(r"\S+\s+(\w+)\s", given.spelling)
        if isinstance(given.value, Unresolved) and named is not None:
            builder.add_setting(f"env.OMPI_MCA_{named[1]}", given)
    state_options(builder, "mpirun", scanned.last)
    for controller in ("gloo", "mpi", "jsrun"):
        builder.add_setting("controller", scanned.last(f"use_{controller}"), _constant(controller))


def _loaded_family(line: LaunchLine) -> str | None:
    """Return the MPI implementation of the module loaded last; None if no module names one."""
    families = [_family_in(text) for setup in line.command.prelude for text in texts(setup.value)]
    return next((family for family in reversed(families) if family is not None), None)


def _family_in(text: str) -> str | None:
    """Return the MPI implementation that a path or a list of modules names; None if it names none, or several."""
    found = {family for family, names in _FAMILIES.items() if names.search(text.lower())}
    return found.pop() if len(found) == 1 else None


def _passed_variables(scanned: ScannedLine) -> Value:
    """Return the variable names after every `-x`."""
    if scanned.incomplete:
        return Unresolved("further options that are known only at run time")
    names: dict[str, None] = {}
    for given in scanned.every("export"):
        found = texts(given.value)
        if not found:
            return Unresolved(f"the value of `{given.spelling}`")
        names.update(dict.fromkeys(part.partition("=")[0] for text in found for part in text.split(",")))
    return Known(tuple(names))


def _constant(text: str) -> Callable[[Value], Value]:
    return lambda _: Known(text)


def _state_slots(builder: ClaimBuilder, hosts: GivenOption) -> None:
    """Add claims for the processes per host of `-H a:4,b:4` and `-H a,a,b,b`.

    The meaning of a list in which each name occurs once, without a number, differs between MPI implementations. In a
    list that counts slots for some hosts, mpirun gives the others one.
    """
    found = texts(hosts.value)
    names = found[0].split(",") if len(found) == 1 else []
    are_counted = [":" in part or names.count(part) > 1 for part in names[:_MAX_HOSTS]]
    if not (any(are_counted) if builder.source == "mpirun" else names and all(are_counted)):
        return
    counts: dict[str, int] = {}
    try:
        for name, slots in _host_slots(found[0]):
            counts[name] = counts.get(name, 0) + slots
    except ValueError:
        return
    spelling = hosts.spelling if len(hosts.spelling) <= _MAX_LIST_LENGTH else f"{hosts.spelling[:_MAX_LIST_LENGTH]}…"
    for name, slots in truncate(list(counts.items()), _MAX_HOSTS, "hosts of a list"):
        builder.add("host_slots", Known(slots), hosts.span, spelling, scope=replace(builder.scope, node=name))


def _state_spread(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    """Add claims for the tasks per node of `-np 8 -H a:4,b:4`: four on each."""
    hosts, count = scanned.last("host"), scanned.last("np")
    if hosts is None:
        return
    slots = lift(_slots, hosts.value)
    total: Value = (
        as_int(count.value)
        if count is not None
        else lift(lambda item: sum(slots for _, slots in _host_slots(item)), hosts.value)
    )
    if len(texts(slots)) == 1 and len(texts(total)) == 1:
        per_host, nodes = int(texts(slots)[0]), len(_distinct(texts(hosts.value)[0]))
        if per_host * nodes == int(texts(total)[0]):
            builder.add_setting("tasks_per_node", hosts, lambda _: slots, strength=Strength.SCHEDULER)


def _host_slots(item: Plain) -> list[tuple[str, int]]:
    pairs = []
    for part in str(item).split(","):
        name, _, slots = part.strip().partition(":")
        if name:
            pairs.append((name, int(slots) if slots else 1))
    return pairs


def _distinct(item: Plain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name, _ in _host_slots(item)))


def _slots(item: Plain) -> Plain:
    counts: dict[str, int] = {}
    for name, slots in _host_slots(item):
        counts[name] = counts.get(name, 0) + slots
    if len(set(counts.values())) != 1:
        raise ValueError("a different number of slots on each host")
    return next(iter(counts.values()))


def _tasks_per_node(item: Plain) -> Plain:
    """Return the number of tasks per node in `ppr:2:node`."""
    match = re.fullmatch(r"ppr:(\d+):node(?:[:,].*)?", str(item), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{item} does not set the number of tasks per node")
    return int(match[1])


#: Interpreters and build tools: the program they run is read elsewhere, or does not train.
_NOT_READ = frozenset(
    ("bash", "sh", "zsh", "ksh", "dash", "perl", "make", "cmake", "gdb", "xterm", "conda", "pip", "sudo")
)


def is_program(word: Word) -> bool:
    """Return whether a word names a program that is worth reading if mpirun or srun starts it."""
    name = posixpath.basename(text_of(word) or "")
    return bool(name) and name not in _NOT_READ and name not in HARMLESS and not name.startswith("-")


def read_compiled(line: LaunchLine, tree: Tree) -> Reading:
    """Read any other program that mpirun or srun starts several times (nccl-tests, a compiled trainer).

    The claims of mpirun itself are stated with its context.
    """
    launcher = next((name for name in reversed(line.wrappers) if name in ("mpirun", "horovodrun", "srun")), "mpirun")
    program = read_program(line, launcher, line.words, tree)
    references = tuple(r for r in program.references if r.target.endswith((".py", ".sh")))
    return Reading(claims=program.claims, launches=(program.launch,), references=references)


JSRUN = declared_table("jsrun")


def state_resource_sets(builder: ClaimBuilder, scanned: ScannedLine) -> None:
    """Add claims for the tasks in total and on each node, the nodes, and the GPUs and cores of each task."""
    sets, inside = scanned.last("sets"), scanned.last("tasks_per_set")
    in_set: Value = as_int(inside.value) if inside is not None else Known(1)
    tasks = scanned.last("tasks")
    if sets is not None and (inside is not None or tasks is None):
        _add(builder, "tasks", lift(product_of, as_int(sets.value), in_set), sets, inside)
    elif tasks is not None:
        _add(builder, "tasks", as_int(tasks.value), tasks, None)
    on_host = scanned.last("sets_per_host")
    if on_host is not None:
        _add(builder, "tasks_per_node", lift(product_of, as_int(on_host.value), in_set), on_host, inside)
        if sets is not None:
            nodes = lift(_nodes, as_int(sets.value), as_int(on_host.value))
            _add(builder, "nodes", nodes, sets, on_host)
    for quantity, option in (("gpus_per_task", "gpus_per_set"), ("cpus_per_task", "cores_per_set")):
        given = scanned.last(option)
        if given is not None:
            _add(builder, quantity, lift(_share, as_int(given.value), in_set), given, inside)


def _add(builder: ClaimBuilder, quantity: str, value: Value, given: GivenOption, other: GivenOption | None) -> None:
    spelling = " ".join(item.spelling for item in (given, other) if item is not None)
    builder.add(quantity, value, given, spelling, strength=Strength.SCHEDULER)


def starts_one_task(scanned: ScannedLine) -> bool:
    """Return whether the line starts a single task, which is preparation and not a rank."""
    counts = [scanned.last(name) for name in ("sets", "tasks_per_set", "tasks")]
    return all(as_int(given.value) == Known(1) for given in counts if given is not None) and any(counts)


def _nodes(sets: Plain, on_host: Plain) -> Plain:
    return -(-int(str(sets)) // int(str(on_host)))


def _share(amount: Plain, tasks: Plain) -> Plain:
    """Return each task's share of a set; a task that shares a device sees one device."""
    return max(1, int(str(amount)) // int(str(tasks))) if int(str(amount)) else 0
