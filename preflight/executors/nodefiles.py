"""Where batch systems without an executor of their own say which nodes they gave: PBS, LSF, Grid Engine, Cobalt.

Each sets a variable that names a file, with one line for each slot or one for each host; the order is the order of
ranks. Formats as in pbs_professional's PBS_NODEFILE, LSF's LSB_DJOB_HOSTFILE and Grid Engine's sge_pe(5).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from preflight.executors.base import ExecutorError
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Node

#: A file of more than this is none of a batch system's.
_MOST_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class System:
    """A batch system: the variable with the file of nodes, the one with the job's id, and how lines are made.

    `counted`: a line holds a host and its number of slots, instead of there being a line for each slot.
    """

    name: str
    file: str
    id: str
    counted: bool = False


SYSTEMS = (
    System("PBS", "PBS_NODEFILE", "PBS_JOBID"),
    System("LSF", "LSB_DJOB_HOSTFILE", "LSB_JOBID"),
    System("Grid Engine", "PE_HOSTFILE", "JOB_ID", counted=True),
    System("Cobalt", "COBALT_NODEFILE", "COBALT_JOBID"),
)


def system_of(environment: Mapping[str, str]) -> System | None:
    """The batch system in whose job this process runs; None in none of them."""
    return next((system for system in SYSTEMS if environment.get(system.file)), None)


def reason(environment: Mapping[str, str]) -> str:
    """Why this must be inside a job of such a system; empty when it is not."""
    system = system_of(environment)
    return f"{system.file} is set: this is inside a job of {system.name}" if system is not None else ""


def nodes_in(environment: Mapping[str, str]) -> tuple[tuple[Node, ...], str] | None:
    """The nodes of the job this runs in, with their slots, and where that stands; None outside of any.

    Raises:
        ExecutorError: the file cannot be read, or is none.
    """
    system = system_of(environment)
    if system is None:
        return None
    path = Path(environment[system.file])
    where = f"{system.name} job {environment.get(system.id, '')}".rstrip() + f" ({system.file}={path})"
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_BYTES)
    except OSError as error:
        raise ExecutorError("missing", f"{where} cannot be read: {error.strerror}") from None
    slots: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        if not is_hostname(words[0]):
            raise ExecutorError("denied", f"{path}:{number}: {words[0]!r:.80} is no host name")
        count = int(words[1]) if system.counted and len(words) > 1 and words[1].isdigit() else 1
        slots[words[0]] = slots.get(words[0], 0) + count
    if not slots:
        raise ExecutorError("missing", f"{where} names no nodes")
    return tuple(Node(name, index, name, count) for index, (name, count) in enumerate(slots.items())), where
