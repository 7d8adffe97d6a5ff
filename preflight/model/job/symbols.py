"""Values known only at run time, by name: the wording of `Unresolved.why` for such a value.

The wording is stable, so that a rule can distinguish "the first host of the allocation" (a good master address) from
"the name of the host it runs on" (a different one on every node under srun) without parsing prose.
"""

from __future__ import annotations

import enum
import re
from dataclasses import replace

from preflight.model.job.value import Unresolved, Value


class Symbol(str, enum.Enum):
    """One recognised run-time value; its description is contained in `Unresolved.why`."""

    FIRST_ALLOCATED_HOST = "the first host of the allocation"
    FIRST_ALLOCATED_ADDRESS = "an address of the first host of the allocation"
    ALLOCATED_HOSTS = "the hosts of the allocation"
    OTHER_ALLOCATED_HOST = "a later host of the allocation"
    ALLOCATED_HOST_COUNT = "the number of hosts of the allocation"
    THIS_HOST = "the name of the host it runs on"
    THIS_ADDRESS = "an address of the host it runs on"
    START_DIRECTORY = "the directory it is started in"
    SUBMISSION_HOST = "the host that the job was submitted from"
    JOB_ID = "the id of the batch job"
    NODE_LIST = "the node list of the allocation"
    PROCESS_RANK = "the rank of the task"
    NODE_RANK = "the index of the node in the allocation"
    LOCAL_RANK = "the index of the task on its node"
    NODE_FILE = "the file in which the scheduler lists the hosts"
    NODE_FILE_LINES = "the lines of the scheduler's list of hosts"
    LIBRARY_DEFAULT = "left to the library"
    CONTAINER_OPTIONS = "options that are known only at run time"
    ARRAY_TASK = "the index of the Slurm array task"
    GPU_COUNT = "the number of GPUs of the host it runs on"
    CORE_COUNT = "the number of CPU cores of the host it runs on"
    RANDOM_NUMBER = "a random number"
    TIME = "the time of the run"
    USER = "the name of the user"
    HOME = "the home directory of the user"


FIRST_ALLOCATED_HOST = Symbol.FIRST_ALLOCATED_HOST.value
FIRST_ALLOCATED_ADDRESS = Symbol.FIRST_ALLOCATED_ADDRESS.value
ALLOCATED_HOSTS = Symbol.ALLOCATED_HOSTS.value
THIS_HOST = Symbol.THIS_HOST.value
THIS_ADDRESS = Symbol.THIS_ADDRESS.value
RANDOM_NUMBER = Symbol.RANDOM_NUMBER.value
JOB_ID = Symbol.JOB_ID.value

#: Variables that are always set in a batch job, or in a rank that MPI started, to a value that no file contains.
RUNTIME_VARIABLES = {
    "SLURM_JOB_ID": Symbol.JOB_ID,
    "SLURM_JOBID": Symbol.JOB_ID,
    "SLURM_ARRAY_JOB_ID": Symbol.JOB_ID,
    "SLURM_JOB_NODELIST": Symbol.NODE_LIST,
    "SLURM_NODELIST": Symbol.NODE_LIST,
    "SLURM_SUBMIT_HOST": Symbol.SUBMISSION_HOST,
    "SLURM_LAUNCH_NODE_IPADDR": Symbol.SUBMISSION_HOST,
    "PBS_O_HOST": Symbol.SUBMISSION_HOST,
    "LSB_SUB_HOST": Symbol.SUBMISSION_HOST,
    "SLURM_PROCID": Symbol.PROCESS_RANK,
    "SLURM_NODEID": Symbol.NODE_RANK,
    "SLURM_LOCALID": Symbol.LOCAL_RANK,
    "SLURM_ARRAY_TASK_ID": Symbol.ARRAY_TASK,
    "PBS_JOBID": Symbol.JOB_ID,
    "LSB_JOBID": Symbol.JOB_ID,
    "COBALT_JOBID": Symbol.JOB_ID,
    "FLUX_JOB_ID": Symbol.JOB_ID,
    "PBS_NODEFILE": Symbol.NODE_FILE,
    "LSB_DJOB_HOSTFILE": Symbol.NODE_FILE,
    "LSB_DJOB_RANKFILE": Symbol.NODE_FILE,
    "COBALT_NODEFILE": Symbol.NODE_FILE,
    "PE_HOSTFILE": Symbol.NODE_LIST,
    "LSB_HOSTS": Symbol.NODE_LIST,
    "LSB_MCPU_HOSTS": Symbol.NODE_LIST,
    "PBS_NODENUM": Symbol.NODE_RANK,
    "PBS_ARRAY_INDEX": Symbol.ARRAY_TASK,
    "PBS_ARRAYID": Symbol.ARRAY_TASK,
    "LSB_JOBINDEX": Symbol.ARRAY_TASK,
    "OMPI_COMM_WORLD_RANK": Symbol.PROCESS_RANK,
    "OMPI_COMM_WORLD_LOCAL_RANK": Symbol.LOCAL_RANK,
    "OMPI_COMM_WORLD_NODE_RANK": Symbol.LOCAL_RANK,
    "PMI_RANK": Symbol.PROCESS_RANK,
    "PMIX_RANK": Symbol.PROCESS_RANK,
    "MPI_LOCALRANKID": Symbol.LOCAL_RANK,
    "MV2_COMM_WORLD_RANK": Symbol.PROCESS_RANK,
    "MV2_COMM_WORLD_LOCAL_RANK": Symbol.LOCAL_RANK,
    "PALS_RANKID": Symbol.PROCESS_RANK,
    "PALS_LOCAL_RANKID": Symbol.LOCAL_RANK,
    "PALS_NODEID": Symbol.NODE_RANK,
    "FLUX_TASK_RANK": Symbol.PROCESS_RANK,
    "FLUX_TASK_LOCAL_ID": Symbol.LOCAL_RANK,
    "SKYPILOT_NODE_RANK": Symbol.NODE_RANK,
    "SKYPILOT_NODE_IPS": Symbol.ALLOCATED_HOSTS,
    "SKYPILOT_TASK_ID": Symbol.JOB_ID,
    "DSTACK_NODE_RANK": Symbol.NODE_RANK,
    "DSTACK_MASTER_NODE_IP": Symbol.FIRST_ALLOCATED_ADDRESS,
    "DSTACK_NODES_IPS": Symbol.ALLOCATED_HOSTS,
    "DSTACK_RUN_ID": Symbol.JOB_ID,
    "SLURMD_NODENAME": Symbol.THIS_HOST,
    "HOSTNAME": Symbol.THIS_HOST,
    "HOST": Symbol.THIS_HOST,
    "RANDOM": Symbol.RANDOM_NUMBER,
    "SRANDOM": Symbol.RANDOM_NUMBER,
    "EPOCHSECONDS": Symbol.TIME,
    "SECONDS": Symbol.TIME,
    "USER": Symbol.USER,
    "HOME": Symbol.HOME,
}


#: Appended to the rank of a task: the script itself expands it, before srun or mpirun starts the tasks that have one.
_EARLY = ", expanded before the tasks are started"


def expanded_in_script(symbol: Symbol) -> str:
    """The description of a rank that a script itself expands."""
    return symbol.value + _EARLY


def is_expanded_in_script(value: Value) -> bool:
    """Whether a value is a task's rank that was expanded before the tasks started, so that all tasks get the same
    one.
    """
    return isinstance(value, Unresolved) and _EARLY in value.why


_AFFIXED = re.compile(r", written as `([^`]*)…([^`]*)`$")


def with_affixes(value: Unresolved, prefix: str, suffix: str) -> Unresolved:
    """A value composed of an unresolved one and the text directly around it."""
    if not prefix and not suffix:
        return value
    return replace(value, why=f"{value.why}, written as `{prefix}…{suffix}`")


def affixes_of(value: Value) -> tuple[str, str]:
    """The text directly before and after the unresolved part of a value; empty if there is none."""
    found = _AFFIXED.search(value.why) if isinstance(value, Unresolved) else None
    return (found[1], found[2]) if found is not None else ("", "")


def symbols_in(value: Value) -> frozenset[Symbol]:
    """The recognised run-time values an unresolved value depends on; empty for a resolved one."""
    if not isinstance(value, Unresolved):
        return frozenset()
    found = {symbol for symbol in Symbol if symbol.value in value.why}
    if Symbol.FIRST_ALLOCATED_ADDRESS in found and value.why.count(FIRST_ALLOCATED_HOST) == value.why.count(
        FIRST_ALLOCATED_ADDRESS
    ):
        found.discard(Symbol.FIRST_ALLOCATED_HOST)
    if Symbol.ALLOCATED_HOST_COUNT in found and value.why.count(ALLOCATED_HOSTS) == 0:
        found.discard(Symbol.ALLOCATED_HOSTS)
    return frozenset(found)
