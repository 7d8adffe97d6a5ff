"""Node files of batch systems that have no separate executor: PBS, LSF, Grid Engine, Cobalt.

Each sets a variable that names a file, with one line for each slot or one for each host; the order is the order of
ranks. Formats as in pbs_professional's PBS_NODEFILE, LSF's LSB_DJOB_HOSTFILE and Grid Engine's sge_pe(5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from preflight._util import regular_file
from preflight._util.hostnames import is_hostname
from preflight.executors.base import ExecutorError
from preflight.model.job import is_whole_number
from preflight.model.recording import Node

#: A larger file was not written by a batch system.
_MAX_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class BatchSystem:
    """A batch system: the variable with the file of nodes, the one with the job's id, and the format of lines.

    `has_slot_counts`: whether a line has a host and its number of slots, instead of one line for each slot.
    """

    name: str
    file: str
    id: str
    has_slot_counts: bool = False


SYSTEMS = (
    BatchSystem("PBS", "PBS_NODEFILE", "PBS_JOBID"),
    BatchSystem("LSF", "LSB_DJOB_HOSTFILE", "LSB_JOBID"),
    BatchSystem("Grid Engine", "PE_HOSTFILE", "JOB_ID", has_slot_counts=True),
    BatchSystem("Cobalt", "COBALT_NODEFILE", "COBALT_JOBID"),
)


def find_system(environment: Mapping[str, str]) -> BatchSystem | None:
    """Return the batch system in whose job this process runs; None outside of one."""
    return next((system for system in SYSTEMS if environment.get(system.file)), None)


def reason(environment: Mapping[str, str]) -> str:
    """Return why this process is inside a job of such a system; empty if it is not."""
    system = find_system(environment)
    return f"{system.file} is set: this is inside a job of {system.name}" if system is not None else ""


def read_nodes(environment: Mapping[str, str]) -> tuple[tuple[Node, ...], str] | None:
    """Return the nodes of the current job, with their slots, and the source; None outside of a job.

    Raises:
        ExecutorError: the file cannot be read, or is malformed.
    """
    system = find_system(environment)
    if system is None:
        return None
    path = Path(environment[system.file])
    where = f"{system.name} job {environment.get(system.id, '')}".rstrip() + f" ({system.file}={path})"
    try:
        text = regular_file.read_text(path, _MAX_BYTES, errors="replace")
    except OSError as error:
        raise ExecutorError("missing", f"{where} cannot be read: {error.strerror}") from None
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if not is_hostname(words[0]):
            raise ExecutorError("denied", f"{path}:{number}: {words[0]!r:.80} is not a valid host name")
        count = int(words[1]) if system.has_slot_counts and len(words) > 1 and is_whole_number(words[1]) else 1
        slots[words[0]] = slots.get(words[0], 0) + count
    if not slots:
        raise ExecutorError("missing", f"{where} names no nodes")
    return tuple(Node(name, index, name, count) for index, (name, count) in enumerate(slots.items())), where
