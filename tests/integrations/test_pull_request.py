"""A pull request on a bare git server gets one comment from the steps of the action, and a fix updates it.

The REST API is a stub (tests/integrations/rest_stub.py); git, the action's steps and preflight are real.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integrations.rest_stub import TOKEN, Stub, rest_stub
from tests.integrations.runner import Runner

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).resolve().parents[2]
GOOD = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=node1 train.py\n"
FAULTY = GOOD.replace("node1", "localhost")
TRAIN = "import torch.distributed as dist\ndist.init_process_group('gloo')\n"


def git(folder: Path, *words: str) -> str:
    """Run git with nothing of this machine's configuration."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", *who, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def stub() -> Iterator[Stub]:
    """The stub of the API."""
    with rest_stub() as served:
        yield served


class PullRequest:
    """A bare server, the clone of its author, and pull request 5 of the branch `topic`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = folder / "server.git"
        self.author = folder / "author"
        self.runs = 0
        git(folder, "init", "--quiet", "--bare", str(self.server))
        git(folder, "init", "--quiet", str(self.author))
        git(self.author, "remote", "add", "origin", str(self.server))
        self.push(GOOD, "main", "jobs")
        self.push(FAULTY, "main", "old")
        git(self.author, "checkout", "--quiet", "-b", "topic")

    def push(self, text: str, branch: str = "topic", folder: str = "jobs") -> None:
        """Commit a new version of a job, and push it."""
        (self.author / folder).mkdir(exist_ok=True)
        (self.author / folder / "run.sh").write_text(text)
        (self.author / folder / "train.py").write_text(TRAIN)
        git(self.author, "add", "--all")
        git(self.author, "commit", "--quiet", "--message", "change")
        git(self.author, "push", "--quiet", "origin", f"HEAD:{branch}")

    def checkout(self, depth: int = 2) -> Path:
        """What actions/checkout makes of the event: a shallow clone of the merge of the branch into its base."""
        self.runs += 1
        git(self.author, "checkout", "--quiet", "--detach", "main")
        git(self.author, "merge", "--quiet", "--no-ff", "--message", "merge", "topic")
        git(self.author, "push", "--quiet", "--force", "origin", "HEAD:refs/pull/5/merge")
        git(self.author, "checkout", "--quiet", "topic")
        workspace = self.folder / f"workspace{self.runs}"
        workspace.mkdir()
        git(workspace, "init", "--quiet")
        git(workspace, "remote", "add", "origin", f"file://{self.server}")
        git(workspace, "fetch", "--quiet", f"--depth={depth}", "origin", "+refs/pull/5/merge:refs/remotes/pull/5/merge")
        git(workspace, "checkout", "--quiet", "--detach", "refs/remotes/pull/5/merge")
        return workspace

    def environment(self, stub: Stub) -> dict[str, str]:
        """The variables of the runner."""
        event = self.folder / "event.json"
        sides = {
            name: {"sha": git(self.author, "rev-parse", branch)}
            for name, branch in (("base", "main"), ("head", "topic"))
        }
        event.write_text(json.dumps({"pull_request": {"number": 5, **sides}}))
        return {
            "GITHUB_API_URL": stub.address,
            "GITHUB_REPOSITORY": "owner/name",
            "GITHUB_EVENT_PATH": str(event),
            "no_proxy": "*",
        }

    def run_action(self, stub: Stub, depth: int = 2, **inputs: str) -> Runner:
        """Run the action's steps in a fresh checkout, with preflight as it is here."""
        temporary = self.folder / f"temporary{self.runs}"
        private = temporary / "preflight.installed"
        (private / "venv" / "bin").mkdir(parents=True)
        python = private / "venv" / "bin" / "python"
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        runner = Runner(ROOT / "action.yml", self.checkout(depth), temporary, self.environment(stub))
        runner.outputs = {"install": {"private": str(private)}}
        given = {"comment": "true", "token": TOKEN, "paths": ".", **inputs}
        runner.run(skip=("install",), **given)
        return runner


def comment_step(runner: Runner) -> str:
    """What the step printed."""
    step = runner.step("comment")
    assert step is not None and step.code == 0
    return step.output


def test_one_comment_that_a_fix_updates(tmp_path: Path, stub: Stub) -> None:
    request = PullRequest(tmp_path)
    for number in range(150):
        stub.add(f"chatter {number}")
    request.push(FAULTY.replace("nnodes=2", "nnodes=4"))
    runner = request.run_action(stub)
    assert runner.output("verdict") == "no-go" and "comment written" in comment_step(runner)
    (written,) = stub.ours
    assert "1 new finding" in written and "Findings on changed lines" in written
    assert "RDV001" in written.replace("<code>", "") and "<code>jobs/run.sh:2</code>" in written
    assert "<code>2 ranks on 2 nodes</code></td><td><code>4 ranks on 4 nodes</code>" in written
    # The fault in `old` existed before.
    assert "old/run.sh" not in written and "1 job did not change" in written

    request.push(GOOD.replace("nnodes=2", "nnodes=4"))
    assert "comment updated" in comment_step(request.run_action(stub))
    (written,) = stub.ours
    assert "no new findings" in written and "1 finding that this comment listed before is fixed" in written
    assert "RDV001" not in written and "<code>4 ranks on 4 nodes</code>" in written

    # The same state again: that something was fixed is not repeated, and then nothing is written.
    request.run_action(stub)
    writes = [line for line in stub.requests if not line.startswith("GET")]
    assert "is up to date" in comment_step(request.run_action(stub))
    assert [line for line in stub.requests if not line.startswith("GET")] == writes and len(stub.ours) == 1


def test_nothing_to_say_is_no_comment(tmp_path: Path, stub: Stub) -> None:
    request = PullRequest(tmp_path)
    request.push(GOOD + "# harmless\n")
    assert "nothing to say" in comment_step(request.run_action(stub))
    assert not stub.comments


def test_a_comment_of_somebody_else_is_not_touched(tmp_path: Path, stub: Stub) -> None:
    request = PullRequest(tmp_path)
    request.push(FAULTY)
    request.run_action(stub)
    forged = stub.ours[0]
    stub.comments.clear()
    stub.add(forged)
    request.run_action(stub)
    assert stub.comments[0]["body"] == forged and len(stub.ours) == 1


def test_a_clone_that_is_too_shallow_is_said(tmp_path: Path, stub: Stub) -> None:
    request = PullRequest(tmp_path)
    request.push(FAULTY)
    request.run_action(stub, depth=1)
    (written,) = stub.ours
    assert "not compared with the base" in written and "deeper" in written
    assert "<code>old/run.sh:2</code>" in written


def test_a_fork_gets_no_comment_and_its_step_does_not_fail(tmp_path: Path, stub: Stub) -> None:
    request = PullRequest(tmp_path)
    request.push(FAULTY)
    stub.read_only = True
    said = comment_step(request.run_action(stub))
    assert "the API answered 403" in said and "pull-requests: write" in said
    assert "::warning title=preflight::" in said and not stub.comments


def test_without_the_input_there_is_no_request(tmp_path: Path, stub: Stub) -> None:
    request = PullRequest(tmp_path)
    request.push(FAULTY)
    assert request.run_action(stub, comment="false").step("comment") is None
    assert not stub.requests


def test_a_merge_request_of_gitlab(tmp_path: Path, stub: Stub) -> None:
    stub.is_bot = False
    request = PullRequest(tmp_path)
    request.push(FAULTY)
    job = yaml.safe_load((ROOT / "integrations" / "gitlab" / "preflight.gitlab-ci.yml").read_text())["preflight"]
    home = tmp_path / "home" / "venv" / "bin"
    home.mkdir(parents=True)
    (home / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (home / "python").chmod(0o755)

    def pipeline() -> subprocess.CompletedProcess[str]:
        variables = {
            "preflight_home": str(home.parents[1]),
            "CI_API_V4_URL": stub.address,
            "CI_MERGE_REQUEST_IID": "5",
            "CI_MERGE_REQUEST_PROJECT_ID": "3",
            "CI_MERGE_REQUEST_DIFF_BASE_SHA": git(request.author, "rev-parse", "main"),
            "PREFLIGHT_COMMENT_TOKEN": TOKEN,
            "no_proxy": "*",
        }
        return subprocess.run(
            ["bash", "-c", "set -eo pipefail\n" + "\n".join(job["script"])],
            cwd=request.checkout(),
            env={**os.environ, **job["variables"], **variables},
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )

    done = pipeline()
    assert done.returncode == 1 and "comment written" in done.stderr, done.stderr
    assert len(stub.ours) == 1 and "1 new finding" in stub.ours[0]
    request.push(GOOD + "# fixed\n")
    done = pipeline()
    assert "comment updated" in done.stderr, done.stderr
    assert len(stub.ours) == 1 and "is fixed" in stub.ours[0]
