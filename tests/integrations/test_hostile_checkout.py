"""No integration executes anything of a hostile checkout: the real steps run in and on a tree of traps."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from lsprotocol import types
from pathspec import PathSpec
from pytest_lsp import make_test_lsp_client

from tests.integrations.hostile import ROOT, Trap, python_that_lends, trap
from tests.integrations.runner import Runner
from tests.services.language_server.editor import Editor

pytestmark = pytest.mark.thorough


SURROUNDINGS = ("plain", "python-variables")


@pytest.fixture
def planted(tmp_path: Path) -> Trap:
    """A checkout full of traps."""
    return trap(tmp_path / "checkout")


def test_the_traps_work(planted: Trap, tmp_path: Path) -> None:
    """The traps work: a careless command does execute them."""
    careless = [sys.executable, "-m", "venv", str(tmp_path / "v")]
    subprocess.run(careless, cwd=planted.checkout, capture_output=True, timeout=60, check=False)
    assert planted.executed
    subprocess.run(["git", "status"], cwd=planted.checkout, capture_output=True, timeout=60, check=False)
    assert ".git/hostile" in planted.executed
    environment = {**os.environ, **planted.environment}
    subprocess.run([sys.executable, "-c", ""], env=environment, capture_output=True, timeout=60, check=False)
    assert "encodings/__init__.py" in planted.executed


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_the_action(planted: Trap, tmp_path: Path, surroundings: str) -> None:
    (tmp_path / "temporary").mkdir()
    environment = {"PATH": f"{python_that_lends(tmp_path / 'tools')}:/usr/bin:/bin"}
    if surroundings != "plain":
        environment |= planted.environment
    runner = Runner(ROOT / "action.yml", planted.checkout, tmp_path / "temporary", environment)
    code = runner.run(paths="jobs/run.sh\njobs/train.py", upload="false")
    output = "\n".join(step.output for step in runner.ran)
    assert planted.executed == [], output
    assert (code, runner.output("verdict")) == (1, "no-go"), output


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_the_template_for_gitlab(planted: Trap, tmp_path: Path, surroundings: str) -> None:
    job = yaml.safe_load((ROOT / "integrations" / "gitlab" / "preflight.gitlab-ci.yml").read_text())["preflight"]
    environment = {
        **os.environ,
        "PATH": f"{python_that_lends(tmp_path / 'tools')}:/usr/bin:/bin",
        "PIP_NO_BUILD_ISOLATION": "0",
        "CI_PROJECT_DIR": str(planted.checkout),
        **job["variables"],
        "PREFLIGHT_PACKAGE": str(ROOT),
        "PREFLIGHT_PATHS": "jobs/run.sh jobs/train.py",
    }
    if surroundings != "plain":
        environment |= planted.environment
    # The package is built from a folder here; from an index only wheels are accepted.
    steps = [step.replace("--only-binary :all:", "") for step in (*job["before_script"], *job["script"])]
    script = "set -eo pipefail\n" + "\n".join(steps)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=planted.checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert planted.executed == [], done.stderr
    assert done.returncode == 1 and "RDV001" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("surroundings", SURROUNDINGS)
def test_the_hook_of_pre_commit(planted: Trap, tmp_path: Path, surroundings: str) -> None:
    """Run its entry as pre-commit does: in the repository, with the hook's environment first in the path."""
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    if surroundings != "plain":
        environment |= planted.environment
    done = subprocess.run(
        [*hook["entry"].split(), *hook.get("args", ()), "jobs/run.sh", "jobs/train.py"],
        cwd=planted.checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert planted.executed == [], done.stderr
    assert done.returncode == 1 and "RDV001" in done.stdout, done.stderr


# --- preflight by itself, and what starts it ---


def run(words: list[str], planted: Trap, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command in the checkout, with preflight and stubs of the other programs first in the path."""
    folder.mkdir(exist_ok=True)
    for name in ("sbatch", "kubectl"):
        (folder / name).write_text(f"#!/bin/sh\necho {name} ran\n")
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(folder), **more}
    given = (planted.checkout / "jobs" / "run.sh").read_text() if "apply" in words[0] else ""
    return subprocess.run(
        words,
        cwd=planted.checkout,
        env=environment,
        input=given,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(
    "words",
    [
        ["preflight", "lint", "jobs/run.sh"],
        ["preflight", "lint"],
        ["preflight", "lint", "--jobs", "4"],
        ["preflight", "lint", "--fix", "--unsafe-fixes"],
        ["preflight", "lint", "--since", "HEAD"],
        ["preflight", "comment", "--since", "HEAD"],
        ["preflight", "baseline", "write"],
        ["preflight", "init", "--print"],
        ["preflight", "check", "jobs/run.sh", "--on", "local", "--hosts", "local", "--until", "node"],
        ["preflight", "doctor"],
        ["preflight", "diagnose", "jobs"],
        [sys.executable, "-I", "-m", "preflight", "lint", "jobs/run.sh"],
        [sys.executable, "-P", "-m", "preflight", "lint", "jobs/run.sh"],
    ],
    ids=lambda words: " ".join(Path(word).name for word in words)[:40],
)
def test_preflight_itself(planted: Trap, tmp_path: Path, words: list[str]) -> None:
    if "-P" in words and sys.version_info < (3, 11):
        pytest.skip("-P is of Python 3.11")
    done = run(words, planted, tmp_path / "tools")
    assert planted.executed == [], done.stderr
    assert done.returncode in (0, 1, 3, 4), done.stderr


@pytest.mark.parametrize("verb", ["lint", "comment"])
def test_a_missing_object_is_not_fetched(planted: Trap, tmp_path: Path, verb: str) -> None:
    """git would start the program that the repository names as its remote."""
    run_sh = planted.checkout / "jobs" / "run.sh"
    made = subprocess.run(["git", "hash-object", "--no-filters", run_sh], capture_output=True, text=True, check=True)
    name = made.stdout.strip()
    (planted.checkout / ".git" / "objects" / name[:2] / name[2:]).unlink()
    run_sh.write_text(run_sh.read_text() + "# changed\n")
    done = run(["preflight", verb, "--since", "HEAD"], planted, tmp_path / "tools")
    assert planted.executed == [], done.stderr
    assert "jobs/run.sh at that commit is not in this clone" in done.stderr + done.stdout


def test_a_search_path_that_leads_into_the_checkout(planted: Trap, tmp_path: Path) -> None:
    preflight = Path(sys.executable).with_name("preflight")
    words = [str(preflight), "check", "jobs/run.sh", "--on", "local", "--hosts", "local", "--until", "node"]
    done = run(words, planted, tmp_path / "tools", PATH=":.:bin:/usr/bin:/bin")
    assert planted.executed == [], done.stderr


def test_the_language_server(planted: Trap, tmp_path: Path) -> None:
    """An editor starts it in the folder that it opens, and asks for everything."""
    environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(tmp_path / "home")}

    async def edit() -> None:
        client = make_test_lsp_client()
        await client.start_io("preflight", "lsp", cwd=planted.checkout, env=environment)
        editor = Editor(client, planted.checkout)
        folder = types.WorkspaceFolder(planted.checkout.as_uri(), "checkout")
        await client.initialize_session(
            types.InitializeParams(capabilities=types.ClientCapabilities(), workspace_folders=[folder])
        )
        text = await editor.open("jobs/run.sh")
        for path in sorted(planted.checkout.glob("*.toml")):
            await editor.open(path.name)
        await editor.until(lambda: "RDV001" in editor.ids("jobs/run.sh"))
        editor.type("jobs/run.sh", text + "$(touch here) `preflight` & source ./python\n")
        assert await editor.hover("jobs/run.sh", text, "--nnodes")
        assert await editor.actions("jobs/run.sh", text, "GLOO_SOCKET")
        await editor.definitions("jobs/run.sh", text, "--nnodes")
        await editor.references("jobs/run.sh", text, "--nnodes")
        await client.shutdown_session()

    asyncio.run(asyncio.wait_for(edit(), 120))
    assert planted.executed == []


@pytest.mark.parametrize("variables", [False, True])
def test_spool_and_apply(planted: Trap, tmp_path: Path, variables: bool) -> None:
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "1.sbatch").write_text((planted.checkout / "jobs" / "run.sh").read_text())
    more = planted.environment if variables else {}
    folder = ROOT / "integrations"
    done = run(
        [str(folder / "slurm" / "spool"), str(tmp_path / "spool"), str(tmp_path / "log")], planted, tmp_path, **more
    )
    assert done.returncode == 0 and "RDV001" in (tmp_path / "log").read_text(), done.stderr
    done = run([str(folder / "kubernetes" / "apply")], planted, tmp_path, **more)
    assert "RDV001" in done.stderr and "nothing was applied" in done.stderr, done.stderr
    assert planted.executed == []


@pytest.mark.parametrize("variables", [{}, {"PATH": "", "PYTHONPATH": ".:", "PYTHONSTARTUP": "click.py"}])
def test_psbatch(planted: Trap, tmp_path: Path, variables: dict[str, str]) -> None:
    tools = tmp_path / "tools"
    if "PATH" in variables:
        variables = {**variables, "PATH": f":.:{tools}:{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = run([str(ROOT / "integrations" / "slurm" / "psbatch"), "jobs/run.sh"], planted, tools, **variables)
    assert planted.executed == [], done.stderr
    assert done.returncode == 1 and "RDV001" in done.stderr, done.stderr


@pytest.mark.parametrize("variables", [False, True])
def test_the_prolog(planted: Trap, tmp_path: Path, variables: bool) -> None:
    log, conf = tmp_path / "log", tmp_path / "conf"
    preflight = Path(sys.executable).with_name("preflight")
    conf.write_text(f"PREFLIGHT={preflight} PREFLIGHT_LOG={log}\n")
    more = planted.environment if variables else {}
    prolog = os.path.relpath(ROOT / "integrations" / "slurm" / "prolog", planted.checkout)
    done = run(
        ["/bin/sh", prolog], planted, tmp_path / "tools", PREFLIGHT_CONF=str(conf), PREFLIGHT_LIMIT_S="60", **more
    )
    assert planted.executed == [], done.stderr
    assert "preflight ended with" in log.read_text()


@pytest.mark.parametrize("variables", [False, True])
def test_the_health_check(planted: Trap, tmp_path: Path, variables: bool) -> None:
    log, conf = tmp_path / "log", tmp_path / "conf"
    preflight = Path(sys.executable).with_name("preflight")
    conf.write_text(f"PREFLIGHT={preflight} PREFLIGHT_LOG={log}\n")
    more = planted.environment if variables else {}
    program = os.path.relpath(ROOT / "integrations" / "slurm" / "health-check", planted.checkout)
    done = run(["/bin/sh", program], planted, tmp_path / "tools", PREFLIGHT_CONF=str(conf), **more)
    assert planted.executed == [], done.stderr
    assert "preflight ended with" in log.read_text()


def test_the_plugin_of_slurm(planted: Trap, tmp_path: Path) -> None:
    """Run the line that slurmctld passes to the shell, in a hostile working directory and environment."""
    text = (ROOT / "integrations" / "slurm" / "job_submit.lua").read_text()
    made = text[text.index("local line = string.format(") : text.index("DEADLINE_S, PREFLIGHT, SPOOL, path)")]
    line = "".join(json.loads(f'"{piece}"') for piece in re.findall(r'"((?:[^"\\]|\\.)*)"', made))
    spool = tmp_path / "spool"
    spool.mkdir()
    (spool / "1.sbatch").write_text((planted.checkout / "jobs" / "run.sh").read_text())
    preflight = Path(sys.executable).with_name("preflight")
    line = line % (30, preflight, spool, spool / "1.sbatch")
    done = run(["/bin/sh", "-c", line], planted, tmp_path / "tools", **planted.environment)
    assert planted.executed == [], done.stdout
    assert "RDV001" in done.stdout and done.stdout.endswith("ended 1\n")


@pytest.mark.parametrize("name", ["init-container.yaml", "job-beside.yaml"])
def test_the_manifests_for_kubernetes(planted: Trap, tmp_path: Path, name: str) -> None:
    """Run the container's command in a working directory with modules of these names.

    Variables are not hostile here: `--python` requests the ranks' own interpreter in the pod's own environment.
    """
    documents = list(yaml.safe_load_all((ROOT / "integrations" / "kubernetes" / name).read_text()))
    (pod,) = [one["spec"]["template"]["spec"] for one in documents if one["kind"] == "Job"]
    (container, *_) = pod.get("initContainers", pod["containers"])
    (config,) = [one for one in documents if one["kind"] == "ConfigMap"]
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    for item, text in zip(("job.yaml", "train.py"), config["data"].values(), strict=True):
        (mounted / item).write_text(text)
    (shell, option, line) = container["command"]
    line = line.replace("/preflight", str(mounted)).replace("--trust-job", "")
    done = run([shell, option, line], planted, tmp_path / "tools")
    assert planted.executed == [], done.stderr
    assert done.returncode in (0, 1, 3), done.stderr


def test_the_completion_starts_no_file_of_the_folder(planted: Trap, tmp_path: Path) -> None:
    """Completion does not run a program typed with a path, `bin/preflight`."""
    script = ROOT / "integrations" / "completion" / "preflight.bash"
    typed = f"source {shlex.quote(str(script))}; COMP_WORDS=(bin/preflight li) COMP_CWORD=1; "
    done = run(
        ["bash", "-c", typed + "_preflight_completion bin/preflight; echo ${COMPREPLY[*]}"], planted, tmp_path / "t"
    )
    assert planted.executed == []
    assert done.stdout == "lint\n", done.stderr


def test_everything_from_others_is_pinned() -> None:
    """Actions are pinned by commit, images by digest, packages by hash or exact version."""
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "action.yml"]
    pages += (ROOT / ".github").rglob("*.yml")
    for page in pages:
        for used in re.findall(r"^\s*(?:- )?uses: (\S+)", page.read_text(), re.MULTILINE):
            assert used.startswith("OWNER/") or re.fullmatch(r"[\w./-]+@[0-9a-f]{40}", used), f"{page}: {used}"
    for path in (ROOT / "integrations").rglob("*"):
        if path.suffix in (".yml", "") and path.is_file():
            for image in re.findall(r"^(?:FROM|\s*image:) (\S+)", path.read_text(), re.MULTILINE):
                assert re.search(r"@sha256:[0-9a-f]{64}$", image), f"{path}: {image}"
    locks = ("integrations/requirements.txt", ".github/release-requirements.txt")
    for line in (line for name in locks for line in (ROOT / name).read_text().splitlines()):
        assert re.match(r"\s*#|[\w.-]+==[\w.]+ (?:; .*)?\\$|    --hash=sha256:[0-9a-f]{64}(?: \\)?$", line), line


# The container file passes its linter, and its steps run in a folder.


CONTAINER_ROOT = Path(__file__).resolve().parents[2]


FILE = CONTAINER_ROOT / "integrations" / "container" / "Containerfile"


IGNORED = FILE.with_name("Containerfile.dockerignore")


def steps() -> list[tuple[str, str]]:
    """The instructions of the file, each with its arguments on one line."""
    text = re.sub(r"\\\n\s*", " ", re.sub(r"^#.*\n", "", FILE.read_text(), flags=re.MULTILINE))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in text.splitlines() if line]


def context() -> set[str]:
    """The files of the build context."""
    left_out = PathSpec.from_lines("gitignore", IGNORED.read_text().splitlines())
    done = subprocess.run(
        ["git", "ls-files"], cwd=CONTAINER_ROOT, capture_output=True, text=True, timeout=30, check=False
    )
    if done.returncode:
        pytest.skip("not in a git checkout")
    return {name for name in done.stdout.splitlines() if not left_out.match_file(name)}


def test_linter_reports_nothing() -> None:
    hadolint = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not hadolint.exists():
        pytest.skip("hadolint is not installed")
    done = subprocess.run([str(hadolint), str(FILE)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_image_runs_preflight_as_a_numeric_user() -> None:
    said = dict(steps())
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", said["USER"])
    assert said["ENTRYPOINT"] == '["/opt/preflight/bin/python", "-I", "-m", "preflight"]'
    bases = [arguments for instruction, arguments in steps() if instruction == "FROM"]
    assert all(re.match(r"docker\.io/library/python:3\.12-slim@sha256:[0-9a-f]{64}\b", base) for base in bases)


def test_build_context_holds_only_what_the_build_needs() -> None:
    seen = context()
    assert {"pyproject.toml", "README.md", "LICENSE", "preflight/cli/main.py"} <= seen
    assert {"checks/preflight_checks/__init__.py", "rules/preflight_rules/__init__.py"} <= seen
    assert not [name for name in seen if name.startswith((".", "tests/", "docs/", "examples/"))]


def test_build_steps_produce_a_working_preflight(tmp_path: Path) -> None:
    for name in context():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CONTAINER_ROOT / name, tmp_path / "source" / name)
    (line,) = [arguments for instruction, arguments in steps() if instruction == "RUN"]
    opened = tmp_path / "opt"
    line = line.replace("/opt/preflight", str(opened)).replace("/source", str(tmp_path / "source"))
    # The working directory of the line, /opt in the image, is a hostile one here.
    planted = trap(tmp_path / "work")
    environment = {"PATH": f"{python_that_lends(tmp_path / 'tools')}:/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=planted.checkout,
        env=environment,
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entry = json.loads(dict(steps())["ENTRYPOINT"].replace("/opt/preflight", str(opened)))
    for more in ({}, planted.environment):
        done = subprocess.run(
            [*entry, "lint", "jobs"],
            cwd=planted.checkout,
            env={**environment, **more},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 1 and "RDV001" in done.stdout, done.stderr
    assert planted.executed == []
