"""Slurm: what `#SBATCH` lines and the options of `srun` claim, and what they come to for one launch.

Options as in the manuals of sbatch and srun, Slurm 24.05. `#SBATCH` speaks of the whole job, `srun` of its launch;
both with the scheduler's strength, so the narrower srun wins. A batch script itself runs on the first node of the
allocation only, so a launcher with nothing in front of it starts there and nowhere else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from preflight.job import (
    Claim,
    Known,
    OneOf,
    Plain,
    Span,
    Strength,
    Unresolved,
    Value,
    alternatives,
    as_int,
    lift,
    one_of,
)
from preflight.job.hostlist import expand_hosts
from preflight.lazy.dataclasses import dataclass
from preflight.sources.base import Directive
from preflight.sources.launchers.options import Given, table
from preflight.sources.launchers.stating import Stating

#: Longer lists than this are no one's, and could make splitting them slow.
_LONGEST_LIST = 4000
_VALUED = {
    "nodes": "-N --nodes",
    "ntasks": "-n --ntasks",
    "ntasks_per_node": "--ntasks-per-node --tasks-per-node",
    "gpus": "-G --gpus",
    "gpus_per_node": "--gpus-per-node",
    "gpus_per_task": "--gpus-per-task",
    "gres": "--gres",
    "cpus_per_task": "-c --cpus-per-task",
    "mem": "--mem",
    "time": "-t --time",
    "partition": "-p --partition",
    "nodelist": "-w --nodelist",
    "chdir": "-D --chdir",
    "relative": "-r --relative",
    "export": "--export",
    "container_image": "--container-image",
    "container_workdir": "--container-workdir",
    "container": "--container",
    "jobid": "--jobid",
    "gpu_bind": "--gpu-bind",
    "cpu_bind": "--cpu-bind --cpu_bind",
    "cpus_per_gpu": "--cpus-per-gpu",
    "ntasks_per_gpu": "--ntasks-per-gpu",
    "mem_per_cpu": "--mem-per-cpu",
    "mem_per_gpu": "--mem-per-gpu",
    "constraint": "-C --constraint",
    "array": "-a --array",
    "output": "-o --output",
    "signal": "--signal",
    "open_mode": "--open-mode",
}
_OTHER_VALUED = (
    "-A --account --acctg-freq --bb --bbf --bcast -b --begin --cluster-constraint -M --clusters --comment"
    " --compress --container-id --container-mounts --container-name --container-env --container-save"
    " --core-spec -S --cores-per-socket --cpu-freq --deadline --delay-boot -d"
    " --dependency --distribution -m --epilog -e --error -x --exclude --exclusive --export-file --extra -B"
    " --extra-node-info -F --nodefile --gid --gpu-freq --gpus-per-socket --gres-flags --group --hint -i"
    " --input -J --job-name -L --licenses --mail-type --mail-user --mcs-label --mem-bind"
    " --mincpus --mpi --multi-prog --network --nice --ntasks-per-core"
    " --ntasks-per-socket --power --prefer --priority --profile --prolog"
    " --propagate -q --qos --reservation -s --slurmd-debug --sockets-per-node --switches --task-epilog"
    " --task-prolog --thread-spec -T --threads --threads-per-core --time-min --tmp --tres-bind --tres-per-task"
    " --uid -W --wait --wckey --x11 -X --wrap --export_env --treewidth --segment"
)
#: Their value is optional and only taken behind `=`.
_OPTIONAL = (
    "--exclusive",
    "--nice",
    "--propagate",
    "--x11",
    "--multi-prog",
    "-X",
)
_FLAGS = (
    "--contiguous -E --preserve-env -H --hold -I --immediate --interactive -k --no-kill -l --label --no-allocate -Z"
    " -O --overcommit -s --oversubscribe --overlap --pty -Q --quiet --quit-on-interrupt --reboot --spread-job"
    " --test-only --unbuffered -u --use-min-nodes -v --verbose -V --version --exact --send-libs --whole"
    " --container-remap-root --no-container-remap-root --container-mount-home --no-container-mount-home"
    " --container-writable --container-readonly --no-container-entrypoint --container-entrypoint --requeue"
    " --no-requeue --parsable --wait-all-nodes --ignore-pbs --get-user-env --mem-bind-none"
)
SRUN = table(
    {
        **_VALUED,
        "other": " ".join(name for name in _OTHER_VALUED.split() if name not in _OPTIONAL and name != "-s"),
    },
    {"flag": " ".join((*_OPTIONAL, _FLAGS)), "kill": "-K --kill-on-bad-exit"},
)
_DESTS = {spelling: dest for dest, spellings in _VALUED.items() for spelling in spellings.split()}
#: Programs that say nothing about where training runs when srun or ssh starts them.
HARMLESS = frozenset(
    [
        "hostname",
        "echo",
        "printf",
        "nvidia-smi",
        "rocm-smi",
        "mkdir",
        "rm",
        "cp",
        "rsync",
        "mv",
        "ls",
        "cat",
        "true",
        "sleep",
        "date",
        "env",
        "printenv",
        "ip",
        "ifconfig",
        "ibstat",
        "ibv_devinfo",
        "lscpu",
        "free",
        "df",
        "pkill",
        "killall",
        "kill",
        "touch",
        "chmod",
        "tar",
        "tee",
        "which",
        "whoami",
        "id",
        "uname",
        "sync",
        "dmesg",
        "ping",
        "module",
        "ulimit",
        "scontrol",
    ]
)


@dataclass(frozen=True, slots=True)
class Asked:
    """One option of Slurm with its place, from either spelling."""

    dest: str
    value: Value
    span: Span
    spelling: str


def from_directives(found: Sequence[Directive]) -> dict[str, Asked]:
    """The options of an `#SBATCH` header; the last of several counts."""
    asked: dict[str, Asked] = {}
    for directive in found:
        dest = _DESTS.get(directive.option) or _DESTS.get("--" + directive.option.lstrip("-"))
        if dest is not None and directive.value is not None:
            value: Value = Known(directive.value)
            if is_open(directive.value):
                value = Unresolved(f"{directive.value} is filled in before the script is submitted")
            asked[dest] = Asked(dest, value, directive.span, directive.spelling)
    return asked


def is_open(text: str) -> bool:
    """Whether something in a directive is filled in before sbatch reads it: `{{ nodes }}`, `$NODES`, `<ACCOUNT>`."""
    return re.search(r"\{\{|\$\{?\w|<[A-Z_]+>", text) is not None


def from_options(given: Iterable[Given]) -> dict[str, Asked]:
    """The options of one srun; the last of several counts."""
    return {g.dest: Asked(g.dest, g.value, g.span, g.spelling) for g in given if g.dest in _VALUED}


def state(stating: Stating, asked: dict[str, Asked]) -> dict[str, Claim]:
    """State what the options say; the claims by quantity."""
    said: dict[str, Claim] = {}
    for dest, quantity, convert in _PLAIN:
        option = asked.get(dest)
        if option is None:
            continue
        said[quantity] = _say(stating, quantity, option, convert(option.value))
    if "gres" in asked and "gpus_per_node" not in said:
        value = lift(_gres, asked["gres"].value)
        if not isinstance(value, Unresolved) or "no GPU" not in value.why:
            said["gpus_per_node"] = _say(stating, "gpus_per_node", asked["gres"], value)
    nodes = asked.get("nodes")
    if nodes is not None and any("-" in str(item) for item in alternatives(nodes.value)):
        _say(stating, "min_nodes", nodes, lift(lambda item: int(str(item).partition("-")[0]), nodes.value))
    if "gpus" in asked and "gpus_per_node" not in said and "nodes" in said:
        total, count = lift(_gpus, asked["gpus"].value), said["nodes"]
        per_node = lift(divided, total, count.value)
        if not isinstance(per_node, Unresolved):
            option = asked["gpus"]
            said["gpus_per_node"] = stating.say(
                "gpus_per_node",
                per_node,
                option.span,
                option.spelling,
                strength=Strength.SCHEDULER,
                because=(count,),
            )
    _tasks(stating, said)
    return said


def _say(stating: Stating, quantity: str, option: Asked, value: Value) -> Claim:
    return stating.say(quantity, value, option.span, option.spelling, strength=Strength.SCHEDULER)


def _tasks(stating: Stating, said: dict[str, Claim]) -> None:
    """`--nodes` with `--ntasks` gives tasks a node; Slurm spreads them evenly."""
    nodes, tasks, each = said.get("nodes"), said.get("tasks"), said.get("tasks_per_node")
    if nodes is None:
        return
    if tasks is not None and each is None:
        if not isinstance(lift(divided, tasks.value, nodes.value), Unresolved):
            said["tasks_per_node"] = spread(stating, tasks, nodes)
    elif each is not None and tasks is None and not isinstance(lift(_product, nodes.value, each.value), Unresolved):
        said["tasks"] = multiplied(stating, nodes, each)


def spread(stating: Stating, tasks: Claim, nodes: Claim) -> Claim:
    """The tasks on each node that follow from all tasks and the number of nodes."""
    value = lift(divided, tasks.value, nodes.value)
    because = (tasks, nodes)
    return stating.say(
        "tasks_per_node", value, tasks.span, tasks.spelling, strength=Strength.SCHEDULER, because=because
    )


def multiplied(stating: Stating, nodes: Claim, each: Claim) -> Claim:
    """All tasks, as they follow from the number of nodes and the tasks on each."""
    value = lift(_product, nodes.value, each.value)
    return stating.say("tasks", value, each.span, each.spelling, strength=Strength.SCHEDULER, because=(nodes, each))


def _product(nodes: Plain, each: Plain) -> Plain:
    return int(str(nodes)) * int(str(each))


def nodes_of(value: Value) -> Value:
    """`4`, `2-4`, `1k` as node counts."""
    found: list[Plain] = []
    for item in alternatives(value):
        match = re.fullmatch(r"(\d{1,7})([kKmM]?)(?:-(\d{1,7})([kKmM]?))?", str(item).strip())
        if match is None:
            return Unresolved(f"{item!r} is no number of nodes")
        low = _scaled(match[1], match[2])
        high = _scaled(match[3], match[4]) if match[3] else low
        if high - low >= 16:
            return Unresolved(f"any number of nodes from {low} to {high}")
        found.extend(range(low, high + 1) if high >= low else (low,))
    return one_of(found) if found else value


def seconds_of(value: Value) -> Value:
    """Slurm's `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours[:minutes[:seconds]]` in seconds."""
    return lift(_seconds, value)


def mebibytes_of(value: Value) -> Value:
    """`64G`, `512` (MiB), `1T` in MiB; `0` stands for all the memory of the node."""
    return lift(_mebibytes, value)


def hosts_of(value: Value) -> Value:
    """`node[01-04,07],login1` as the names it stands for."""
    return lift(lambda item: expand_hosts(str(item)), value)


def _scaled(digits: str, unit: str) -> int:
    return int(digits) * {"": 1, "k": 1024, "m": 1024 * 1024}[unit.lower()]


def _gpus(item: Plain) -> Plain:
    counts = [part.split("(")[0].rpartition(":")[2] for part in str(item).split(",")]
    return sum(int(count) for count in counts)


def _gres(item: Plain) -> Plain:
    if len(str(item)) > _LONGEST_LIST:
        raise ValueError("too long a list of resources")
    total = 0
    for part in re.split(r",(?![^(]*\))", str(item)):
        pieces = part.split("(")[0].split(":")
        if pieces[0].removeprefix("gres/") == "gpu":
            total += int(pieces[-1]) if pieces[-1].isdigit() else 1
    if not total:
        raise ValueError("no GPU among the generic resources")
    return total


def divided(total: Plain, parts: Plain) -> Plain:
    """Parts of equal size; raises ValueError where it does not come out even."""
    whole, left = divmod(int(str(total)), int(str(parts)))
    if left or not whole:
        raise ValueError(f"{total} cannot be spread evenly over {parts}")
    return whole


def _seconds(item: Plain) -> Plain:
    text = str(item).strip()
    match = re.fullmatch(r"(?:(\d+)-(\d+)(?::(\d+))?(?::(\d+))?)|(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is no time limit")
    if match[1] is not None:
        days, hours, minutes, seconds = (int(match[i] or 0) for i in range(1, 5))
        return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    first, second, third = match[5], match[6], match[7]
    if third is not None:
        return (int(first) * 60 + int(second)) * 60 + int(third)
    total = int(first) * 60 + int(second or 0)
    if not total:
        raise ValueError("0 asks for no time limit")
    return total


def _mebibytes(item: Plain) -> Plain:
    match = re.fullmatch(r"(\d+)([KMGTkmgt]?)[bB]?", str(item).strip())
    if match is None:
        raise ValueError(f"{item!r} is no amount of memory")
    if int(match[1]) == 0:
        raise ValueError("0 asks for all the memory of the node")
    kibibytes = int(match[1]) * {"k": 1, "": 1024, "m": 1024, "g": 1024**2, "t": 1024**3}[match[2].lower()]
    return kibibytes // 1024


def _text(value: Value) -> Value:
    return value if isinstance(value, (Unresolved, OneOf)) else lift(str, value)


_PLAIN: tuple[tuple[str, str, Callable[[Value], Value]], ...] = (
    ("nodes", "nodes", nodes_of),
    ("ntasks", "tasks", as_int),
    ("ntasks_per_node", "tasks_per_node", as_int),
    ("gpus_per_node", "gpus_per_node", lambda value: lift(_gpus, value)),
    ("gpus_per_task", "gpus_per_task", lambda value: lift(_gpus, value)),
    ("cpus_per_task", "cpus_per_task", as_int),
    ("mem", "memory_per_node_mib", mebibytes_of),
    ("time", "time_limit_s", seconds_of),
    ("partition", "partition", _text),
    ("nodelist", "hosts", hosts_of),
    ("chdir", "working_directory", _text),
)
