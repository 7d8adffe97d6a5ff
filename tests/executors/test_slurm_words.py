"""Messages of Slurm's tools are explained: recorded from 22.05.8, or taken from slurm_errno.c."""

from __future__ import annotations

from typing import Any

import pytest

from preflight._util import toml
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


@pytest.mark.parametrize("error", toml.beside(__file__, "errors.toml")["srun"])
def test_srun_errors_are_explained(error: dict[str, Any]) -> None:
    found = explain("n2", "71", error.get("code"), error["words"], deadline_s=8)
    assert (found.kind, found.message.startswith("n2: ")) == (error["kind"], True), found.message
    assert error["message"] in found.message, found.message


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
        with pytest.raises(ExecutorError, match="node list is invalid"):
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
    named = NodeRequest(wanted.jobs, named_nodes=(Node("n7", 0), Node("n8", 1)))
    assert {"--nodelist=n7,n8", "--nodes=2"} <= set(requested_options(named))
    assert requested_options(NodeRequest((job(),), count=3)) == ("--nodes=3",)


def test_slurm_is_detected() -> None:
    executor = SlurmExecutor()
    assert executor.detect({"SLURM_JOB_ID": "71"}) == "SLURM_JOB_ID=71 is set: this is inside a Slurm job"
    assert executor.detect({}) == executor.detect({"SLURM_JOB_ID": "x"}) == ""
