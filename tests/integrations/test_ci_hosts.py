"""The GitHub action is valid, safe against its inputs, and its steps work, run one by one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integrations.rest_stub import TOKEN, Stub, rest_stub
from tests.integrations.runner import Runner
from tools.transcripts import steps

pytestmark = pytest.mark.thorough


ROOT = Path(__file__).resolve().parents[2]


ACTION = ROOT / "action.yml"


BROKEN = ROOT / "examples" / "torchrun-two-nodes" / "broken"


GOOD = ROOT / "examples" / "torchrun-two-nodes" / "good"


Start = Callable[..., Runner]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """A runner whose install step is already done: preflight as it is here."""

    def started(job: Path = BROKEN) -> Runner:
        shutil.copytree(job, tmp_path / "workspace" / "jobs")
        private = tmp_path / "temporary" / "preflight.installed"
        installed = private / "venv" / "bin"
        installed.mkdir(parents=True)
        (installed / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
        (installed / "python").chmod(0o755)
        outputs = {"install": {"private": str(private)}}
        return Runner(ACTION, tmp_path / "workspace", tmp_path / "temporary", outputs=outputs)

    return started


def test_action_follows_its_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-actions", str(ACTION)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_inputs_are_not_interpolated_into_scripts() -> None:
    for step in yaml.safe_load(ACTION.read_text())["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), step["id"]


def test_a_fault_fails_the_step_after_the_report_was_uploaded(start: Start) -> None:
    runner = start()
    assert runner.run(skip=("install",), paths="jobs") == 1
    assert (runner.output("verdict"), runner.output("sarif")) == ("no-go", "preflight.sarif")
    upload = runner.step("upload")
    assert upload is not None and upload.given == {"sarif_file": "preflight.sarif", "category": "preflight"}
    log = json.loads((runner.workspace / "preflight.sarif").read_text())
    assert {"RDV001"} <= {result["ruleId"] for result in log["runs"][0]["results"]}
    assert "RDV001" in runner.summary and "no-go" in runner.summary.replace("\\", "")


def test_a_good_job_passes(start: Start) -> None:
    runner = start(GOOD)
    assert runner.run(skip=("install",)) == 0
    assert runner.output("verdict") == "go"


def test_inputs_are_used(start: Start) -> None:
    runner = start(GOOD)
    (runner.workspace / "own.toml").write_text('[severity]\nRDV = "info"\n')
    shutil.copytree(BROKEN, runner.workspace / "other jobs")
    code = runner.run(
        skip=("install",), paths="jobs\nother jobs\n", config="own.toml", sarif="out put.sarif", upload="false"
    )
    assert (code, runner.output("verdict")) == (0, "go")
    assert runner.step("upload") is None
    assert "other jobs/run.sh" in (runner.workspace / "out put.sarif").read_text().replace("%20", " ")


def test_a_stricter_gate(start: Start) -> None:
    runner = start()
    (runner.workspace / "own.toml").write_text('ignore = ["RDV001"]\n')
    assert runner.run(skip=("install",), config="own.toml") == 0
    assert runner.run(skip=("install",), config="own.toml", fail_on="warning") == 1


@pytest.mark.parametrize("hostile", ['"; touch owned; "', "$(touch owned)", "`touch owned`", "x\nverdict=go", "-o"])
def test_inputs_are_passed_as_single_arguments(start: Start, hostile: str) -> None:
    runner = start()
    code = runner.run(skip=("install",), paths=hostile, sarif=hostile)
    assert code != 0 and runner.output("verdict") in ("failed", "nothing")
    assert runner.summary
    assert not list(runner.workspace.rglob("owned"))


def test_folder_without_a_job_does_not_pass(start: Start) -> None:
    runner = start()
    (runner.workspace / "empty").mkdir()
    assert runner.run(skip=("install",), paths="empty") == 4
    assert runner.output("verdict") == "not-judged"


def test_report_contains_no_runner_commands(start: Start) -> None:
    runner = start()
    runner.run(skip=("install",))
    lint = runner.step("lint")
    assert lint is not None
    lines = lint.output.splitlines()
    assert "::error" not in lint.output
    (token,) = re.findall(r"^::stop-commands::([0-9a-f]{32})$", lint.output, re.MULTILINE)
    assert (lines[0], lines[-1]) == (f"::stop-commands::{token}", f"::{token}::")


def test_without_code_scanning_findings_are_annotations(start: Start) -> None:
    runner = start()
    assert runner.run(skip=("install",), upload="false") == 1
    lint = runner.step("lint")
    assert lint is not None and runner.step("upload") is None
    (token,) = re.findall(r"^::stop-commands::([0-9a-f]{32})$", lint.output, re.MULTILINE)
    report, _, behind = lint.output.partition(f"::{token}::\n")
    assert "::error" not in report
    assert re.search(r"^::error file=jobs/run\.sh,line=7,.*RDV001", behind, re.MULTILINE)


def test_a_report_in_a_folder_of_the_workspace(start: Start) -> None:
    runner = start()
    (runner.workspace / "out").mkdir()
    assert runner.run(skip=("install",), sarif="out/report.sarif") == 1
    assert runner.output("sarif") == "out/report.sarif" and (runner.workspace / "out" / "report.sarif").stat().st_size


def test_symbolic_links_of_the_checkout_are_not_followed(start: Start, tmp_path: Path) -> None:
    runner = start()
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (runner.workspace / "preflight.sarif").symlink_to(precious)
    assert runner.run(skip=("install",)) == 1
    assert precious.read_text() == "mine" and not (runner.workspace / "preflight.sarif").is_symlink()
    assert "RDV001" in (runner.workspace / "preflight.sarif").read_text()


@pytest.mark.parametrize("name", ["out/report.sarif", "../report.sarif", "ABSOLUTE/report.sarif", "jobs", "no/such/a"])
def test_no_report_is_written_outside_the_workspace(start: Start, tmp_path: Path, name: str) -> None:
    runner = start()
    outside = tmp_path / "outside"
    outside.mkdir()
    (runner.workspace / "out").symlink_to(outside)
    code = runner.run(skip=("install",), sarif=name.replace("ABSOLUTE", str(outside)))
    assert (code, runner.output("verdict"), runner.output("sarif")) == (2, "failed", "")
    assert not list(outside.iterdir()) and not (tmp_path / "report.sarif").exists()
    lint = runner.step("lint")
    assert lint is not None and "sarif is not a file in a folder of the workspace" in lint.output


def test_report_file_of_the_checkout_is_not_uploaded(start: Start) -> None:
    runner = start()
    (runner.workspace / "preflight.sarif").write_text("forged")
    assert runner.run(skip=("install",), config="no-such.toml") == 2
    assert runner.output("sarif") == "" and runner.step("upload") is None


@pytest.mark.parametrize("version", ["1; touch owned", "../x", "1 --pre", "git+https://x"])
def test_invalid_versions_are_rejected(start: Start, version: str) -> None:
    runner = start()
    assert runner.run(version=version) == 2
    install = runner.step("install")
    assert install is not None and "expected digits and points" in install.output
    assert runner.step("lint") is None


def test_the_workflow_of_the_documentation_is_valid_and_uses_inputs_that_exist(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "start" / "ci.md").read_text()
    (text,) = [step.text for step in steps(page) if step.file == ".github/workflows/preflight.yml"]
    path = tmp_path / "preflight.yml"
    path.write_text(text)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout
    given = yaml.safe_load(text)["jobs"]["lint"]["steps"][-1]["with"]
    action = yaml.safe_load(ACTION.read_text())
    assert set(given) <= set(action["inputs"])
    listed = set(re.findall(r"^\| `([a-z-]+)` \|", (ROOT / "docs" / "integrations.md").read_text(), re.MULTILINE))
    assert set(action["inputs"]) <= listed


# The GitLab CI template is valid, and its commands work, run one by one as by a runner.


TEMPLATE = ROOT / "integrations" / "gitlab" / "preflight.gitlab-ci.yml"


def job() -> dict[str, Any]:
    """The job of the template."""
    document = yaml.safe_load(TEMPLATE.read_text())
    assert list(document) == ["preflight"]
    found: dict[str, Any] = document["preflight"]
    return found


def run(folder: Path, example: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script in a clone of a project, with this checkout of preflight installed."""
    shutil.copytree(example, folder / "clone" / "jobs")
    installed = folder / "venv" / "bin"
    installed.mkdir(parents=True)
    (installed / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (installed / "python").chmod(0o755)
    # A runner passes all commands to one shell, which stops at the first failure.
    script = "set -eo pipefail\n" + "\n".join(job()["script"])
    environment = {**os.environ, "preflight_home": str(folder), **job()["variables"], **variables}
    return subprocess.run(
        ["bash", "-c", script],
        cwd=folder / "clone",
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_template_follows_its_schema(tmp_path: Path) -> None:
    def checked(path: Path) -> int:
        words = ["--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", str(path)]
        command = [sys.executable, "-m", "check_jsonschema", *words]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    assert checked(TEMPLATE) == 0
    wrong = tmp_path / ".gitlab-ci.yml"
    wrong.write_text(TEMPLATE.read_text().replace("when: always", "when: sometimes"))
    assert checked(wrong) == 1


def test_fault_fails_the_job_and_is_in_every_report(tmp_path: Path) -> None:
    done = run(tmp_path, BROKEN)
    assert done.returncode == 1, done.stderr
    assert "RDV001" in done.stdout
    artifacts = job()["artifacts"]
    quality = json.loads((tmp_path / "clone" / artifacts["reports"]["codequality"]).read_text())
    (fault,) = [one for one in quality if "RDV001" in one["check_name"]]
    assert (fault["location"]["path"], fault["severity"]) == ("jobs/run.sh", "critical")
    suites = ElementTree.parse(tmp_path / "clone" / artifacts["reports"]["junit"])
    assert [case for case in suites.iter("testcase") if case.find("failure") is not None]
    for path in artifacts["paths"]:
        assert (tmp_path / "clone" / path).stat().st_size
    assert artifacts["when"] == "always"


def test_gitlab_a_good_job_passes(tmp_path: Path) -> None:
    assert run(tmp_path, GOOD).returncode == 0


def test_variables_select_paths_and_options(tmp_path: Path) -> None:
    done = run(tmp_path, BROKEN, PREFLIGHT_PATHS="jobs/run.sh jobs/*.py", PREFLIGHT_OPTIONS="--ignore RDV001 --quiet")
    assert done.returncode == 0 and "RDV001" not in done.stdout


def test_a_file_of_the_checkout_becomes_no_option(tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    (tmp_path / "clone" / "--ignore=RDV001").write_text("")
    done = run(tmp_path, BROKEN, PREFLIGHT_OPTIONS="--*=RDV001")
    assert done.returncode == 2 and "--*" in done.stderr


@pytest.mark.parametrize("hostile", ["$(touch owned)", "; touch owned", "`touch owned`"])
def test_gitlab_inputs_are_passed_as_single_arguments(tmp_path: Path, hostile: str) -> None:
    assert run(tmp_path, BROKEN, PREFLIGHT_PATHS=hostile).returncode != 0
    assert not list(tmp_path.rglob("owned"))


@pytest.mark.parametrize(
    ("variables", "installed"),
    [
        ({}, "preflight-train==0.1.0"),
        ({"PREFLIGHT_PACKAGE": "preflight-train==0.2.0"}, "preflight-train==0.2.0"),
        ({"PREFLIGHT_REQUIREMENTS": "/etc/a file"}, "--require-hashes --requirement /etc/a file"),
    ],
)
def test_installed_package(tmp_path: Path, variables: dict[str, str], installed: str) -> None:
    """A stub for Python records its arguments; old reports and links of the clone are removed."""
    (tmp_path / "python").write_text(
        '#!/bin/sh\nif [ "$3" = venv ]; then mkdir -p "$4/bin" && cp "$0" "$4/bin/python"; else echo "$@"; fi\n'
    )
    (tmp_path / "python").chmod(0o755)
    clone = tmp_path / "clone"
    clone.mkdir()
    (tmp_path / "precious").write_text("mine")
    (clone / "preflight.sarif").symlink_to(tmp_path / "precious")
    (clone / "gl-code-quality-report.json").write_text("forged")
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "CI_PROJECT_DIR": str(clone),
        **job()["variables"],
        **variables,
    }
    script = "set -e\n" + "\n".join([*job()["before_script"], "pwd"])
    # The image's shell may be any.
    done = subprocess.run(
        ["sh", "-c", script], cwd=clone, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    pip, here = done.stdout.splitlines()
    assert pip == f"-I -m pip install --quiet --disable-pip-version-check --only-binary :all: {installed}"
    assert here == str(clone)
    assert not list(clone.iterdir()) and (tmp_path / "precious").read_text() == "mine"


# A pull request on a bare git server gets one comment from the steps of the action, and a fix updates it.


COMMENT_GOOD = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=node1 train.py\n"


FAULTY = COMMENT_GOOD.replace("node1", "localhost")


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
        self.push(COMMENT_GOOD, "main", "jobs")
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

    request.push(COMMENT_GOOD.replace("nnodes=2", "nnodes=4"))
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
    request.push(COMMENT_GOOD + "# harmless\n")
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
    request.push(COMMENT_GOOD + "# fixed\n")
    done = pipeline()
    assert "comment updated" in done.stderr, done.stderr
    assert len(stub.ours) == 1 and "is fixed" in stub.ours[0]


# The hook, run by pre-commit from a local clone: it installs this repository with pip, and rejects a commit.


def hook_git(folder: Path, *words: str) -> str:
    """Run a git command in a folder, with a dummy author."""
    who = ["-c", "user.name=nobody", "-c", "user.email=nobody@example.org", "-c", "protocol.file.allow=always"]
    command = ["git", *who, *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


def test_hook_rejects_a_broken_job_and_accepts_a_good_one(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not in a git checkout")
    hook_git(tmp_path, "clone", "--quiet", "--depth=1", f"file://{ROOT}", "clone")
    revision = hook_git(tmp_path / "clone", "rev-parse", "HEAD")
    mine = tmp_path / "mine"
    shutil.copytree(BROKEN, mine / "jobs")
    (mine / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {tmp_path / 'clone'}\n    rev: {revision}\n    hooks: [{{id: preflight-lint}}]\n"
    )
    hook_git(mine, "init", "--quiet")
    hook_git(mine, "add", ".")
    # The machine decides where packages come from: PIP_* and proxies are passed on with everything else.
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "home"), "PRE_COMMIT_COLOR": "never"}
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "pre_commit", "run", "--all-files"]

    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=mine, env=environment, capture_output=True, text=True, timeout=170, check=False
        )

    stopped = run()
    assert stopped.returncode == 1 and "RDV001" in stopped.stdout, stopped.stdout + stopped.stderr
    for path in GOOD.iterdir():
        shutil.copy(path, mine / "jobs")
    hook_git(mine, "add", ".")
    passed = run()
    assert passed.returncode == 0 and "Passed" in passed.stdout, passed.stdout
