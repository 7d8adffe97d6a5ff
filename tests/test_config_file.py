"""Configuration files: which one is taken, what is wrong with it, and what it changes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight import api, cli
from preflight.config_file import Choices
from preflight.configuration import Configuration, SeverityChoice
from preflight.errors import UsageError
from preflight.outcome import VerdictKind
from preflight.report import Report
from preflight.saved import load, save
from tests.building import a_recording, assert_follows_schema, job

#: RDV001 (error): two nodes that meet at the loopback address of each. ENV001 (warning, medium): a slip of the pen.
FAULTY = """#!/bin/bash
export NCCL_IB_TIMEOUTT=22
torchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py
"""

WAIVE = "[[waive]]\nrule = 'RDV001'\nreason = 'x'\n"


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a faulty job in `jobs/a`, and the working directory in it."""
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "jobs" / "a"
    folder.mkdir(parents=True)
    (folder / "run.sh").write_text(FAULTY)
    (folder / "train.py").write_text("print('training')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def linted(choices: Choices | None = None, *paths: str, root: str | None = None) -> Report:
    """What lint says, as the command would."""
    chosen = api.configure(choices or Choices(), paths or (".",), root=root)
    return api.lint(paths or (".",), root=root, configuration=chosen.configuration)


def ids(report: Report) -> dict[str, str]:
    """The severity of each finding by its rule."""
    return {finding.id: finding.severity.value for finding in report.findings}


def refusal(text: str, tree: Path, name: str = "preflight.toml") -> str:
    """What is said about a configuration that cannot be used."""
    (tree / name).write_text(text)
    with pytest.raises(UsageError) as raised:
        linted()
    return str(raised.value)


# --- which file ---


def test_without_a_file_everything_is_as_ever(tree: Path) -> None:
    assert ids(linted()) == {"RDV001": "error", "ENV001": "warning"}
    assert api.configure(Choices(), ["."]).configuration == Configuration()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("preflight.toml", 'ignore = ["RDV001"]\n'),
        ("pyproject.toml", '[tool.preflight]\nignore = ["rendezvous-on-loopback"]\n'),
        ("jobs/preflight.toml", 'ignore = ["RDV"]\n'),
        ("jobs/a/pyproject.toml", '[tool.preflight]\nignore = ["rdv001"]\n'),
    ],
)
def test_a_file_is_found_from_what_is_linted_upward(name: str, text: str, tree: Path) -> None:
    (tree / name).write_text(text)
    report = linted(None, "jobs/a/run.sh")
    assert ids(report) == {"ENV001": "warning"}
    assert report.configuration.file == name
    assert ids(linted(Choices(use_file=False), "jobs/a/run.sh")) == {"RDV001": "error", "ENV001": "warning"}


def test_the_nearest_file_is_taken_and_preflight_toml_before_pyproject(tree: Path) -> None:
    (tree / "preflight.toml").write_text('ignore = ["RDV"]\n')
    (tree / "jobs" / "pyproject.toml").write_text('[tool.preflight]\nignore = ["ENV"]\n')
    assert set(ids(linted(None, "jobs"))) == {"RDV001"}
    (tree / "jobs" / "preflight.toml").write_text("")
    assert set(ids(linted(None, "jobs"))) == {"RDV001", "ENV001"}


def test_a_pyproject_of_somebody_else_is_passed_over(tree: Path) -> None:
    (tree / "preflight.toml").write_text('ignore = ["RDV"]\n')
    (tree / "jobs" / "pyproject.toml").write_text('[tool.other]\nname = "preflight"\n')
    assert set(ids(linted(None, "jobs"))) == {"ENV001"}
    (tree / "jobs" / "pyproject.toml").write_text("this is [ no toml\n")
    assert set(ids(linted(None, "jobs"))) == {"ENV001"}


def test_nothing_above_the_repository_or_the_given_root_is_looked_at(tree: Path) -> None:
    (tree / "preflight.toml").write_text('ignore = ["RDV"]\n')
    (tree / "jobs" / ".git").mkdir()
    assert "RDV001" in ids(linted(None, "jobs/a"))
    (tree / "jobs" / ".git").rmdir()
    assert "RDV001" not in ids(linted(None, "jobs/a"))
    assert "RDV001" in ids(linted(None, "jobs/a", root="jobs"))


def test_of_paths_outside_the_root_only_the_root_is_looked_at(tree: Path) -> None:
    (tree / "preflight.toml").write_text("slect = []\n")
    assert api.configure(Choices(), ["jobs/a", "."], root="jobs").configuration == Configuration()


def test_a_named_file_is_taken_instead(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tree / "preflight.toml").write_text('ignore = ["RDV"]\n')
    site = tmp_path_factory.mktemp("site") / "site.toml"
    site.write_text('ignore = ["ENV"]\nexclude = ["other"]\n')
    assert set(ids(linted(Choices(file=site)))) == {"RDV001"}


def test_a_link_out_of_the_tree_is_not_followed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("password = 1\n")
    (tree / "preflight.toml").symlink_to(secret)
    with pytest.raises(UsageError, match="leads outside") as raised:
        linted()
    assert "password" not in str(raised.value)


# --- what is wrong with it ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('slect = ["RDV"]\n', "preflight.toml:1:1: there is no key `slect` here; did you mean `select`?"),
        ("fail_on = 'error'\n", "preflight.toml:1:1: there is no key `fail_on` here; did you mean `fail-on`?"),
        ("\nselect = 'RDV'\n", 'preflight.toml:2:10: `select` is expected to be a list, not "RDV"'),
        ("select = [1]\n", "preflight.toml:1:11: `select.0` is expected to be text, not 1"),
        ("profile = 'strict'\n", 'preflight.toml:1:11: `profile` is one of gate, default, pedantic, not "strict"'),
        ("allow-incomplete = 1\n", "preflight.toml:1:20: `allow-incomplete` is expected to be true or false, not 1"),
        (
            "ignore = ['rendezvous-on-lopback']\n",
            "preflight.toml:1:11: there is no rule or check 'rendezvous-on-lopback'; the nearest: rendezvous-on-loop",
        ),
        ("[severity]\nRDV9 = 'info'\n", "preflight.toml:2:8: there is no rule or check 'RDV9'"),
        ("[severity]\nRDV = 'fatal'\n", "preflight.toml:2:7: `severity.RDV` is one of error, warning, info"),
        ("[severity]\nENV001 = 'error'\n", "preflight.toml:2:10: ENV001 is of medium confidence"),
        ("[[waive]]\nrule = 'RDV001'\n", "preflight.toml:1:1: `reason` is missing in [[waive]]"),
        ("[[waive]]\nrule = 'RDV001'\nreason = ' '\n", "preflight.toml:3:10: a waiver needs a reason"),
        ("[[waive]]\nrule = 'RDV'\nreason = 'x'\n", "preflight.toml:2:8: a waiver names one rule or check"),
        (WAIVE + "expires = 'soon'\n", "4:11: `waive.0.expires` is expected to be a date"),
        (WAIVE + "hosts = ['n[1-999999]']\n", "4:10: 'n[1-999999]' is no host name"),
        (WAIVE + "onwer = 'me'\n", "4:1: there is no key `onwer` here; did you mean `owner`?"),
        ("exclude = ['*a*a*a*a*a*a*']\n", "preflight.toml:1:12: a pattern has at most"),
        ("[per-file-ignores]\n'a/**' = 'RDV'\n", "toml:2:10: `per-file-ignores.a/**` is expected to be a list"),
        ("ignore = ['RDV001']\nmandatory = ['RDV001']\n", "preflight.toml:1:11: RDV001 is mandatory"),
        ("output = 'json:/etc/passwd'\n", "preflight.toml:1:10: a configuration names a format"),
        ("baseline = '../../elsewhere.json'\n", "preflight.toml:1:12: ../../elsewhere.json lies outside"),
        ("site-rules = ['rules.toml']\n", "preflight.toml:1:14: only a configuration that is named with --config"),
        ("plugins = ['evil']\n", "preflight.toml:1:1: there is no key `plugins` here; known are select, "),
        ("select = [\n", "preflight.toml:2:1: Invalid value"),
    ],
)
def test_a_mistake_is_named_at_its_place(text: str, says: str, tree: Path) -> None:
    assert says in refusal(text, tree)


def test_places_in_pyproject_are_those_of_the_file(tree: Path) -> None:
    text = (
        '[project]\nname = "x"\n\n[tool.preflight]\nprofil = "gate"\n[[tool.preflight.waive]]\nrule = 3\nreason = "x"\n'
    )
    said = refusal(text, tree, "pyproject.toml").splitlines()
    assert said[0] == "pyproject.toml:5:1: there is no key `profil` here; did you mean `profile`?"
    assert said[1] == "pyproject.toml:7:8: `waive.0.rule` is expected to be text, not 3"


@pytest.mark.parametrize("text", ["[tool.preflight\n", "tool.preflight = 3\n"])
def test_a_pyproject_that_means_us_and_cannot_be_read_is_no_silence(text: str, tree: Path) -> None:
    assert "pyproject.toml:1:" in refusal(text, tree, "pyproject.toml")


def test_the_command_says_so_and_exits_2(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tree / "preflight.toml").write_text("slect = []\n")
    assert cli.run(["lint"]) == 2
    out, err = capfd.readouterr()
    assert (out, "Traceback" in err) == ("", False)
    assert "did you mean `select`" in err
    assert cli.run(["lint", "--no-config"]) == 1
    assert cli.run(["lint", "--no-config", "--config", "preflight.toml"]) == 2
    assert cli.run(["lint", "--config", "missing.toml"]) == 2


# --- what it changes ---


def test_severities_of_the_file_and_of_the_command_line(tree: Path) -> None:
    (tree / "preflight.toml").write_text('fail-on = "warning"\n[severity]\nRDV = "info"\nvariable-misspelt = "info"\n')
    report = linted()
    assert ids(report) == {"RDV001": "info", "ENV001": "info"}
    assert report.verdict is VerdictKind.GO
    report = linted(Choices(severities=(SeverityChoice("RDV001", "warning"),)))
    assert ids(report) == {"RDV001": "warning", "ENV001": "info"}
    assert report.verdict is VerdictKind.NO_GO


def test_a_whole_area_becomes_no_worse_than_it_is_sure(tree: Path) -> None:
    report = linted(Choices(severities=(SeverityChoice("ENV", "error"), SeverityChoice("RDV", "warning"))))
    assert ids(report) == {"RDV001": "warning", "ENV001": "warning"}


def test_the_command_line_wins(tree: Path) -> None:
    (tree / "preflight.toml").write_text('select = ["ENV"]\nprofile = "gate"\nfail-on = "info"\nexclude = ["jobs"]\n')
    chosen = api.configure(Choices(), ["."]).configuration
    assert (chosen.select, chosen.profile, chosen.fail_on, chosen.exclude) == (("ENV",), "gate", "info", ("jobs",))
    over = Choices(select=("RDV",), profile="default", fail_on="error", exclude=("x",), extend_exclude=("y",))
    chosen = api.configure(over, ["."]).configuration
    assert (chosen.select, chosen.profile, chosen.fail_on, chosen.exclude) == (("RDV",), "default", "error", ("x", "y"))
    assert api.configure(Choices(extend_exclude=("y",)), ["."]).configuration.exclude == ("jobs", "y")


def test_a_file_of_all_verbs_may_select_what_lint_does_not_have(tree: Path) -> None:
    (tree / "preflight.toml").write_text('select = ["ENV", "NIC"]\n')
    assert set(ids(linted())) == {"ENV001"}
    with pytest.raises(UsageError):
        linted(Choices(select=("NIC",)))


def test_what_is_mandatory_cannot_be_ignored_on_the_command_line(tree: Path) -> None:
    (tree / "preflight.toml").write_text('mandatory = ["RDV001"]\n')
    with pytest.raises(UsageError, match="makes it mandatory"):
        linted(Choices(ignore=("rdv001",)))


@pytest.mark.parametrize(
    ("file", "pattern", "paths", "root"),
    [
        ("preflight.toml", "jobs", ".", None),
        ("preflight.toml", "run.sh", "jobs/a", None),
        ("preflight.toml", "jobs/*/run.sh", ".", "jobs"),
        ("preflight.toml", "/jobs/a/", ".", "jobs"),
        ("preflight.toml", "**/run.sh", ".", "jobs/a"),
        ("preflight.toml", "a/run.sh", ".", "jobs"),
        ("jobs/preflight.toml", "a", "jobs", None),
        ("jobs/preflight.toml", "/a/run.sh", "jobs/a", None),
        ("jobs/preflight.toml", "/run.sh", "jobs/a", None),
    ],
)
def test_patterns_are_relative_to_the_file(file: str, pattern: str, paths: str, root: str | None, tree: Path) -> None:
    named = tree / file
    named.write_text(f'[per-file-ignores]\n"{pattern}" = ["RDV001"]\n')
    start = [str(tree / (root or ""))] if root else [paths]
    chosen = api.configure(Choices(file=named), start, root=root)
    report = api.lint(start, root=root, configuration=chosen.configuration)
    expected = pattern not in ("a/run.sh", "/run.sh")
    assert ("RDV001" in {finding.id for finding in report.suppressed}) is expected
    assert ("RDV001" in ids(report)) is not expected


def test_what_is_excluded_is_not_looked_for_but_can_be_named(tree: Path) -> None:
    (tree / "preflight.toml").write_text('exclude = ["a/run.sh"]\n')
    assert linted().inputs != ()
    (tree / "preflight.toml").write_text('exclude = ["jobs/a/run.sh"]\n')
    assert "jobs/a/run.sh" not in {file.path for file in linted().inputs}
    assert "RDV001" in ids(linted(None, "jobs/a/run.sh"))


def test_a_recording_keeps_the_configuration_and_judges_the_same(tree: Path) -> None:
    (tree / "preflight.toml").write_text(
        'mandatory = ["WLD"]\n[severity]\nRDV = "info"\n[per-file-ignores]\n"a/*" = ["GPU"]\n'
        '[[waive]]\nrule = "ENV001"\nreason = "old"\nexpires = 2030-01-01\nhosts = ["n[1-2]"]\n'
    )
    chosen = api.configure(Choices(), ["."]).configuration
    assert chosen.waivers[0].expires == "2030-01-01"
    recording = a_recording(job(), configuration=chosen)
    assert load(save(recording)) == recording
    assert_follows_schema(save(recording), "recording")


def test_the_report_names_what_was_in_force(tree: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tree / "preflight.toml").write_text('profile = "gate"\noutput = "json"\n')
    assert cli.run(["lint"]) == 1
    document = json.loads(capfdbinary.readouterr().out)
    assert document["configuration"]["profile"] == "gate"
    assert document["configuration"]["file"] == "preflight.toml"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--severity", "ENV003"], "expected an id, name or area and a severity"),
        (["--severity", "ENV003=warn"], "did you mean warning?"),
        (["--severity", "ENV0=info"], "there is no rule or check 'ENV0'"),
        (["--severity", "variable-misspelt=error"], "ENV001 is of medium confidence"),
        (["--exclude", "!"], "no pattern"),
    ],
)
def test_a_mistake_on_the_command_line(
    option: list[str], says: str, tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["lint", *option]) == 2
    assert says in capfd.readouterr().err
