"""One overlapping step of srun for one node: its command line, its environment, and what its errors mean.

Options as in srun(1) of Slurm 22.05 to 24.11; their effect was tested with slurmctld and slurmd 22.05.8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from preflight.agent import bootstrap
from preflight.executors.base import ExecutorError

#: srun gives up before our deadline, so that it can report the reason.
_MIN_IMMEDIATE_S = 1
#: Variables that srun reads as options (srun(1), INPUT ENVIRONMENT VARIABLES): meant for the job's own steps, and fatal
#: or worse for ours. SLURM_LABELIO would put a label before every line of the channel, the SLURM_MEM_PER_* exclude each
#: other, SLURM_NTASKS_PER_NODE requests more tasks than one.
_NAMES = (
    "ACCOUNT ACCTG_FREQ BCAST BCAST_EXCLUDE BURST_BUFFER CLUSTERS COMPRESS CONSTRAINT CORE_SPEC CPUS_PER_GPU"
    " CPUS_PER_TASK CPU_BIND CPU_BIND_LIST CPU_BIND_TYPE CPU_BIND_VERBOSE CPU_FREQ_REQ DEBUG DELAY_BOOT DEPENDENCY"
    " DISABLE_STATUS DISTRIBUTION DIST_PLANESIZE EPILOG ERROR EXACT EXCLUSIVE EXIT_ERROR EXIT_IMMEDIATE EXPORT_ENV"
    " GPUS GPUS_PER_NODE GPUS_PER_TASK GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT HET_SIZE IMMEDIATE JOB_NAME"
    " JOB_NUM_NODES KILL_BAD_EXIT LABELIO MEM_BIND MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE MPI_TYPE MULTI"
    " NCORES_PER_SOCKET NETWORK NNODES NO_KILL NODELIST NPROCS NSOCKETS_PER_NODE NTASKS NTASKS_PER_CORE"
    " NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET NTASKS_PER_TRES OPEN_MODE OVERCOMMIT OVERLAP PARTITION"
    " PROFILE PROLOG QOS REMOTE_CWD REQ_SWITCH RESERVATION RESV_PORTS SEND_LIBS SIGNAL SPREAD_JOB SRUN_MULTI"
    " STDERRMODE STDINMODE STDOUTMODE STEP_GRES TASK_EPILOG TASK_PROLOG TEST_EXEC THREADS THREADS_PER_CORE"
    " THREAD_SPEC TIMELIMIT TRES_BIND TRES_PER_TASK UNBUFFEREDIO USE_MIN_NODES WAIT WAIT4SWITCH WCKEY WHOLE"
    " WORKING_DIR"
)
_STEP_VARIABLES = frozenset(f"SLURM_{name}" for name in _NAMES.split())

#: Messages of srun, with the kind of failure, the meaning, and what to do; the first match counts. The texts are from
#: slurm_errno.c and launch.c.
_ERROR_MEANINGS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"unrecognized option|invalid option",
        "missing",
        "this srun does not know an option that preflight needs (it is older than Slurm 20.11)",
        "use --on ssh or --on mpi here",
    ),
    (
        r"requested node configuration is not available|invalid node name|not in (?:this )?(?:job|allocation)",
        "denied",
        "it does not belong to Slurm job {job}",
        "name nodes of the allocation, as `scontrol show hostnames` lists them",
    ),
    (
        r"expired|invalid job id|already completing|completing or completed|has been revoked|cancelled",
        "blocked",
        "Slurm job {job} has ended, was cancelled, lost a node, or is unknown here",
        "look at `sacct -j {job}` or `scontrol show job {job}`",
    ),
    (
        r"access/permission denied|invalid user|user id not permitted|not the owner",
        "denied",
        "Slurm job {job} belongs to another user",
        "name a job of your own with --on-option jobid=N",
    ),
    (
        r"requested nodes are busy|temporarily disabled|job/step already|immediate execution",
        "blocked",
        "Slurm delays the step, because another step holds the node's resources exclusively",
        "look at `squeue --steps -j {job}` for a step started with --exclusive",
    ),
    (
        r"socket timed out on send/recv",
        "timeout",
        "its slurmd accepts connections but does not answer",
        "look at slurmd on the node; possible causes: a hung file server, a full process table",
    ),
    (
        r"communication connection failure|connection refused|no route to host|unable to contact (?!slurm controller)",
        "unreachable",
        "its slurmd cannot be reached",
        "start slurmd there (`systemctl status slurmd`), or have the node drained",
    ),
    (
        r"unable to contact slurm controller|slurmctld|slurm_persist_conn",
        "unreachable",
        "Slurm's controller does not answer, and without it no step is started",
        "try `scontrol ping`",
    ),
    (
        r"due to node failure|node failure|node_fail",
        "unreachable",
        "Slurm has marked it as failed",
        "look at `sinfo -R` for the reason",
    ),
    (r"due to time limit", "blocked", "Slurm job {job} reached its time limit", "request more time"),
    (
        r"munge|protocol authentication|invalid authentication|credential",
        "denied",
        "Slurm rejects our credentials",
        "look at munged on this machine and on the node, and at their clocks",
    ),
    (
        r"couldn't open|could not (?:open|chdir)|couldn't chdir|permission denied",
        "denied",
        "its slurmd lacks a permission",
        "look at slurmd's log on the node",
    ),
)


def command(job: str, node: str, nonce: str, *, name: str, deadline_s: float) -> list[str]:
    """Return the srun command that starts an agent on one node of an allocation, as a step of this `name`.

    `--overlap` shares the resources of the job's own steps, `--mem=0` uses none of its memory, `--cpu-bind=none` lets
    the agent see all of the job's cores. Without `--unbuffered` slurmstepd forwards only whole lines, and frames have
    no lines (its io.c: a pseudo-terminal without output processing, so every byte passes unchanged).
    """
    immediate = max(_MIN_IMMEDIATE_S, int(deadline_s) - 1)
    return [
        "srun",
        f"--jobid={job}",
        "--nodes=1",
        "--ntasks=1",
        f"--nodelist={node}",
        "--overlap",
        "--mem=0",
        "--cpu-bind=none",
        "--mpi=none",
        "--unbuffered",
        "--export=ALL",
        f"--immediate={immediate}",
        f"--job-name={name}",
        "--",
        "/bin/sh",
        "-c",
        bootstrap.shell_line(nonce),
    ]


def environment_for_step(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of srun: this process's own, without variables for the job's own steps."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in _STEP_VARIABLES and not name.startswith("SRUN_")
    }
    return {**kept, "LC_ALL": "C"}


def explain(
    node: str, job: str, code: int | None, error_text: str, *, deadline_s: float, state: str = ""
) -> ExecutorError:
    """Explain the failure of an srun, from its exit `code` (None: still running at the deadline) and its `error_text`.

    `state` describes the node according to Slurm and the network.
    """
    error_text = bootstrap.without_mark(error_text)
    lines = [line.strip() for line in error_text.splitlines() if line.strip() and not _is_harmless(line)]
    known = f"; {state}" if state else ""
    missing = next((line for line in lines if bootstrap.NO_PYTHON_MARK in line), None)
    if missing is not None or code == bootstrap.NO_PYTHON:
        tried = (missing or "").partition(bootstrap.NO_PYTHON_MARK)[2].split()
        listed = ", ".join(tried) if tried else "none of " + ", ".join(bootstrap.INTERPRETERS) + " exists"
        return ExecutorError(
            "missing",
            f"{node}: no Python >= 3.8 there: tried {listed}; install Python 3.8 or newer",
            error_text,
        )
    for pattern, kind, meaning, remedy in _ERROR_MEANINGS:
        line = next((line for line in reversed(lines) if re.search(pattern, line, re.IGNORECASE)), None)
        if line is not None:
            message = f'{node}: {meaning.format(job=job)} (srun said: "{line}"{known}); {remedy.format(job=job)}'
            return ExecutorError(kind, message, error_text)
    last_line = f' (srun said: "{lines[-1]}")' if lines else ""
    if code is None:
        return ExecutorError(
            "timeout",
            f"{node}: no agent within {deadline_s:g} s, waiting for srun to start a step of Slurm job {job} there"
            f"{last_line}{known}; possible causes: a dead slurmd, a slow prolog, a slow file server",
            error_text,
        )
    first = next((line for line in lines if not line.startswith(("srun: error: ", "srun: Job step"))), "")
    also = f': "{first}"' if first and first not in last_line else ""
    return ExecutorError("crashed", f"{node}: the step ended with exit code {code}{also}{last_line}{known}", error_text)


def _is_harmless(line: str) -> bool:
    """Return whether a line of srun is harmless."""
    return "lacks support for" in line or bool(re.search(r"srun: (?:job|step) .* (?:queued|has been allocated)", line))
