"""`preflight nodes` on this machine: requirements, a golden node in a recording, and the verdicts."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from preflight import RunOptions, UsageError, VerdictKind, nodes
from preflight.commands.manifest import profile_of
from preflight.model.recording import Recording
from preflight.model.recording_io import save

LOCAL = RunOptions(executor="local", until="node")


@pytest.fixture(scope="module")
def recording() -> Recording:
    """This machine as one node, of which nothing is required."""
    return nodes(LOCAL)[0]


@pytest.fixture
def file(recording: Recording, tmp_path: Path) -> Path:
    """The recording, saved."""
    path = tmp_path / "golden.json"
    path.write_bytes(save(recording))
    return path


def test_a_machine_that_meets_its_requirements_is_a_go() -> None:
    _, report = nodes(LOCAL, requirements=["memory>=0.1", f"python={platform.python_version()}"])
    assert report.verdict is VerdictKind.GO
    assert report.run.verb == "nodes" and report.inputs == ()


def test_a_machine_that_does_not_is_a_no_go() -> None:
    _, report = nodes(LOCAL, requirements=["cpus=100000"])
    assert report.verdict is VerdictKind.NO_GO
    assert [finding.id for finding in report.findings if finding.severity.value == "error"] == ["NOD005"]


def test_a_saved_node_is_a_profile(file: Path) -> None:
    claims = profile_of(str(file)) or ()
    values = {str(claim.value.value) for claim in claims}  # type: ignore[union-attr]
    assert f"cpus=={os.cpu_count()}" in values and f"kernel=={platform.release()}" in values
    _, report = nodes(LOCAL, golden=str(file))
    assert report.verdict is VerdictKind.GO
    assert {outcome.subject for outcome in report.outcomes if outcome.id == "NOD005"} >= {"kernel of local0"}


def test_a_node_is_chosen_by_its_name(file: Path) -> None:
    assert profile_of(f"{file}:local0") == tuple(profile_of(str(file)) or ())
    with pytest.raises(UsageError, match="no facts from a node of this name, only from local0"):
        profile_of(f"{file}:node9")


def test_a_name_is_no_file() -> None:
    assert profile_of("node001") is None


def test_a_misspelt_file_is_not_taken_for_a_node(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        profile_of(str(tmp_path / "golden.json"))


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(UsageError, match="not a readable recording"):
        profile_of(str(tmp_path / "x.json"))


def test_a_malformed_requirement_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="--expect gpu=: expected NAME=VALUE"):
        nodes(LOCAL, requirements=["gpu="])


def test_the_smoke_stage_needs_an_interpreter() -> None:
    with pytest.raises(UsageError, match="pass --python PATH"):
        nodes(RunOptions(executor="local", until="smoke"))
