"""The command: its exit codes, its output streams, and its error messages."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from preflight import __version__
from preflight._util import terminal
from preflight._util.usage_error import nearest, nearest_path
from preflight.cli import main
from preflight.cli.main import run
from preflight.config.resolve import Choices
from preflight.model import progress
from preflight.model.recording_io import save
from preflight.services.language_server import server
from preflight.sources.discovery import assemble
from tests.builders import assert_follows_schema, job, make_recording, reached

GOOD = "#!/bin/bash\ntorchrun --standalone --nproc_per_node=2 train.py\n"
#: Two nodes whose rendezvous address is loopback.
BAD = "#!/bin/bash\ntorchrun --nnodes=2 --nproc_per_node=1 --node_rank=$R --master_addr=localhost train.py\n"
#: The installed `preflight` of the interpreter that runs the tests.
COMMAND = str(Path(sys.executable).parent / "preflight")


def main_run(
    *arguments: str | Path,
    cwd: Path,
    command: Sequence[str] = (COMMAND,),
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command in a separate process."""
    return subprocess.run(
        [*command, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with a good job and a bad one, each in its own folder."""
    for name, text in (("good", GOOD), ("bad", BAD)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.sh").write_text(text)
        (tmp_path / name / "train.py").write_text("print('training')\n")
    (tmp_path / "empty").mkdir()
    return tmp_path


def run_command(*arguments: str | Path) -> int:
    """The exit code of the command, in this process."""
    return main.run([str(argument) for argument in arguments])


# --- exit codes ---


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, no run takes so long that it says what it is doing."""
    monkeypatch.setattr(progress, "SHOW_WAIT_AFTER_S", 600.0)


@pytest.mark.usefixtures("silent")
def test_0_go(tree: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run_command("lint", tree / "good" / "run.sh") == 0
    out, err = capfdbinary.readouterr()
    assert out.splitlines()[-1].startswith(b"GO ")
    assert err == b""


@pytest.mark.usefixtures("silent")
def test_1_no_go(tree: Path, capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert run_command("lint", tree / "bad" / "run.sh") == 1
    out, err = capfdbinary.readouterr()
    assert b"run.sh:2:" in out
    assert out.splitlines()[-1].startswith(b"NO-GO ")
    assert err == b""


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["lint", "nowhere.sh"], "nowhere.sh does not exist"),
        (["lint", "--profil=gate"], "--profile"),
        (["lint", "--fail-on", "never"], "error"),
        (["lnt"], "Did you mean 'lint'?"),
        (["train.sbatch"], "preflight lint train.sbatch"),
        (["lint", ".", "--select", "RDV01"], "RDV001"),
        (["lint", ".", "--ignore", "rendezvous-on-lopback"], "rendezvous-on-loopback"),
        (["lint", ".", "-o", "jsn"], "did you mean 'json'?"),
        (["lint", ".", "-o", "junitxml:x.xml"], "did you mean 'junit'?"),
        (["lint", ".", "-o", "jsonl:e.jsonl"], "--events e.jsonl"),
        (["lint", ".", "-o", "Prometheus"], "use 'openmetrics'"),
        (["lint", ".", "-o", "json:"], "expected a file name"),
        (["lint", ".", "-o", "json", "-o", "text"], "only one format can go to standard output"),
        (["lint", ".", "-o", "json:no/such/folder.json"], "the folder no/such does not exist"),
        (["lint", ".", "-o", "json:."], "is a folder"),
        (["explain", "RDV01"], "RDV001"),
        (["explain", "zzzzzz"], "'zzzzzz' is not a rule or check"),
        (["judge", "nowhere.json"], "cannot be read"),
        (["check", ".", "--on", "shh"], "did you mean 'ssh'?"),
        (["check", ".", "--hosts", "-oProxyCommand=x"], "is not a host name"),
        (["check", ".", "--hosts", "-oProxyCommand=x@node1"], "is not a user name"),
        (["check", ".", "--hosts", "a,b,a"], "a is listed twice"),
        (["check", "."], "no nodes were named"),
        (["check", ".", "--on", "local", "--prelude"], "add --trust-job"),
        (["check", ".", "--on", "local", "--save", "no/such/recording.json"], "the folder no/such does not exist"),
        (["lint", "../bad", "--root", "."], "../bad is outside --root ."),
        (["schema", "repotr"], "report"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_2_a_mistake_prints_one_sentence_and_no_traceback(
    arguments: list[str],
    expected: str,
    tree: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tree / "good")
    assert run_command(*arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert expected in err
    assert "Traceback" not in err


def test_3_incomplete_and_allowed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "saved.json"
    saved.write_bytes(save(make_recording(job(), verb="check", nodes=reached("a", silent=["b"]))))
    assert run_command("judge", saved) == 3
    assert run_command("judge", saved, "--allow-incomplete") == 0
    assert capfd.readouterr().out.count("INCOMPLETE") == 2


def test_4_nothing_to_do(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command("lint", tree / "empty") == 4
    assert "NOT JUDGED" in capfd.readouterr().out


def test_4_a_file_of_an_unknown_kind(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tree / "notes.txt").write_text("hello\n")
    assert run_command("lint", str(tree / "notes.txt")) == 4
    out = capfd.readouterr().out
    assert "notes.txt is not a readable script, configuration or" in out
    assert "NOT JUDGED" in out


def test_5_a_bug_prints_a_traceback_and_the_report_is_still_written(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*arguments: object, **options: object) -> None:
        raise RuntimeError("a bug\x1b[2J")

    monkeypatch.setattr(assemble, "assemble", broken)
    assert run_command("lint", tree / "good", "-o", f"json:{tree / 'report.json'}") == 5
    out, err = capfd.readouterr()
    assert out == ""
    assert "Traceback" in err
    assert "this is a bug in preflight" in err
    assert "\x1b" not in err
    report = assert_follows_schema((tree / "report.json").read_bytes())
    assert (report["exit_code"], report["verdict"]) == (5, "incomplete")


def test_130_interrupted(tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(assemble, "assemble", interrupted)
    assert run_command("lint", tree / "good") == 130
    assert "interrupted" in capfd.readouterr().err


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_check_writes_a_partial_report(tree: Path, number: int, exit_code: int) -> None:
    saved, events = tree / "saved.json", tree / "events.jsonl"
    asked = ("--on", "local", "--until", "node", "-o", "json", "--save", str(saved), "--events", str(events))
    process = subprocess.Popen(
        [COMMAND, "check", "good", *asked],
        cwd=tree,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        # The first line about the nodes: the run has begun and will take a while.
        assert any(b"reaching the nodes" in line for line in process.stderr)
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert b"Traceback" not in err
    report = assert_follows_schema(out)
    assert (process.returncode, report["exit_code"], report["verdict"]) == (exit_code, exit_code, "incomplete")
    assert run_command("judge", saved) == exit_code
    first, *_, last = (assert_follows_schema(line, "events") for line in events.read_bytes().splitlines())
    assert (first["type"], last["type"], last["exit_code"]) == ("run-began", "verdict", exit_code)


# --- output ---


def test_one_report_on_standard_output_and_the_others_in_files(tree: Path) -> None:
    done = main_run(
        "lint", "bad", "-q", "-o", "json", "-o", "sarif:a.sarif", "-o", "text:a.txt", "-o", "json:a.json", cwd=tree
    )
    assert (done.returncode, done.stderr) == (1, "")
    on_stdout = assert_follows_schema(done.stdout.encode())
    in_file = assert_follows_schema((tree / "a.json").read_bytes())
    for document in (on_stdout, in_file):
        document["run"].pop("created")
    assert on_stdout == in_file
    assert json.loads((tree / "a.sarif").read_text())["version"] == "2.1.0"
    assert "NO-GO" in (tree / "a.txt").read_text()
    assert not [path for path in tree.iterdir() if path.name.startswith(".")]


def test_a_report_file_replaces_a_link_instead_of_following_it(tree: Path) -> None:
    (tree / "precious").write_text("precious")
    (tree / "report.json").symlink_to(tree / "precious")
    assert run_command("lint", tree / "good", "-o", f"json:{tree / 'report.json'}") == 0
    assert (tree / "precious").read_text() == "precious"
    assert_follows_schema((tree / "report.json").read_bytes())


def test_the_exit_code_does_not_depend_on_the_format(tree: Path) -> None:
    for output in ("text", "json", "sarif"):
        assert main_run("lint", "bad", "-o", output, cwd=tree).returncode == 1


def test_a_closed_pipe_is_not_an_error(tree: Path) -> None:
    process = subprocess.Popen(
        [COMMAND, "lint", "bad", "-q", "-o", "json"], cwd=tree, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    complaint = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert complaint == b""


@pytest.mark.parametrize(
    ("options", "environment", "colored"),
    [
        ([], {}, False),
        (["--color"], {}, True),
        (["--color"], {"NO_COLOR": "1"}, True),
        (["--no-color"], {}, False),
    ],
)
def test_colour(tree: Path, options: list[str], environment: dict[str, str], colored: bool) -> None:
    done = main_run("lint", "bad", *options, cwd=tree, environment=environment)
    assert ("\x1b[" in done.stdout) is colored


@pytest.mark.parametrize(
    ("environment", "colored"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)]
)
def test_colour_on_a_terminal(tree: Path, environment: dict[str, str], colored: bool) -> None:
    ours, theirs = os.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM", "FORCE_COLOR")}
    subprocess.run(
        [COMMAND, "lint", "bad"],
        cwd=tree,
        env={**plain, "TERM": "xterm", **environment},
        stdout=theirs,
        timeout=60,
        check=False,
    )
    os.close(theirs)
    seen = os.read(ours, 65536)
    os.close(ours)
    assert b"NO-GO" in seen
    assert (b"\x1b[" in seen) is colored


def test_select_ignore_and_fail_on(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)

    def exit_code(*options: str) -> int:
        return run_command("lint", "bad", *options)

    assert exit_code("--select", "rendezvous-on-loopback") == 1
    assert exit_code("--select", "FIL") == 0
    assert exit_code("--ignore", "RDV") == 0
    assert exit_code("--select", "FIL, RDV") == 1
    assert exit_code("--ignore", "FIL,RDV") == 0
    # A configuration that lint shares may name a check.
    assert exit_code("--ignore", "RDV", "--ignore", "port-in-use") == 0


def test_silent_nodes_are_findings(tree: Path) -> None:
    done = main_run("check", "good", "--hosts", "node[1-2].invalid", "-o", "json", cwd=tree)
    found = json.loads(done.stdout)["findings"]
    assert (done.returncode, [finding["id"] for finding in found]) == (1, ["NOD001", "NOD001"])


# --- the other commands ---


def test_version_and_help(tmp_path: Path) -> None:
    assert main_run("--version", cwd=tmp_path).stdout == f"preflight {__version__}\n"
    done = main_run("--help", cwd=tmp_path)
    assert done.returncode == 0
    assert "Exit codes: 0 go, 1 no-go, 2 usage, 3 incomplete, 4 not judged, 5 a bug" in done.stdout


def test_rules_and_explain_agree(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command("rules", "-o", "json") == 0
    listed = json.loads(capfd.readouterr().out)
    assert len(listed) > 10
    for name in (listed[0]["id"], listed[0]["name"], listed[0]["id"].lower()):
        assert run_command("explain", name) == 0
        out = capfd.readouterr().out
        assert out.startswith(f"{listed[0]['id']} {listed[0]['name']}\n")
        assert "Why it matters:" in out


def test_an_area_is_explained_by_its_list(capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command("explain", "nod") == 0
    ids = [row.split()[0] for row in capfd.readouterr().out.splitlines()]
    assert ids[:2] == ["NOD001", "NOD002"] and ids == sorted(ids) and all(id.startswith("NOD") for id in ids)


def test_a_report_is_distinguished_from_a_recording(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    report = tree / "report.json"
    assert run_command("lint", str(tree / "good"), "-o", f"json:{report}") == 0
    assert run_command("judge", str(report)) == 2
    assert "report.json is a report, not a recording" in capfd.readouterr().err


@pytest.mark.parametrize("document", ["report", "recording"])
def test_schema(document: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command("schema", document) == 0
    assert json.loads(capfd.readouterr().out)["title"] == f"preflight {document}"


# --- a hostile folder ---

EVIL = "import pathlib\npathlib.Path(__file__).with_suffix('.ran').write_text('')\nraise SystemExit('imported')\n"


@pytest.fixture
def hostile(tree: Path) -> Path:
    """A folder with a job, and with modules and a distribution that must not be imported."""
    folder = tree / "bad"
    for name in (
        *("click", "rich", "pydantic", "yaml", "tree_sitter", "anyio", "ClusterShell", "psutil", "pathspec"),
        *("typing", "pathlib", "difflib", "sitecustomize", "usercustomize", "evil"),
    ):
        (folder / f"{name}.py").write_text(EVIL)
    for name in ("preflight_rules", "preflight_checks"):
        (folder / name).mkdir()
        (folder / name / "__init__.py").write_text(EVIL)
    for kind, names in (("egg-info", "PKG-INFO"), ("dist-info", "METADATA")):
        info = folder / f"evil-1.{kind}"
        info.mkdir()
        (info / names).write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
        groups = ("rules", "checks", "sources", "executors", "reporters")
        (info / "entry_points.txt").write_text("".join(f"[preflight.{g}]\nevil = evil:PACK\n" for g in groups))
    (folder / "pyproject.toml").write_text('[project.entry-points."preflight.rules"]\nevil = "evil:PACK"\n')
    return folder


@pytest.mark.parametrize("command", [(COMMAND,), (sys.executable, "-m", "preflight")], ids=["command", "module"])
def test_nothing_in_the_linted_tree_is_imported(hostile: Path, command: tuple[str, ...]) -> None:
    done = main_run("lint", ".", "-o", "json", cwd=hostile, command=command)
    assert not list(hostile.rglob("*.ran"))
    report = assert_follows_schema(done.stdout.encode())
    assert done.returncode == 1
    assert report["coverage"]["broken"] == []
    assert not [plugin for plugin in report["tool"]["plugins"] if "evil" in plugin]


def test_explain_and_rules_import_nothing_from_the_tree(hostile: Path) -> None:
    for arguments in (["rules"], ["explain", "RDV001"], ["--help"]):
        assert main_run(*arguments, cwd=hostile, command=(sys.executable, "-m", "preflight")).returncode == 0
    assert not list(hostile.rglob("*.ran"))


def test_a_report_written_only_to_a_file_is_announced(tree: Path) -> None:
    done = main_run("lint", "bad", "-o", "json:out.json", cwd=tree)
    assert (done.returncode, done.stdout) == (1, "")
    assert "NO-GO" in done.stderr and "out.json" in done.stderr


# --- standard input, and lists of files ---


def piped(text: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the command with text on its standard input."""
    return subprocess.run(
        [COMMAND, *arguments], cwd=cwd, input=text, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_script_on_standard_input_is_judged_like_a_file_of_that_name(tree: Path) -> None:
    done = piped(BAD, "lint", "-", "--stdin-name", "bad/new.sh", cwd=tree)
    assert done.returncode == 1
    assert "--> bad/new.sh:2:" in done.stdout
    assert "2 files in 1 job" in done.stdout, "the script that it starts lies beside it"
    assert not (tree / "bad" / "new.sh").exists()
    # A file of that name on disk does not count.
    assert piped(GOOD, "lint", "-", "--stdin-name", "bad/run.sh", cwd=tree).returncode == 0
    assert "--> stdin:2:" in piped(BAD, "lint", "-", cwd=tree).stdout
    unnamed = piped("hello world\n", "lint", "-", cwd=tree)
    assert unnamed.returncode == 4
    assert "--stdin-name" in unnamed.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--stdin-name", "x.sh"], "--stdin-name needs - among the paths"),
        (["-", "--fix"], "cannot be used with standard input"),
        (["-", "--stdin-name", "bad"], "this is a folder"),
        (["-", "--stdin-name", "../x.sh", "--root", "."], "is outside --root"),
    ],
)
def test_mistakes_about_standard_input(arguments: list[str], expected: str, tree: Path) -> None:
    done = piped(BAD, "lint", *arguments, cwd=tree)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr


def test_files_are_listed_by_job(
    tree: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tree)
    assert run_command("lint", "--list-files", "--exclude", "good") == 0
    assert capfd.readouterr().out == "bad/run.sh\n    bad/run.sh  (shell)\n    bad/train.py  (python)\n"


def test_exit_handlers_run() -> None:
    code = (
        "import atexit; from preflight.cli import main as cli; atexit.register(print, 'at the end', end=''); cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr, done.returncode) == (f"preflight {__version__}\nat the end", "", 0)
    refused = subprocess.run([sys.executable, "-c", code, "none"], capture_output=True, text=True, timeout=30)
    assert (refused.stdout, refused.returncode) == ("at the end", 2)


# Documents other than reports: what is written where.


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_text_is_written_in_the_encoding_of_the_terminal(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash\ntorchrun --standalone --nproc_per_node=2 zug_训.py\n", "utf-8")
    monkeypatch.setattr(terminal, "encoding_of", lambda stream: "iso8859-1")
    assert main.run(["plan", str(tmp_path / "run.sh"), "-o", form]) == 0
    assert rb"zug_\u8bad.py" in capfdbinary.readouterr().out


def test_a_file_is_always_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.sh").write_text("#!/bin/bash\ntorchrun --standalone --nproc_per_node=2 zug_训.py\n", "utf-8")
    monkeypatch.setattr(terminal, "encoding_of", lambda stream: "iso8859-1")
    assert main.run(["plan", str(tmp_path / "run.sh"), "-o", f"text:{tmp_path / 'plan.txt'}"]) == 0
    assert "zug_训.py" in (tmp_path / "plan.txt").read_text("utf-8")


# Typing mistakes on the command line: commands, options, values, ids, files.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a job in it."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "train.sbatch").write_text("#!/bin/bash\ntorchrun --nnodes=2 train.py\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["lnit", "jobs"], "No such command 'lnit'. Did you mean 'lint'?"),
        (["lint", "--selct", "RDV"], "No such option: --selct. Did you mean --select?"),
        (["check", "x", "--hostss", "a"], "No such option: --hostss. Did you mean --hosts?"),
        (["lint", "--hosts", "a"], "smoke and check have it."),
        (["judge", "--until", "node", "x"], "judge has no option --until; nodes and check have it."),
        (["lint", "--profile", "gat"], "Did you mean 'gate'?"),
        (["lint", "--fail-on", "eror"], "Did you mean 'error'?"),
        (["schema", "recoding"], "Did you mean 'recording'?"),
        (["rules", "-o", "markdwn"], "Did you mean 'markdown'?"),
        (["baseline", "wirte"], "Did you mean 'write'?"),
        (["lint", "--output", "sari"], "did you mean 'sarif'?"),
        (["lint", "--select", "RDV01"], "the nearest: RDV001"),
        (["lint", "job"], "job does not exist; did you mean jobs?"),
        (["lint", "jobs/trian.sbatch"], "jobs/trian.sbatch does not exist; did you mean jobs/train.sbatch?"),
        (["lint", "job/train.sbatch"], "did you mean jobs/train.sbatch?"),
        (["judge", "jobs/train.sbath"], "did you mean jobs/train.sbatch?"),
        (["diagnose", "job"], "did you mean jobs?"),
        (["judge", "jobs/train.sbatch"], "; `preflight check --save FILE` writes one"),
        (["smoke", "--hosts", "a", "--python", "p", "--drill", "kil:rank1"], "did you mean kill?"),
        (["lint", "--quiet", "-v"], "--quiet and --verbose are mutually exclusive"),
        (["lint", "--concise", "--statistics"], "mutually exclusive"),
    ],
)
def test_a_typo_gets_a_suggestion(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
) -> None:
    assert run(arguments) == 2
    said = capsys.readouterr().err
    assert hint in " ".join(said.split())
    assert "Traceback" not in said


def test_an_unrelated_word_gets_no_hint(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["lint", "zzzzzz"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_suggestions_ignore_case() -> None:
    assert nearest("readme.MD", ["README.md", "run.sh"]) == "README.md"
    assert nearest("x", ["README.md"]) == ""


def test_a_misspelt_folder_gets_a_suggestion(folder: Path) -> None:
    assert nearest_path(Path("job/other.sh")) == "; there is jobs"
    assert nearest_path(Path("jobs")) == ""


# Options of `preflight lsp`, and its message without the library.


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Choices, tuple[str, int] | None]]:
    """What would be served."""
    found: list[tuple[Choices, tuple[str, int] | None]] = []
    monkeypatch.setattr(server, "serve", lambda choices, address: found.append((choices, address)))
    return found


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ([], None),
        (["--stdio"], None),
        (["--tcp", "2087"], ("127.0.0.1", 2087)),
        (["--tcp", ":2087"], ("127.0.0.1", 2087)),
        (["--tcp", "0.0.0.0:2087"], ("0.0.0.0", 2087)),
        (["--tcp", "[::1]:2087"], ("::1", 2087)),
    ],
)
def test_only_a_given_host_is_bound(served: list[Any], given: list[str], address: tuple[str, int] | None) -> None:
    assert run(["lsp", "--no-config", *given]) == 0
    ((choices, bound),) = served
    assert bound == address and not choices.use_file


@pytest.mark.parametrize(
    "given", [["--tcp", "x"], ["--tcp", "localhost:0"], ["--tcp", "1:70000"], ["--tcp", "1", "--stdio"]]
)
def test_an_address_that_cannot_be_used(served: list[Any], given: list[str]) -> None:
    assert run(["lsp", *given]) == 2 and not served


def test_without_the_extra_the_message_names_it(
    served: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "pygls" else find(name, *more))
    assert run(["lsp"]) == 2 and not served
    assert 'pip install "preflight-train[lsp]"' in capsys.readouterr().err
