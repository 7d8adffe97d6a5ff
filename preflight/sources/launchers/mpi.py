"""mpirun, mpiexec and horovodrun: how many copies they start, and where.

Options: Open MPI 4.1 and 5.0 `mpirun(1)`, MPICH 4 / Intel MPI `mpiexec.hydra`, Horovod 0.28 runner/launch.py.
"""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Plain, Reference, Strength, Value, as_int, lift
from preflight.sources.base import LaunchLine, Tree
from preflight.sources.launchers.options import Option, Scanned, Table, table, texts
from preflight.sources.launchers.paths import paths_of, relative
from preflight.sources.launchers.stating import Stating

#: Options that take two words.
_TWO = ("-mca", "--mca", "-gmca", "--gmca", "-genv", "-env", "--prtemca", "--pmixmca")
_MPI = table(
    {
        "np": "-np --np -n --n -c --c",
        "host": "-H -host --host -hosts --hosts",
        "hostfile": "-hostfile --hostfile -machinefile --machinefile -f --default-hostfile",
        "per_node": "-npernode --npernode -ppn --ppn -N --N -perhost --perhost",
        "export": "-x",
        "wdir": "-wdir --wdir -wd --wd",
        "other": "-map-by --map-by -bind-to --bind-to -rank-by --rank-by --oversubscribe-limit -prefix --prefix"
        " -rf --rankfile -output-filename --output-filename --tune -am --am -path --path --timeout --personality"
        " -genvlist -envlist -iface -rmk -bootstrap -launcher -bind-to --pernode-limit --dvm --report-pid",
    },
    {
        "flag": "--allow-run-as-root -allow-run-as-root --oversubscribe -oversubscribe --nooversubscribe -tag-output"
        " --tag-output -timestamp-output --timestamp-output -v --verbose -q --quiet -verbose --display-map"
        " -display-map --display-allocation -report-bindings --report-bindings --bind-to-none -bind-to-none"
        " -nolocal --nolocal -pernode --pernode --novm -novm -l -print-rank-map -genvall -genvnone -bynode --bynode"
        " -byslot --byslot --bind-to-core --stream-buffering --merge-stderr-to-stdout --xml --get-stack-traces",
    },
    abbreviations=False,
    single_dash=True,
)
MPI = Table({**_MPI.options, **{name: Option("two", 2) for name in _TWO}}, abbreviations=False, single_dash=True)
HOROVOD = table(
    {
        "np": "-np --num-proc",
        "host": "-H --hosts",
        "hostfile": "-hostfile --hostfile",
        "min_np": "--min-np --min-num-proc",
        "max_np": "--max-np --max-num-proc",
        "slots": "--slots-per-host",
        "other": "-p --ssh-port -i --ssh-identity-file --start-timeout --network-interfaces --nics --nic"
        " --output-filename --config-file --fusion-threshold-mb --cycle-time-ms --cache-capacity --timeline-filename"
        " --log-level --mpi-args --host-discovery-script --reset-limit --blacklist-cooldown-range"
        " --stall-check-warning-time-seconds --stall-check-shutdown-time-seconds --num-nccl-streams"
        " --elastic-timeout --autotune-log-file --thread-affinity --gloo-timeout-seconds --binding-args",
    },
    {
        "flag": "--gloo --mpi --jsrun --verbose --disable-cache --autotune --no-autotune --hierarchical-allreduce"
        " --no-hierarchical-allreduce --timeline-mark-cycles --stall-check --no-stall-check --tcp -v -cb"
        " --prefix-output-with-timestamp --disable-prefix-output"
    },
    abbreviations=False,
    single_dash=True,
)


def state(stating: Stating, scanned: Scanned, line: LaunchLine, tree: Tree) -> Iterator[Reference]:
    """State tasks, hosts and slots; yields the hostfile's reference."""
    # Who starts the tasks decides, whatever the allocation would hold.
    stating.given("tasks", scanned.last("np"), as_int, strength=Strength.SCHEDULER)
    stating.given("tasks_per_node", scanned.last("per_node"), lambda value: as_int(lift(_first_number, value)))
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
    stating.given("working_directory", scanned.last("wdir"))
    given = scanned.last("hostfile")
    if given is None:
        return
    for path in paths_of(given.value, given.parts):
        target = relative(path, line, tree)
        if target is not None:
            yield Reference(target, "hostfile", given.span, line.scope)


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
