"""`xpk workload create --device-type v6e-256 --num-slices 2 --command "..."`: a JobSet on slices of TPUs or GPU nodes.

Source: xpk/parser/workload.py and core/system_characteristics.py of xpk 0.16. A slice is named by its topology
(`tpu7x-4x4x8`) or by its tensor cores (`v5p-256`), of which a chip has one or two. Every host has four chips, except
for the slice of a single chip. JAX starts one process on each host.
"""

from __future__ import annotations

import math
import re

from preflight.model.job import Known, Strength, Unresolved, Value, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import GivenOption, scan, table, text_of, texts
from preflight.sources.launchers.started_program import read_program

_OPTIONS = table(
    {
        "device": "--device-type --tpu-type",
        "slices": "--num-slices",
        "nodes": "--num-nodes",
        "command": "--command",
        "other": "--cluster --project --zone --workload --docker-image --docker-name --base-docker-image --script-dir"
        " --priority --max-restarts --env --env-file --scheduler --ttl-seconds-after-finished"
        " --docker-image-pull-secret --termination-grace-period-seconds --storage --sub-slicing-topology"
        " --ramdisk-directory --mtc-enabled"
        " --proxy-server-image --server-image --colocated-python-sidecar-image --headless-workers"
        " --output-manifest-file --debug-dump-gcs --custom-pathways-proxy-server-args --custom-pathways-server-args"
        " --deploy-stacktrace-sidecar",
    },
    {
        "flag": "--on-demand --spot --reservation --flex --enable-debug-logs --use-pathways --headless"
        " --use-vertex-tensorboard --restart-on-user-code-failure --restart-on-exit-codes --dry-run"
        " --skip-validation --enable-ops-agent"
    },
    abbreviations=False,
    interleaved=True,
)
_ACTIONS = ("create", "create-pathways")
_CORES_PER_CHIP = {"v4": 2, "v5p": 2, "tpu7x": 2, "v5litepod": 1, "v6e": 1}
_CHIPS_PER_HOST = 4
#: Launchers that start the ranks of a host themselves: their own line is the launch.
_LAUNCHERS = re.compile(r"\b(?:torchrun|torch\.distributed\.(?:run|launch)|accelerate\s+launch|deepspeed|mpirun)\b")


class XpkReader:
    """Reads the command line of xpk when it creates a workload."""

    name: str = "xpk"
    names: tuple[str, ...] = ("xpk", "xpk.py")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State the hosts that the workload takes, and one process on each."""
        words = line.words[1:]
        if len(words) < 2 or text_of(words[0]) != "workload" or text_of(words[1]) not in _ACTIONS:
            return Reading()
        scanned = scan(words[2:], _OPTIONS)
        command = scanned.last("command")
        if command is not None and _LAUNCHERS.search(command.spelling):
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        nodes = scanned.last("nodes")
        device = scanned.last("device")
        if nodes is not None:
            builder.add_setting("nodes", nodes, as_int)
        elif device is not None:
            builder.add_setting("nodes", device, lambda value: _hosts(value, scanned.last("slices")))
        if device is not None:
            spelling = f"{line.words[0].spelling} (one process on each host)"
            builder.add("processes_per_node", Known(1), line.words[0].span, spelling, strength=Strength.DEFAULT)
        started = read_program(line, self.name, (), tree)
        return Reading(
            claims=(*builder.claims, *started.claims), launches=(started.launch,), references=started.references
        )


def _hosts(device: Value, slices: GivenOption | None) -> Value:
    """The hosts of all slices of a type of device."""
    count: Value = as_int(slices.value) if slices is not None else Known(1)
    if isinstance(device, Unresolved) or isinstance(count, Unresolved):
        parts = [device.why if isinstance(device, Unresolved) else str(texts(device)[:1])]
        parts += [count.why] if isinstance(count, Unresolved) else []
        return Unresolved(f"the hosts of the slices: {', '.join(parts)}")
    return lift(lambda name, number: _hosts_of(str(name)) * int(str(number)), device, count)


def _hosts_of(name: str) -> int:
    """The hosts of one slice.

    Raises:
        ValueError: it is not a TPU of a known generation.
    """
    match = re.fullmatch(r"(\w+)-(\d+(?:x\d+)*)", name)
    if match is None or match[1] not in _CORES_PER_CHIP:
        raise ValueError(f"{name} is not a known slice of TPUs")
    sizes = [int(size) for size in match[2].split("x")]
    chips = math.prod(sizes) if len(sizes) > 1 else sizes[0] // _CORES_PER_CHIP[match[1]]
    return max(1, chips // _CHIPS_PER_HOST)
