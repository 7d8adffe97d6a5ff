"""The configurations in README and docs are valid, and every option they name exists."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import click
import pytest

from preflight import api
from preflight._util.toml import parse as loads
from preflight.cli import main
from preflight.commands import rule_docs
from preflight.config.document import Settings, validate_settings
from preflight.config.resolve import Choices
from preflight.engine.report import Report
from preflight.model.findings import Severity, VerdictKind
from preflight.plugins.installed import all_items
from preflight.plugins.site.loader import parse

ROOT = Path(__file__).parent.parent
PAGES = {
    name: (ROOT / name).read_text()
    for name in (
        "README.md",
        *(f"docs/{page}.md" for page in ("configuration", "formats", "using", "reads", "integrations")),
    )
}


def blocks(page: str) -> list[str]:
    """The TOML blocks of a page."""
    return re.findall(r"^```toml\n(.*?)^```", PAGES[page], re.MULTILINE | re.DOTALL)


def options_of(command: click.Command) -> set[str]:
    """Every option of a command and of those below it."""
    found = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        found |= options_of(inner)
    return found


def test_the_shown_configuration_is_valid(tmp_path: Path) -> None:
    (block,) = blocks("docs/using.md")
    (tmp_path / "preflight.toml").write_text(block)
    chosen = api.configure(Choices(file=tmp_path / "preflight.toml"), [tmp_path]).configuration
    assert chosen.waivers[0].owner == "fabric"


def test_the_documented_site_rule_and_check_are_valid() -> None:
    rule, check = blocks("docs/configuration.md")
    assert parse(rule, "site.toml").rules[0].when[0].about == "launch"
    assert parse(check, "site.toml").checks[0].command == ("mountpoint", "-q", "/scratch")


@pytest.mark.parametrize("page", PAGES)
def test_every_named_option_exists(page: str) -> None:
    named = set(re.findall(r"(?<![\w/-])--[a-z][a-z-]+", re.sub(r"```yaml.*?```", "", PAGES[page], flags=re.DOTALL)))
    # Options of other programs: launchers in quoted reports, sbatch, kubectl, podman.
    named -= {"--data-binary", "--nnodes", "--nodes", "--job-name", "--namespace", "--network", "--rm", "--ignorefile"}
    named -= {"--from"}
    assert named - options_of(main.cli) == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_to_a_file(page: str) -> None:
    # The pages about rules and checks are built, not committed.
    built = {ROOT / "docs" / "rules" / name for name in rule_docs.pages(all_items())}
    for target in re.findall(r"\]\((?!https?://)([^)#]+)", PAGES[page]):
        path = ((ROOT / page).parent / target).resolve()
        assert path in built or path.exists(), target


def test_readme_is_short_and_links_every_audience() -> None:
    assert len(PAGES["README.md"].splitlines()) <= 75
    led_to = set(re.findall(r"\]\(docs/([^)#]+)", PAGES["README.md"]))
    assert {f"start/{path.name}" for path in (ROOT / "docs" / "start").glob("*.md")} <= led_to


def test_every_key_is_documented() -> None:
    documented = set(re.findall(r"`([a-z-]+)`", PAGES["docs/configuration.md"]))
    assert {item.name for item in fields(Settings)} <= {key.replace("-", "_") for key in documented}
    assert isinstance(validate_settings(loads("")), Settings)


def test_shell_completion_works(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("_PREFLIGHT_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "preflight lint --stat")
    monkeypatch.setenv("COMP_CWORD", "2")
    with pytest.raises(SystemExit):
        main.run([])
    assert "--statistics" in capfd.readouterr().out


def test_the_hook_runs_an_existing_command() -> None:
    import yaml

    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    *command, verb = hook["entry"].split()
    assert (command, verb in main.cli.commands, hook["pass_filenames"]) == (
        ["python", "-I", "-m", "preflight"],
        True,
        False,
    )


# The examples that ship with preflight: good ones have no findings, and every planted fault is found at its location.


EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
NAMES = sorted(path.parent.name for path in EXAMPLES.glob("*/good"))


@dataclass(frozen=True)
class Planted:
    """A fault that only `broken` has; `word` is the text at its location in the file."""

    id: str
    path: str
    line: int
    column: int
    word: str


PLANTED: dict[str, tuple[Planted, ...]] = {
    "deepspeed-hostfile": (
        Planted("BAT001", "ds_config.json", 2, 23, "100"),
        Planted("HST001", "hostfile", 3, 1, "node1 "),
        Planted("PRT001", "run.sh", 15, 5, "--master_port 295010"),
        Planted("DAT001", "train.py", 22, 15, "DistributedSampler("),
    ),
    "kubernetes-job": (
        Planted("WLD001", "job.yaml", 28, 15, "--nnodes=4"),
        Planted("GPU001", "job.yaml", 29, 15, "--nproc_per_node=8"),
        Planted("KUB002", "job.yaml", 40, 31, "4"),
    ),
    "megatron-slurm": (
        Planted("BAT004", "pretrain_gpt.sbatch", 32, 5, "--global-batch-size 250"),
        Planted("IFN001", "env.sh", 2, 8, "NCCL_SOCKET_IFNAME=lo"),
        Planted("WLD001", "pretrain_gpt.sbatch", 19, 5, "--nnodes 8"),
        Planted("ENV001", "env.sh", 4, 8, "NCCL_IB_TIMEOUTT=22"),
    ),
    "paddle-ps": (
        Planted("PPS001", "start.sh", 9, 8, "PADDLE_TRAINER_ENDPOINTS="),
        Planted("PPS002", "start.sh", 24, 31, "PADDLE_TRAINER_ID=2"),
        Planted("PPS004", "start.sh", 18, 31, "POD_IP=10.77.0.9"),
    ),
    "torchrun-two-nodes": (
        Planted("RDV001", "run.sh", 7, 5, "--master_addr=localhost"),
        Planted("ENV001", "run.sh", 4, 8, "GLOO_SOCKET_IFNAM=eth0"),
    ),
}

#: Consequences of a planted fault: a host listed twice leaves the launch one host short.
CONSEQUENCES: dict[str, tuple[Planted, ...]] = {
    "deepspeed-hostfile": (Planted("WLD002", "run.sh", 12, 5, "--num_nodes 2"),),
    # The misspelt variable leaves gloo without an interface.
    "torchrun-two-nodes": (Planted("PGR001", "train.py", 18, 29, '"gloo"'),),
}


def lint_report(folder: Path) -> Report:
    return api.lint([folder], root=folder)


def places(report: Report) -> set[tuple[str, str, int, int]]:
    """Rule and first location of every finding above info."""
    return {
        (f.id, f.locations[0].path, f.locations[0].line, f.locations[0].column)
        for f in report.findings
        if f.severity is not Severity.INFO
    }


@pytest.mark.parametrize("name", NAMES)
def test_a_good_example_is_silent(name: str) -> None:
    report = lint_report(EXAMPLES / name / "good")
    assert places(report) == set()
    assert (report.verdict, report.exit_code) == (VerdictKind.GO, 0)


@pytest.mark.parametrize("name", NAMES)
def test_exactly_the_planted_faults_are_found(name: str) -> None:
    folder = EXAMPLES / name / "broken"
    report = lint_report(folder)
    expected = (*PLANTED[name], *CONSEQUENCES.get(name, ()))
    assert places(report) == {(fault.id, fault.path, fault.line, fault.column) for fault in expected}
    assert (report.verdict, report.exit_code) == (VerdictKind.NO_GO, 1)


@pytest.mark.parametrize("fault", [f for name in NAMES for f in PLANTED[name]], ids=lambda f: f"{f.id}-{f.path}")
def test_the_listed_locations_are_those_of_the_faulty_words(fault: Planted) -> None:
    (folder,) = (EXAMPLES / name / "broken" for name in NAMES if fault in PLANTED[name])
    line = (folder / fault.path).read_text().splitlines()[fault.line - 1]
    assert line[fault.column - 1 :].startswith(fault.word)


@pytest.mark.parametrize("name", NAMES)
def test_a_caret_covers_the_faulty_word(name: str) -> None:
    by_place = {(f.id, f.locations[0].line): f.locations[0] for f in lint_report(EXAMPLES / name / "broken").findings}
    for fault in PLANTED[name]:
        shown = by_place[fault.id, fault.line]
        if shown.end_line == fault.line:
            marked = shown.snippet[shown.column - 1 : shown.end_column - 1]
            assert marked.startswith(fault.word.rstrip("(= ")), (fault, marked)


# Output in CI: no text of a hostile tree is a command to the runner, in any command and format.


JOB = """\
#!/bin/bash
#SBATCH --nodes=2
export NCCL_SOCKET_IFNAM="eth0 ##[add-mask]a ##vso[task.setvariable]b"
torchrun --nnodes=4 --nproc_per_node=1 --master_addr=localhost --master_port=29500 \
    ::error::owned train.py "##[error]x" "{long}"
"""
#: Folders and files named like commands; the runner skips the leading blanks.
CI_COMMANDS_NAMES = (
    "::error file=a,line=1::owned",
    "  ::stop-commands::x",
    "##[group]x",
    "##vso[task.complete result=Succeeded]x",
)
COMMAND = re.compile(r"(?m)^[^\S\n]*::|(?i:##(?:vso|teamcity)?\[)|section_(?:start|end):\d+:[^\n]*\r")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Jobs in folders and files that are named like runner commands, with such texts wherever possible."""
    for number, name in enumerate(CI_COMMANDS_NAMES):
        folder = tmp_path / "tree" / name
        folder.mkdir(parents=True)
        # Texts of several lengths, one of which wraps right before a command.
        long = " ".join("x" * 7 for _ in range(number * 4)) + " ::error::wrapped" * 12
        (folder / "run.sh").write_text(JOB.replace("{long}", long))
        (folder / f"{name}.sh").write_text(JOB.replace("{long}", long))
        (folder / "train.py").write_text("import argparse\n")
        (folder / "rank0.log").write_text("RuntimeError: ::error::x\n::error::y\nNCCL error ##[error]z\n")
    return tmp_path / "tree"


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words",
    [
        ["lint"],
        ["lint", "-v"],
        ["lint", "--color"],
        ["lint", "--concise"],
        ["lint", "--statistics"],
        ["lint", "--list-files"],
        ["lint", "--diff", "--unsafe-fixes"],
        *(["lint", "--output", name] for name in ("json", "sarif", "gitlab", "junit", "html", "openmetrics")),
        ["lint", "--output", "github-summary"],
        ["lint", "--events", "-"],
        ["lint", "::error::missing"],
        ["lint", "x\n::error::missing"],
        ["lint", "--select", "x\n::error::y"],
        ["lint", "--output", "x\n::error::y"],
        ["x\n::error::y"],
        ["lint", "--x\n::error::y"],
        *(["plan", "-v", "--output", name] for name in ("text", "json", "html", "markdown")),
        ["plan", "--set", "A=x\n::error::y ##[error]z"],
        *(["plan", "--changes", ".", CI_COMMANDS_NAMES[0], "--output", name] for name in ("text", "json", "markdown")),
        ["init", "--print", "."],
        ["diagnose", "."],
        ["doctor"],
        ["baseline", "write"],
    ],
    ids=lambda words: " ".join(words).replace("\n", "-"),
)
def test_nothing_printed_is_a_command(tree: Path, words: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "preflight", *words],
        cwd=tree,
        env={**os.environ, "GITHUB_ACTIONS": "true", "TF_BUILD": "True", "GITLAB_CI": "true", "FORCE_COLOR": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode in (0, 1, 2, 3, 4), done.stderr
    for shown in (done.stdout, done.stderr):
        assert not COMMAND.search(shown), COMMAND.search(shown)
    assert done.stdout or done.stderr


@pytest.mark.thorough
def test_the_test_detects_a_command() -> None:
    assert all(COMMAND.search(name) for name in CI_COMMANDS_NAMES)


@pytest.mark.thorough
def test_annotations_have_only_our_commands(tree: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-m", "preflight", "lint", "--output", "github"],
        cwd=tree,
        env={**os.environ, "GITHUB_ACTIONS": "true"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert len(lines) > 3
    for line in lines:
        match = re.fullmatch(r"::(?:error|warning|notice) ([^:]*)::(.*)", line)
        assert match, line
        for item in match[1].split(","):
            assert re.fullmatch(r"(?:file|line|endLine|col|endColumn|title)=[^=]*(?:=[^,]*)?", item), line
