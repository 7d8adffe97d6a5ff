"""mpirun, mpiexec and horovodrun: how many copies they start, and where.

Options: Open MPI 4.1 and 5.0 `mpirun(1)`, MPICH 4 / Intel MPI `mpiexec.hydra`; those of horovodrun are generated.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import replace

from preflight.job import Known, Plain, Reference, Strength, Unresolved, Value, as_int, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import LaunchLine, Tree, Word
from preflight.sources.launchers.options import Given, Option, Scanned, Table, generated, table, text_of, texts
from preflight.sources.launchers.paths import paths_of, relative
from preflight.sources.launchers.stating import Stating, as_text
from preflight.tables.horovodrun import HOROVODRUN

#: A list of hosts is shown as far as this with each of its slots.
_LONGEST_LIST = 300
#: Slots of more hosts than this are not stated one by one.
_MOST_HOSTS = 256

#: Options of two words: a parameter of Open MPI, a variable of MPICH and Intel MPI.
_PARAMETERS = ("-mca", "--mca", "-gmca", "--gmca", "--prtemca", "--pmixmca")
_VARIABLES = ("-genv", "-env", "--genv", "--env")
_MPI = table(
    {
        "np": "-np --np -n --n -c --c",
        "host": "-H -host --host -hosts --hosts",
        "hostfile": "-hostfile --hostfile -machinefile --machinefile -f --default-hostfile",
        "per_node": "-npernode --npernode -ppn --ppn -N --N -perhost --perhost",
        "map_by": "-map-by --map-by",
        "export": "-x",
        "wdir": "-wdir --wdir -wd --wd",
        "other": "-bind-to --bind-to -rank-by --rank-by --oversubscribe-limit -prefix --prefix"
        " -rf --rankfile -output-filename --output-filename --tune -am --am -path --path --timeout --personality"
        " -genvlist -envlist -iface -rmk -bootstrap -launcher -bind-to --pernode-limit --dvm --report-pid"
        " -output --output --runtime-options -display --display --mca-base-env-list -configfile --app -app",
    },
    {
        "oversubscribe": "--oversubscribe -oversubscribe",
        "spread": "-pernode --pernode -bynode --bynode",
        "root": "--allow-run-as-root -allow-run-as-root",
        "flag": "--nooversubscribe -tag-output"
        " --tag-output -timestamp-output --timestamp-output -v --verbose -q --quiet -verbose --display-map"
        " -display-map --display-allocation -report-bindings --report-bindings --bind-to-none -bind-to-none"
        " -nolocal --nolocal --novm -novm -l -print-rank-map -genvall -genvnone"
        " -byslot --byslot --bind-to-core --stream-buffering --merge-stderr-to-stdout --xml --get-stack-traces",
    },
    abbreviations=False,
    single_dash=True,
)
MPI = Table(
    {
        **_MPI.options,
        **{name: Option("mca", 2) for name in _PARAMETERS},
        **{name: Option("variable", 2, pair=True) for name in _VARIABLES},
    },
    abbreviations=False,
    single_dash=True,
)
HOROVOD = generated(
    HOROVODRUN,
    renamed={"num_proc": "np", "hosts": "host", "min_num_proc": "min_np", "max_num_proc": "max_np"},
    abbreviations=False,
    single_dash=True,
)
#: Options that only one family of MPI has, and programs that belong to it.
_OPEN_MPI = lazy_pattern(
    r"--?(?:g?mca|prtemca|pmixmca|x|allow-run-as-root|npernode|pernode|tag-output|report-bindings|oversubscribe)\b"
)
_HYDRA = lazy_pattern(r"--?(?:genv|env|genvall|genvlist|ppn|perhost|f|hosts|iface|rmk|bootstrap|print-rank-map)\b")
_PROGRAMS = {
    "orterun": "openmpi",
    "prterun": "openmpi",
    "mpirun.openmpi": "openmpi",
    "mpiexec.openmpi": "openmpi",
    "mpiexec.hydra": "mpich",
    "mpirun.mpich": "mpich",
    "mpiexec.mpich": "mpich",
}


def state(stating: Stating, scanned: Scanned, word: Word, line: LaunchLine, tree: Tree) -> Iterator[Reference]:
    """State tasks, hosts and slots, and what Open MPI's parameters set; yields the hostfile's reference."""
    _state_program(stating, scanned, word)
    # Who starts the tasks decides, whatever the allocation would hold.
    stating.given("tasks", scanned.last("np"), as_int, strength=Strength.SCHEDULER)
    stating.given(
        "tasks_per_node",
        scanned.last("per_node"),
        lambda value: as_int(lift(_first_number, value)),
        strength=Strength.SCHEDULER,
    )
    stating.given("mpi_mapping", scanned.last("map_by", "oversubscribe", "spread"), lambda value: lift(str, value))
    hosts = scanned.last("host")
    if hosts is not None:
        stating.given("hosts", hosts, lambda value: lift(_names, value), strength=Strength.SCHEDULER)
        stating.given(
            "nodes",
            hosts,
            lambda value: lift(lambda item: len(_distinct(item)), value),
            strength=Strength.SCHEDULER,
        )
        if scanned.last("per_node") is None:
            _state_spread(stating, scanned)
        _state_slots(stating, hosts)
    stating.given("working_directory", scanned.last("wdir"))
    given = scanned.last("hostfile")
    if given is None:
        return
    for path in paths_of(given.value, given.parts):
        target = relative(path, line, tree)
        if target is not None:
            yield Reference(target, "hostfile", given.span, line.scope)


def _state_program(stating: Stating, scanned: Scanned, word: Word) -> None:
    """Which MPI it is, as far as its options tell, and what concerns the one alone."""
    name = _PROGRAMS.get(posixpath.basename(text_of(word) or ""))
    if name is None and any(_OPEN_MPI.match(given.spelling) for given in scanned.given):
        name = "openmpi"
    elif name is None and any(_HYDRA.match(given.spelling) for given in scanned.given):
        name = "mpich"
    if name is not None and stating.source == "mpirun":
        stating.say("mpi_implementation", Known(name), word.span, word.spelling)
    if name == "openmpi":
        stating.say("passed_variables", _passed(scanned), word.span, word.spelling)
    mapped = scanned.last("map_by")
    over = scanned.last("oversubscribe")
    if mapped is not None and any("oversubscribe" in text.lower() for text in texts(mapped.value)):
        over = mapped
    stating.given("oversubscribe", over, lambda _: Known(True))
    stating.given("runs_as_root", scanned.last("root"), lambda _: Known(True))
    for given in scanned.every("mca"):
        for text in texts(given.value):
            parameter, _, value = text.partition(" ")
            stating.given(f"env.OMPI_MCA_{parameter}", given, _always(value))
        named = re.match(r"\S+\s+(\w+)\s", given.spelling)
        if isinstance(given.value, Unresolved) and named is not None:
            stating.given(f"env.OMPI_MCA_{named[1]}", given)
    stating.given("min_tasks", scanned.last("min_np"), as_int)
    stating.given("max_tasks", scanned.last("max_np"), as_int)
    stating.given("host_discovery", scanned.last("host_discovery_script"), as_text)
    for controller in ("gloo", "mpi", "jsrun"):
        stating.given("controller", scanned.last(f"use_{controller}"), _always(controller))
    # horovodrun hands the list on to both.
    stating.given("env.NCCL_SOCKET_IFNAME", scanned.last("nics"), as_text)


def _passed(scanned: Scanned) -> Value:
    """The names behind every `-x`."""
    if scanned.incomplete:
        return Unresolved("further options that are not known here")
    names: dict[str, None] = {}
    for given in scanned.every("export"):
        found = texts(given.value)
        if not found:
            return Unresolved(f"what `{given.spelling}` stands for")
        names.update(dict.fromkeys(part.partition("=")[0] for text in found for part in text.split(",")))
    return Known(tuple(names))


def _always(text: str) -> Callable[[Value], Value]:
    return lambda _: Known(text)


def _state_slots(stating: Stating, hosts: Given) -> None:
    """`-H a:4,b:4`: how many processes each host takes. What a bare name stands for differs from MPI to MPI."""
    found = texts(hosts.value)
    if len(found) != 1 or not all(":" in part for part in found[0].split(",")):
        return
    counts: dict[str, int] = {}
    try:
        for name, slots in _pairs(found[0]):
            counts[name] = counts.get(name, 0) + slots
    except ValueError:
        return
    spelling = hosts.spelling if len(hosts.spelling) <= _LONGEST_LIST else f"{hosts.spelling[:_LONGEST_LIST]}…"
    for name, slots in list(counts.items())[:_MOST_HOSTS]:
        stating.say("host_slots", Known(slots), hosts.span, spelling, scope=replace(stating.scope, node=name))


def _state_spread(stating: Stating, scanned: Scanned) -> None:
    """`-np 8 -H a:4,b:4`: four tasks on each."""
    hosts, count = scanned.last("host"), scanned.last("np")
    if hosts is None:
        return
    slots = lift(_slots, hosts.value)
    total: Value = as_int(count.value) if count is not None else lift(_total, hosts.value)
    if len(texts(slots)) == 1 and len(texts(total)) == 1:
        each, nodes = int(texts(slots)[0]), len(_distinct(texts(hosts.value)[0]))
        if each * nodes == int(texts(total)[0]):
            stating.given("tasks_per_node", hosts, lambda _: slots, strength=Strength.SCHEDULER)


def _pairs(item: Plain) -> list[tuple[str, int]]:
    pairs = []
    for part in str(item).split(","):
        name, _, slots = part.strip().partition(":")
        if name:
            pairs.append((name, int(slots) if slots else 1))
    return pairs


def _names(item: Plain) -> Plain:
    return _distinct(item)


def _distinct(item: Plain) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name, _ in _pairs(item)))


def _slots(item: Plain) -> Plain:
    counts: dict[str, int] = {}
    for name, slots in _pairs(item):
        counts[name] = counts.get(name, 0) + slots
    if len(set(counts.values())) != 1:
        raise ValueError("a different number of slots on each host")
    return next(iter(counts.values()))


def _total(item: Plain) -> Plain:
    return sum(slots for _, slots in _pairs(item))


def _first_number(item: Plain) -> Plain:
    return str(item).partition(":")[0]
