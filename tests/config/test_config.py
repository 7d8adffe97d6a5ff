"""Configuration files: which one is used, its errors, and its effects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.cli import main
from preflight.config import baseline
from preflight.config.resolve import Choices
from preflight.engine.report import Report
from preflight.model.configuration import Accepted, Configuration, SeverityChoice
from preflight.model.findings import VerdictKind
from preflight.model.recording_io import load, save
from tests.builders import assert_follows_schema, job, make_recording

#: RDV001 (error): two nodes whose rendezvous address is loopback. ENV001 (warning, medium): a typing mistake.
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


def lint_report(choices: Choices | None = None, *paths: str, root: str | None = None) -> Report:
    """The report of lint, as the command makes it."""
    chosen = api.configure(choices or Choices(), paths or (".",), root=root)
    return api.lint(paths or (".",), root=root, configuration=chosen.configuration)


def ids(report: Report) -> dict[str, str]:
    """The severity of each finding by its rule."""
    return {finding.id: finding.severity.value for finding in report.findings}


def error_message(text: str, tree: Path, name: str = "preflight.toml") -> str:
    """The error message for an invalid configuration."""
    (tree / name).write_text(text)
    with pytest.raises(UsageError) as raised:
        lint_report()
    return str(raised.value)


# --- which file ---


def test_defaults_without_a_file(tree: Path) -> None:
    assert ids(lint_report()) == {"RDV001": "error", "ENV001": "warning"}
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
def test_a_file_is_found_above_the_linted_paths(name: str, text: str, tree: Path) -> None:
    (tree / name).write_text(text)
    report = lint_report(None, "jobs/a/run.sh")
    assert ids(report) == {"ENV001": "warning"}
    assert report.configuration.file == name
    assert ids(lint_report(Choices(use_file=False), "jobs/a/run.sh")) == {"RDV001": "error", "ENV001": "warning"}


def test_the_outermost_file_wins_and_inner_files_can_only_be_stricter(tree: Path) -> None:
    (tree / "preflight.toml").write_text('ignore = ["RDV"]\n')
    (tree / "jobs" / "pyproject.toml").write_text('[tool.preflight]\nignore = ["ENV"]\nmandatory = ["RDV001"]\n')
    report = lint_report(None, "jobs")
    assert set(ids(report)) == {"RDV001", "ENV001"}
    (note,) = (note.message for note in report.coverage.suppression_notes if note.kind == "set-aside")
    assert note.startswith("jobs/pyproject.toml: `ignore` ignored, because preflight.toml in a folder above")
    (tree / "preflight.toml").unlink()
    assert set(ids(lint_report(None, "jobs"))) == {"RDV001"}


@pytest.mark.parametrize("name", ["preflight.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    "text",
    [
        'ignore = ["RDV001", "ENV"]\n',
        'select = ["BAT"]\n',
        'severity = {RDV001 = "info", ENV = "info"}\n',
        'fail-on = "error"\nprofile = "gate"\n',
        "allow-incomplete = true\n",
        'exclude = ["*.sh"]\n',
        'per-file-ignores = {"*.sh" = ["RDV001", "ENV001"]}\n',
        "mandatory = []\n",
        'baseline = "base.json"\n',
        WAIVE,
    ],
)
def test_no_inner_setting_weakens_the_outermost_file(text: str, name: str, tree: Path) -> None:
    (tree / "preflight.toml").write_text('mandatory = ["RDV001"]\nfail-on = "warning"\nprofile = "pedantic"\n')
    before = lint_report(None, "jobs/a")
    if name == "pyproject.toml":
        text = "[tool.preflight]\n" + text.replace("[[waive]]", "[[tool.preflight.waive]]")
    (tree / "jobs" / "a" / name).write_text(text)
    after = lint_report(None, "jobs/a")
    assert ids(after) == ids(before)
    assert (after.verdict, after.exit_code) == (before.verdict, before.exit_code)
    kept = ("mandatory", "fail_on", "profile", "select", "ignore", "exclude", "waivers", "baseline", "allow_incomplete")
    assert all(getattr(after.configuration, key) == getattr(before.configuration, key) for key in kept)


def test_a_stricter_inner_setting_counts(tree: Path) -> None:
    (tree / "preflight.toml").write_text('select = ["RDV"]\nallow-incomplete = true\n')
    (tree / "jobs" / "preflight.toml").write_text(
        'select = ["ENV"]\nallow-incomplete = false\nfail-on = "info"\nprofile = "pedantic"\n'
        'severity = {ENV = "error"}\nmandatory = ["BAT001"]\n'
    )
    found = api.configure(Choices(), ["jobs/a"]).configuration
    assert (found.select, found.mandatory) == (("RDV", "ENV"), ("BAT001",))
    assert (found.allow_incomplete, found.fail_on, found.profile) == (False, "info", "pedantic")
    # Its confidence allows no error, and it is a warning already.
    assert SeverityChoice("ENV001", "error") not in found.severities
    assert not found.set_aside


def test_mandatory_rules_run_regardless_of_select(tree: Path) -> None:
    (tree / "preflight.toml").write_text('mandatory = ["RDV001"]\nselect = ["BAT"]\n')
    assert set(ids(lint_report())) == {"RDV001"}


def test_two_files_in_one_folder_are_rejected(tree: Path) -> None:
    (tree / "pyproject.toml").write_text('[tool.preflight]\nmandatory = ["RDV001"]\n')
    (tree / "preflight.toml").write_text('ignore = ["RDV001"]\n')
    with pytest.raises(UsageError, match="both configure preflight"):
        lint_report()


def test_a_named_configuration_replaces_those_in_the_tree(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    site = tmp_path_factory.mktemp("site") / "site.toml"
    site.write_text('mandatory = ["RDV001"]\n')
    (tree / "preflight.toml").write_text('severity = {RDV001 = "info"}\nfail-on = "nonsense"\n')
    assert ids(lint_report(Choices(file=site), "jobs/a"))["RDV001"] == "error"


def test_an_unrelated_pyproject_is_ignored(tree: Path) -> None:
    (tree / "preflight.toml").write_text('ignore = ["RDV"]\n')
    (tree / "jobs" / "pyproject.toml").write_text('[tool.other]\nname = "preflight"\n')
    assert set(ids(lint_report(None, "jobs"))) == {"ENV001"}
    (tree / "jobs" / "pyproject.toml").write_text("this is [ no toml\n")
    assert set(ids(lint_report(None, "jobs"))) == {"ENV001"}


def test_nothing_above_the_repository_or_root_is_read(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "preflight.toml").write_text('ignore = ["RDV"]\n')
    # A repository inside another one, such as a submodule, cannot escape the outer configuration.
    (tree / "jobs" / ".git").mkdir()
    assert "RDV001" not in ids(lint_report(None, "jobs/a"))
    monkeypatch.chdir(tree / "jobs")
    assert "RDV001" in ids(lint_report(None, "a"))
    monkeypatch.chdir(tree)
    (tree / "jobs" / ".git").rmdir()
    assert "RDV001" not in ids(lint_report(None, "jobs/a"))
    assert "RDV001" in ids(lint_report(None, "jobs/a", root="jobs"))


def test_only_the_root_is_searched_for_paths_outside_it(tree: Path) -> None:
    (tree / "preflight.toml").write_text("slect = []\n")
    assert api.configure(Choices(), ["jobs/a", "."], root="jobs").configuration == Configuration()


def test_a_named_file_is_used_instead(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (tree / "preflight.toml").write_text('ignore = ["RDV"]\n')
    site = tmp_path_factory.mktemp("site") / "site.toml"
    site.write_text('ignore = ["ENV"]\nexclude = ["other"]\n')
    assert set(ids(lint_report(Choices(file=site)))) == {"RDV001"}


def test_a_link_out_of_the_tree_is_not_followed(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    secret = tmp_path_factory.mktemp("elsewhere") / "secret"
    secret.write_text("password = 1\n")
    (tree / "preflight.toml").symlink_to(secret)
    with pytest.raises(UsageError, match="outside") as raised:
        lint_report()
    assert "password" not in str(raised.value)


# --- what is wrong with it ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('slect = ["RDV"]\n', "preflight.toml:1:1: unknown key `slect`; did you mean `select`?"),
        ("fail_on = 'error'\n", "preflight.toml:1:1: unknown key `fail_on`; did you mean `fail-on`?"),
        ("\nselect = 'RDV'\n", 'preflight.toml:2:10: `select` must be a list, not "RDV"'),
        ("select = [1]\n", "preflight.toml:1:11: `select.0` must be text, not 1"),
        ("profile = 'strict'\n", 'preflight.toml:1:11: `profile` must be one of gate, default, pedantic, not "strict"'),
        ("allow-incomplete = 1\n", "preflight.toml:1:20: `allow-incomplete` must be true or false, not 1"),
        (
            "ignore = ['rendezvous-on-lopback']\n",
            "preflight.toml:1:11: unknown rule or check 'rendezvous-on-lopback'; the nearest: rendezvous-on-loop",
        ),
        ("[severity]\nRDV9 = 'info'\n", "preflight.toml:2:8: unknown rule or check 'RDV9'"),
        ("[severity]\nRDV = 'fatal'\n", "preflight.toml:2:7: `severity.RDV` must be one of error, warning, info"),
        ("[severity]\nENV001 = 'error'\n", "preflight.toml:2:10: ENV001 has medium confidence"),
        ("[[waive]]\nrule = 'RDV001'\n", "preflight.toml:1:1: `reason` is missing in [[waive]]"),
        ("[[waive]]\nrule = 'RDV001'\nreason = ' '\n", "preflight.toml:3:10: a waiver needs a reason"),
        ("[[waive]]\nrule = 'RDV'\nreason = 'x'\n", "preflight.toml:2:8: a waiver must name one rule or check"),
        (WAIVE + "expires = 'soon'\n", "4:11: `waive.0.expires` must be a date"),
        (
            WAIVE + "hosts = ['n[1-999999]']\n",
            "1:1: the `hosts` of all waivers are 999999 nodes, but the limit is 100000",
        ),
        (WAIVE + "onwer = 'me'\n", "4:1: unknown key `onwer`; did you mean `owner`?"),
        ("exclude = ['*a*a*a*a*a*a*']\n", "preflight.toml:1:12: a pattern may have at most"),
        ("[per-file-ignores]\n'a/**' = 'RDV'\n", "toml:2:10: `per-file-ignores.a/**` must be a list"),
        ("ignore = ['RDV001']\nmandatory = ['RDV001']\n", "preflight.toml:1:11: RDV001 is mandatory"),
        ("output = 'json:/etc/passwd'\n", "preflight.toml:1:10: a configuration can set only the format"),
        ("baseline = '../../elsewhere.json'\n", "preflight.toml:1:12: ../../elsewhere.json is outside"),
        ("site-rules = ['rules.toml']\n", "preflight.toml:1:14: only a configuration passed with --config"),
        ("plugins = ['evil']\n", "preflight.toml:1:1: unknown key `plugins`; known keys: select, "),
        ("select = [\n", "preflight.toml:2:1: Invalid value"),
    ],
)
def test_a_mistake_is_reported_with_its_location(text: str, says: str, tree: Path) -> None:
    assert says in error_message(text, tree)


def test_locations_in_pyproject_refer_to_the_file(tree: Path) -> None:
    text = (
        '[project]\nname = "x"\n\n[tool.preflight]\nprofil = "gate"\n[[tool.preflight.waive]]\nrule = 3\nreason = "x"\n'
    )
    said = error_message(text, tree, "pyproject.toml").splitlines()
    assert said[0] == "pyproject.toml:5:1: unknown key `profil`; did you mean `profile`?"
    assert said[1] == "pyproject.toml:7:8: `waive.0.rule` must be text, not 3"


@pytest.mark.parametrize("text", ["[tool.preflight\n", "tool.preflight = 3\n"])
def test_an_unreadable_pyproject_with_our_table_is_an_error(text: str, tree: Path) -> None:
    assert "pyproject.toml:1:" in error_message(text, tree, "pyproject.toml")


def test_the_command_prints_the_error_and_exits_with_2(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tree / "preflight.toml").write_text("slect = []\n")
    assert main.run(["lint"]) == 2
    out, err = capfd.readouterr()
    assert (out, "Traceback" in err) == ("", False)
    assert "did you mean `select`" in err
    assert main.run(["lint", "--no-config"]) == 1
    assert main.run(["lint", "--no-config", "--config", "preflight.toml"]) == 2
    assert main.run(["lint", "--config", "missing.toml"]) == 2


# --- what it changes ---


def test_severities_of_the_file_and_of_the_command_line(tree: Path) -> None:
    (tree / "preflight.toml").write_text('fail-on = "warning"\n[severity]\nRDV = "info"\nvariable-misspelt = "info"\n')
    report = lint_report()
    assert ids(report) == {"RDV001": "info", "ENV001": "info"}
    assert report.verdict is VerdictKind.GO
    report = lint_report(Choices(severities=(SeverityChoice("RDV001", "warning"),)))
    assert ids(report) == {"RDV001": "warning", "ENV001": "info"}
    assert report.verdict is VerdictKind.NO_GO


def test_the_severity_of_an_area_is_limited_by_confidence(tree: Path) -> None:
    report = lint_report(Choices(severities=(SeverityChoice("ENV", "error"), SeverityChoice("RDV", "warning"))))
    assert ids(report) == {"RDV001": "warning", "ENV001": "warning"}


def test_the_command_line_wins(tree: Path) -> None:
    (tree / "preflight.toml").write_text('select = ["ENV"]\nprofile = "gate"\nfail-on = "info"\nexclude = ["jobs"]\n')
    chosen = api.configure(Choices(), ["."]).configuration
    assert (chosen.select, chosen.profile, chosen.fail_on, chosen.exclude) == (("ENV",), "gate", "info", ("jobs",))
    over = Choices(select=("RDV",), profile="default", fail_on="error", exclude=("x",), extend_exclude=("y",))
    chosen = api.configure(over, ["."]).configuration
    assert (chosen.select, chosen.profile, chosen.fail_on, chosen.exclude) == (("RDV",), "default", "error", ("x", "y"))
    assert api.configure(Choices(extend_exclude=("y",)), ["."]).configuration.exclude == ("jobs", "y")


def test_a_shared_file_may_select_checks(tree: Path) -> None:
    (tree / "preflight.toml").write_text('select = ["ENV", "NIC"]\n')
    assert set(ids(lint_report())) == {"ENV001"}
    with pytest.raises(UsageError):
        lint_report(Choices(select=("NIC",)))


def test_mandatory_rules_cannot_be_ignored_on_the_command_line(tree: Path) -> None:
    (tree / "preflight.toml").write_text('mandatory = ["RDV001"]\n')
    with pytest.raises(UsageError, match="makes it mandatory"):
        lint_report(Choices(ignore=("rdv001",)))


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


def test_excluded_files_can_be_named(tree: Path) -> None:
    (tree / "preflight.toml").write_text('exclude = ["a/run.sh"]\n')
    assert lint_report().inputs != ()
    (tree / "preflight.toml").write_text('exclude = ["jobs/a/run.sh"]\n')
    assert "jobs/a/run.sh" not in {file.path for file in lint_report().inputs}
    assert "RDV001" in ids(lint_report(None, "jobs/a/run.sh"))


def test_a_recording_keeps_the_configuration_and_judges_the_same(tree: Path) -> None:
    (tree / "preflight.toml").write_text(
        'mandatory = ["WLD"]\n[severity]\nRDV = "info"\n[per-file-ignores]\n"a/*" = ["GPU"]\n'
        '[[waive]]\nrule = "ENV001"\nreason = "old"\nexpires = 2030-01-01\nhosts = ["n[1-2]"]\n'
    )
    chosen = api.configure(Choices(), ["."]).configuration
    assert chosen.waivers[0].expires == "2030-01-01"
    recording = make_recording(job(), configuration=chosen)
    assert load(save(recording)) == recording
    assert_follows_schema(save(recording), "recording")


def test_the_report_has_the_configuration_in_force(tree: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    (tree / "preflight.toml").write_text('profile = "gate"\noutput = "json"\n')
    assert main.run(["lint"]) == 1
    document = json.loads(capfdbinary.readouterr().out)
    assert document["configuration"]["profile"] == "gate"
    assert document["configuration"]["file"] == "preflight.toml"


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--severity", "ENV003"], "expected an id, name or area and a severity"),
        (["--severity", "ENV003=warn"], "did you mean warning?"),
        (["--severity", "ENV0=info"], "unknown rule or check 'ENV0'"),
        (["--severity", "variable-misspelt=error"], "ENV001 has medium confidence"),
        (["--exclude", "!"], "is not a pattern for files"),
    ],
)
def test_a_mistake_on_the_command_line(
    option: list[str], says: str, tree: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["lint", *option]) == 2
    assert says in capfd.readouterr().err


# A baseline accepts the findings of the time it was written, and no later ones.


BASELINE_FAULTY = (
    "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py\n"
)
NAME = baseline.DEFAULT_NAME


@pytest.fixture
def baseline_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job that has one error."""
    (tmp_path / "run.sh").write_text(BASELINE_FAULTY)
    (tmp_path / "train.py").write_text("print('training')\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_only_new_findings_count(baseline_tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["lint"]) == 1
    assert main.run(["baseline", "write"]) == 0
    assert f"{NAME}: 1 finding accepted" in capfd.readouterr().out
    assert main.run(["lint", "--baseline", NAME]) == 0
    assert f"1 finding accepted in {NAME}" in capfd.readouterr().out
    # Moved down by two lines, it is the same finding; another one of the same kind is not.
    (baseline_tree / "run.sh").write_text(BASELINE_FAULTY.replace("\n", "\n# more\n# lines\n", 1))
    assert main.run(["lint", "--baseline", NAME]) == 0
    (baseline_tree / "run.sh").write_text(
        BASELINE_FAULTY + BASELINE_FAULTY.splitlines()[1].replace("localhost", "127.0.0.1") + "\n"
    )
    assert main.run(["lint", "--baseline", NAME]) == 1


def test_two_equal_lines_are_two_findings(baseline_tree: Path) -> None:
    assert main.run(["baseline", "write"]) == 0
    (baseline_tree / "run.sh").write_text(BASELINE_FAULTY + BASELINE_FAULTY.splitlines()[1] + "\n")
    assert main.run(["lint", "--baseline", NAME]) == 1


def test_fixed_findings_are_named_and_pruned(baseline_tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["baseline", "write"]) == 0
    (baseline_tree / "run.sh").write_text(BASELINE_FAULTY.replace("localhost", "node1"))
    capfd.readouterr()
    assert main.run(["lint", "--baseline", NAME]) == 0
    assert "1 entry suppresses nothing anymore" in capfd.readouterr().out
    # A run over other files or with other rules does not report it.
    (baseline_tree / "other.sh").write_text("#!/bin/bash\ntorchrun --standalone train.py\n")
    for arguments in (["other.sh"], [".", "--select", "ENV"]):
        assert main.run(["lint", *arguments, "--baseline", NAME]) == 0
        assert "suppresses nothing" not in capfd.readouterr().out
    assert main.run(["baseline", "prune"]) == 0
    out = capfd.readouterr().out
    assert "run.sh: RDV001" in out
    assert "1 finding removed, 0 left" in out
    assert json.loads((baseline_tree / NAME).read_text())["findings"] == []


def test_findings_of_files_that_are_gone_are_pruned(baseline_tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["baseline", "write"]) == 0
    (baseline_tree / "run.sh").unlink()
    assert main.run(["baseline", "prune"]) == 0
    assert "1 finding removed, 0 left" in capfd.readouterr().out


def test_prune_from_another_folder_changes_nothing(
    baseline_tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["baseline", "write"]) == 0
    kept = (baseline_tree / NAME).read_bytes()
    (baseline_tree / "jobs").mkdir()
    (baseline_tree / "jobs" / "other.sh").write_text("#!/bin/bash\ntorchrun --standalone train.py\n")
    monkeypatch.chdir(baseline_tree / "jobs")
    assert main.run(["baseline", "prune", "--baseline", f"../{NAME}"]) == 2
    assert "run prune where that file was written" in capfd.readouterr().err
    assert (baseline_tree / NAME).read_bytes() == kept


def test_the_configuration_may_name_it(baseline_tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (baseline_tree / "preflight.toml").write_text('baseline = "accepted.json"\n')
    assert main.run(["lint"]) == 2
    assert "`preflight baseline write` creates it" in capfd.readouterr().err
    assert main.run(["baseline", "write"]) == 0
    assert main.run(["lint"]) == 0
    assert main.run(["baseline", "show", "accepted.json"]) == 0
    assert "RDV001  1\n    run.sh\n1 finding accepted" in capfd.readouterr().out


def test_suppressed_findings_are_kept_in_json_and_sarif(
    baseline_tree: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    assert main.run(["baseline", "write"]) == 0
    capfdbinary.readouterr()
    assert main.run(["lint", "--baseline", NAME, "-o", "json"]) == 0
    (finding,) = json.loads(capfdbinary.readouterr().out)["suppressed"]
    assert (finding["id"], finding["suppressed_by"]) == ("RDV001", "baseline")
    assert main.run(["lint", "--baseline", NAME, "-o", "sarif"]) == 0
    (result,) = json.loads(capfdbinary.readouterr().out)["runs"][0]["results"]
    assert result["suppressions"][0]["kind"] == "external"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
        ("[]", "is not a baseline"),
        ('{"schema_version": 2, "findings": []}', "has the schema version 2"),
        ('{"schema_version": 1, "findings": [{"id": "RDV001"}]}', "findings[0] must have"),
        ('{"schema_version": 1, "findings": [3]}', "findings[0] must have"),
    ],
)
def test_a_file_that_is_not_a_baseline(text: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(UsageError, match=expected.replace("[", r"\[")):
        baseline.load(tmp_path / "b.json")


def test_the_file_has_one_finding_per_line(tmp_path: Path) -> None:
    entries = tuple(Accepted(f"{n:024x}", "RDV001", f"jobs/{n}.sh", 'says "no"\n') for n in range(3))
    (tmp_path / "b.json").write_bytes(baseline.dump(baseline.Baseline(entries)))
    assert baseline.load(tmp_path / "b.json").entries == entries
    assert (tmp_path / "b.json").read_text().count("\n") == 3 + 5


def test_another_job_that_reaches_the_same_file_changes_nothing(baseline_tree: Path) -> None:
    launch = "#!/bin/bash\nsource ./env.sh\ntorchrun --nnodes=2 --node_rank=$R --master_addr=node0 train.py\n"
    (baseline_tree / "env.sh").write_text("export NCCL_IB_TIMEOUTT=22\n")
    (baseline_tree / "run.sh").write_text(launch)
    assert main.run(["lint", "--fail-on", "warning"]) == 1
    assert main.run(["baseline", "write"]) == 0
    (baseline_tree / "another.sh").write_text(launch)
    assert main.run(["lint", "--fail-on", "warning", "--baseline", NAME]) == 0
