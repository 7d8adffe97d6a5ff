"""Messages of Slurm's tools are explained: recorded from 22.05.8, or taken from slurm_errno.c."""

from __future__ import annotations

import pytest

from preflight._util.hostnames import expand_hosts
from preflight.executors.base import ExecutorError, NodeRequest
from preflight.executors.slurm import (
    SlurmExecutor,
    command,
    environment_for_step,
    explain,
    parse_fields,
    read_node_list,
    requested_options,
)
from preflight.model.recording import Node
from tests.builders import claim, job


@pytest.mark.parametrize(
    ("code", "words", "kind", "message"),
    [
        (
            1,
            "srun: cluster configuration lacks support for cpu binding\n"
            "srun: error: Unable to create step for job 1: Requested node configuration is not available",
            "denied",
            "does not belong to Slurm job 71",
        ),
        (
            1,
            "srun: error: Unable to confirm allocation for job 71: Invalid job id specified\n"
            "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 71",
            "blocked",
            "has ended, was cancelled, lost a node, or is unknown here",
        ),
        (1, "srun: error: Slurm job 71 has expired", "blocked", "lost a node"),
        (
            1,
            "srun: error: Unable to create step for job 71: Requested nodes are busy",
            "blocked",
            "delays the step",
        ),
        (
            None,
            "srun: Job 71 step creation temporarily disabled, retrying (Requested nodes are busy)",
            "blocked",
            "squeue --steps -j 71",
        ),
        (
            233,
            "srun: error: Task launch for StepId=1.5 failed on node n2: Communication connection failure\n"
            "srun: error: Application launch failed: Communication connection failure\nsrun: Job step aborted",
            "unreachable",
            "systemctl status slurmd",
        ),
        (
            140,
            "srun: error: slurm_receive_msgs: [[n2]:6818] failed: Socket timed out on send/recv operation\n"
            "srun: error: Application launch failed: Socket timed out on send/recv operation",
            "timeout",
            "accepts connections but does not answer",
        ),
        (255, "srun: unrecognized option '--overlap'\nTry \"srun --help\"", "missing", "older than Slurm 20.11"),
        (
            1,
            "srun: error: Unable to create step for job 71: Access/permission denied",
            "denied",
            "belongs to another user",
        ),
        (
            1,
            "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect failure)",
            "unreachable",
            "scontrol ping",
        ),
        (1, "slurmstepd: error: *** STEP 71.0 ON n2 CANCELLED AT 2026 DUE TO TIME LIMIT ***", "blocked", "has ended"),
        (
            1,
            "srun: error: If munged is up, restart with --num-threads=10\n"
            'srun: error: Munge encode failed: Failed to access "/run/munge"',
            "denied",
            "munged",
        ),
        (98, "preflight-no-python: python3", "missing", "no Python >= 3.8 there: tried python3"),
        (3, "the disk is on fire\nsrun: error: n2: task 0: Exited with exit code 3", "crashed", "the disk is on fire"),
        (None, "", "timeout", "waiting for srun to start a step of Slurm job 71 there"),
    ],
)
def test_srun_errors_are_explained(code: int | None, words: str, kind: str, message: str) -> None:
    error = explain("n2", "71", code, words, deadline_s=8)
    assert (error.kind, error.message.startswith("n2: ")) == (kind, True), error.message
    assert message in error.message, error.message


def test_step_options() -> None:
    line = command("71", "n2", "nonce", name="preflight-1", deadline_s=8)
    assert line[:2] == ["srun", "--jobid=71"] and "--immediate=7" in line and "--overlap" in line
    assert line[line.index("--") + 1] == "/bin/sh"


def test_variables_for_job_steps_are_removed() -> None:
    given = {
        "SLURM_LABELIO": "1",
        "SLURM_MEM_PER_CPU": "4096",
        "SRUN_CPUS_PER_TASK": "8",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_SUBMIT_DIR": "/home/me",
        "SLURM_GPUS_ON_NODE": "8",
        "PATH": "/bin",
    }
    kept = environment_for_step(given)
    assert set(kept) == {"SLURM_CONF", "SLURM_SUBMIT_DIR", "SLURM_GPUS_ON_NODE", "PATH", "LC_ALL"}


def test_scontrol_records_are_parsed() -> None:
    line = "NodeName=n1 Arch=x86_64 OS=Linux 6.1 #1 SMP State=MIXED+DRAIN Reason=bad cable [root@2026-11-22T00:34:29]"
    said = parse_fields(line)
    assert (said["NodeName"], said["State"]) == ("n1", "MIXED+DRAIN")
    assert said["Reason"] == "bad cable [root@2026-11-22T00:34:29]"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node[01-03,07],login1", ("node01", "node02", "node03", "node07", "login1")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("a", ("a",)),
    ],
)
def test_lists_of_hosts(text: str, names: tuple[str, ...]) -> None:
    assert expand_hosts(text) == names == read_node_list(text)


@pytest.mark.parametrize("text", ["n[1-99999999]", "a;b", "-w", "n[1-", "n[x]", "", "[1-4]" * 5000])
def test_malformed_host_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError):
        expand_hosts(text)
    if text:
        with pytest.raises(ExecutorError, match="nodes is invalid"):
            read_node_list(text)
    assert read_node_list("(null)") == ()


def test_request_repeats_the_job_header() -> None:
    header = [
        *("--account=ml", "--partition=gpu", "--nodes=4", "--gres=gpu:8", "--time=2-00:00:00", "--exclusive"),
        *("--partition=big", "--nodelist=n[1-4]", "--comment=x y; reboot"),
    ]
    wanted = NodeRequest((job(*(claim("batch_option", option) for option in header)),))
    assert requested_options(wanted) == ("--account=ml", "--exclusive", "--gres=gpu:8", "--nodes=4", "--partition=big")
    trusted = NodeRequest(wanted.jobs, trust_job=True)
    assert "--nodelist=n[1-4]" in requested_options(trusted)
    named = NodeRequest(wanted.jobs, named=(Node("n7", 0), Node("n8", 1)))
    assert {"--nodelist=n7,n8", "--nodes=2"} <= set(requested_options(named))
    assert requested_options(NodeRequest((job(),), count=3)) == ("--nodes=3",)


def test_slurm_is_detected() -> None:
    executor = SlurmExecutor()
    assert executor.detect({"SLURM_JOB_ID": "71"}) == "SLURM_JOB_ID=71 is set: this is inside a Slurm job"
    assert executor.detect({}) == executor.detect({"SLURM_JOB_ID": "x"}) == ""
