"""The Kubernetes manifests are valid, current, and free of findings."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from preflight import api
from preflight.engine.report import Report
from preflight.model.findings import VerdictKind
from preflight.model.measurements import Measurements
from preflight.reporters.base import Style
from preflight.reporters.openmetrics import REPORTER
from preflight_checks.charts.node_tables import QUANTITIES
from tests.commands.history.fleet import Fleet
from tests.ports import free_port
from tests.waiting import until
from tools.manifests import FOLDER, MANIFESTS, ROOT, written

pytestmark = pytest.mark.thorough

JOB = ROOT / "examples" / "kubernetes-job" / "good"


@pytest.mark.parametrize("name", MANIFESTS)
def test_a_manifest_is_what_is_printed_today(name: str) -> None:
    assert (FOLDER / name).read_text() == written(MANIFESTS[name]), "write it anew: make docs"


@pytest.mark.parametrize("name", MANIFESTS)
def test_every_object_follows_the_schema_of_kubernetes(name: str) -> None:
    objects = list(yaml.safe_load_all((FOLDER / name).read_text()))
    for document in objects:
        kubernetes_validate.validate(document, "1.33", strict=True)
    assert "Job" in {document["kind"] for document in objects}


def test_added_objects_do_not_change_the_verdict(tmp_path: Path) -> None:
    for name in ("job.yaml", "train.py"):
        (tmp_path / name).write_text((JOB / name).read_text())
    (tmp_path / "job.yaml").write_text((FOLDER / "init-container.yaml").read_text())
    assert api.lint([tmp_path], root=tmp_path).verdict is VerdictKind.GO


@pytest.fixture
def applied(tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run the gate with a stub for kubectl that stores its input; there is no cluster."""
    paths = os.pathsep.join(str(path) for path in (ROOT, ROOT / "checks", ROOT / "rules"))
    stub = '#!/bin/sh\ncp "$3" kept.yaml\necho "$1 $2 $4 $5" >> kept\n'
    for name, script in (("kubectl", stub), ("preflight", f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')):
        (tmp_path / name).write_text(script)
        (tmp_path / name).chmod(0o755)

    def run(text: str, *words: str) -> tuple[int, str]:
        done = subprocess.run(
            [str(FOLDER / "apply"), *words],
            input=text,
            cwd=tmp_path,
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "PYTHONPATH": paths},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stderr

    return run


def test_gate_applies_its_input(applied: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    text = (JOB / "job.yaml").read_text()
    code, _ = applied(text, "--namespace", "ml")
    assert code == 0
    assert (tmp_path / "kept.yaml").read_text() == text
    assert (tmp_path / "kept").read_text() == "apply -f --namespace ml\n"


def test_the_gate_stops_a_broken_job(applied: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    code, said = applied((JOB.parent / "broken" / "job.yaml").read_text())
    assert code == 1 and "WLD001" in said and "nothing was applied" in said
    assert not (tmp_path / "kept").exists()


def test_the_gate_lets_other_objects_pass(applied: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    assert applied("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n")[0] == 0
    assert (tmp_path / "kept").exists()


# The dashboard and the alerts: current, valid, and answered by a real Prometheus that scrapes our metrics.


DASHBOARD = ROOT / "integrations" / "prometheus" / "preflight-dashboard.json"
ALERTS = DASHBOARD.with_name("preflight-alerts.yml")
UNIT_TEST = Path(__file__).with_name("prometheus_alerts_test.yml")
_LIMIT_S = 90.0


def program(name: str) -> str:
    """The path of a program of Debian's package; without it the test is skipped, or fails in CI."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is missing (Debian package: prometheus)"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


def metrics() -> str:
    """What preflight writes about a night with failing nodes, measured links and changed drivers."""
    night = max(Fleet(12, 3, fails=0.3).reports(), key=lambda report: len(report.findings))
    return REPORTER.render(_with_links(night), Style()).decode()


def _with_links(report: Report) -> Report:
    names = tuple(record.node.name for record in report.nodes)
    peers = (*names[1:], names[0])
    links = (
        Measurements(QUANTITIES["link_bandwidth"], names, tuple(9e9 for _ in names), peers),
        Measurements(QUANTITIES["link_latency"], names, tuple(4e-5 for _ in names), peers),
    )
    return replace(report, measurements=(*report.measurements, *links))


def checked(arguments: list[str], **options: Any) -> str:
    """Run a program to its end, which must be good; what it says."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_grafanas_own_types_lose_nothing_of_the_dashboard() -> None:
    """A key that Grafana does not know, or has elsewhere, would not survive."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    given = json.loads(DASHBOARD.read_text())
    kept = json.loads(json.dumps(Dashboard.from_json(given), cls=JSONEncoder))
    assert list(_lost(given, kept, "")) == []
    misspelled = {**given, "panels": [{**given["panels"][0], "gridPosition": 1}]}
    again = json.loads(json.dumps(Dashboard.from_json(misspelled), cls=JSONEncoder))
    assert list(_lost(misspelled, again, "")) == ["/panels/0/gridPosition"]


def _lost(given: Any, kept: Any, where: str) -> Iterator[str]:
    if isinstance(given, dict):
        for key, value in given.items():
            if not isinstance(kept, dict) or key not in kept:
                yield f"{where}/{key}"
            else:
                yield from _lost(value, kept[key], f"{where}/{key}")
    elif isinstance(given, list):
        if not isinstance(kept, list) or len(kept) != len(given):
            yield where
        else:
            for number, value in enumerate(given):
                yield from _lost(value, kept[number], f"{where}/{number}")
    elif given != kept:
        yield where


def test_promtool_accepts_our_metrics() -> None:
    assert checked([program("promtool"), "check", "metrics"], input=metrics()) == ""


def test_promtool_accepts_the_alerts_and_their_unit_test(tmp_path: Path) -> None:
    tool = program("promtool")
    assert "6 rules found" in checked([tool, "check", "rules", str(ALERTS)])
    (tmp_path / "test.yml").write_text(UNIT_TEST.read_text().replace("ALERTS", str(ALERTS)))
    checked([tool, "test", "rules", str(tmp_path / "test.yml")])


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Prometheus that has scraped our metrics."""
    server = program("prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    body = metrics().encode()

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Metrics) as source:
        threading.Thread(target=source.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{source.server_address[1]}"
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ALERTS)],
            "scrape_configs": [{"job_name": "node", "static_configs": [{"targets": [target]}]}],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        url = f"http://127.0.0.1:{free_port()}"
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    server,
                    f"--config.file={folder}/prometheus.yml",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address={url.removeprefix('http://')}",
                ],
                stdout=log,
                stderr=log,
                cwd=folder,
            )
        try:
            until(lambda: process.poll() is not None or _scraped(url))
            assert process.poll() is None, (folder / "log").read_text()
            yield url
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(30)
            source.shutdown()


def _scraped(url: str) -> bool:
    try:
        return bool(ask(url, "query", query='preflight_build{job="node"}')["result"])
    except OSError:
        return False


def ask(url: str, what: str, **parameters: str) -> Any:
    """The data of an answer of Prometheus."""
    with urllib.request.urlopen(f"{url}/api/v1/{what}?{urllib.parse.urlencode(parameters)}", timeout=30) as answer:
        found = json.load(answer)
    assert found["status"] == "success", found
    return found["data"]


PANELS = json.loads(DASHBOARD.read_text())["panels"]


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_every_query_of_the_dashboard_finds_something(prometheus: str, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        query = target["expr"].replace("$job", ".*").replace("$node", ".*")
        assert "$" not in query
        result = ask(prometheus, "query", query=query)["result"]
        assert result, query
        labels = set().union(*(series["metric"] for series in result))
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= labels


def test_every_variable_of_the_dashboard_finds_something(prometheus: str) -> None:
    for variable in json.loads(DASHBOARD.read_text())["templating"]["list"]:
        if variable["type"] == "query":
            match = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", variable["query"])
            assert match is not None
            assert ask(prometheus, f"label/{match[2]}/values", **{"match[]": match[1]}), variable["name"]


def test_every_metric_of_the_alerts_exists(prometheus: str) -> None:
    known = set(ask(prometheus, "label/__name__/values"))
    assert (
        set(
            re.findall(r"\bpreflight_\w+", re.sub(r"annotations:.*?(?=- alert|\Z)", "", ALERTS.read_text(), flags=re.S))
        )
        <= known
    )
    rules = ask(prometheus, "rules")["groups"][0]["rules"]
    assert len(rules) == 6 and {rule["health"] for rule in rules} <= {"ok", "unknown"}
    assert ask(prometheus, "query", query='ALERTS{alertname="PreflightNodeFailing"}') is not None


# The units for a nightly check: systemd reads them, and their command runs.


UNIT_FOLDER = Path(__file__).resolve().parents[2] / "integrations" / "systemd"
SERVICE = UNIT_FOLDER / "preflight-nightly.service"


def command_line() -> list[str]:
    """The words of ExecStart=, with the variables of systemd still in them."""
    (line,) = re.findall(r"^ExecStart=(.*)$", SERVICE.read_text(), re.MULTILINE)
    return shlex.split(line)


def test_the_command_writes_everything_that_the_page_names(tmp_path: Path) -> None:
    program, *words = command_line()
    assert program == "/opt/preflight/bin/preflight" and words[-1] == "$PREFLIGHT_OPTIONS"
    words = [word.replace("${STATE_DIRECTORY}", str(tmp_path)) for word in words[:-1]]
    options = ["--on", "local", "--select", "NOD", "--expect", "cpus>=1"]
    done = subprocess.run(
        [str(Path(sys.executable).with_name("preflight")), *words, *options],
        env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache")},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("GO  nothing found; 1 node\n")
    assert {path.name for path in tmp_path.iterdir()} >= {
        "last.json.gz",
        "last.html",
        "last-report.json",
        "failing-hosts",
    }


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    for unit in UNIT_FOLDER.iterdir():
        text = unit.read_text().replace("/opt/preflight/bin/preflight", "/bin/true").replace("User=preflight\n", "")
        (tmp_path / unit.name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, tmp_path.iterdir())],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0 and "preflight-nightly" not in done.stderr, done.stderr


# Completion, as triggered by the Tab key in a real shell.


COMPLETION_ROOT = Path(__file__).resolve().parents[2]
COMPLETION_FOLDER = COMPLETION_ROOT / "integrations" / "completion"
DEADLINE_S = 30.0
BASH = ("bash", "--noprofile", "--norc", "-i")
ZSH = ("zsh", "-f", "-i")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a shell that finds preflight, with a plain text terminal."""
    folder = tmp_path_factory.mktemp("bin")
    (folder / "preflight").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m preflight "$@"\n')
    (folder / "preflight").chmod(0o755)
    paths = os.pathsep.join(
        str(path) for path in (COMPLETION_ROOT, COMPLETION_ROOT / "checks", COMPLETION_ROOT / "rules")
    )
    return {
        "PATH": f"{folder}:/usr/bin:/bin",
        "PYTHONPATH": paths,
        "HOME": str(folder),
        "TERM": "dumb",
        "LC_ALL": "C.UTF-8",
    }


class Terminal:
    """A shell in its own terminal."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self.descriptor, text.encode())

    def until(self, pattern: str) -> str:
        """Read the output until it contains a match."""
        shown, deadline = "", time.monotonic() + DEADLINE_S
        while not re.search(pattern, shown):
            ready, _, _ = select.select([self.descriptor], [], [], max(deadline - time.monotonic(), 0))
            assert ready, f"waited for {pattern!r}, seen so far: {shown!r}"
            shown += os.read(self.descriptor, 4096).decode(errors="replace").replace("\r", "").replace("\b", "")
        return shown


@contextmanager
def shell(words: tuple[str, ...], environment: dict[str, str]) -> Iterator[Terminal]:
    """A shell, until the end of the block."""
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execvpe(words[0], list(words), environment)
    try:
        yield Terminal(descriptor)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(descriptor)


def test_bash_completes_verbs_options_words_and_ids(environment: dict[str, str]) -> None:
    with shell(BASH, environment) as terminal:
        terminal.type(
            f"PS1='> '; bind 'set bell-style none'; source {COMPLETION_FOLDER / 'preflight.bash'}; echo rea''dy\n"
        )
        terminal.until("ready\n")
        for typed, completed in (
            ("preflight li", "lint "),
            ("preflight lint --stati", "--statistics "),
            ("preflight check --until no", "node "),
            ("preflight lint --select WLD00", r"WLD00[\s\S]*WLD001[\s\S]*WLD002"),
            ("preflight lint --select ENV,rendezvous-on-loo", "rendezvous-on-loopback "),
        ):
            # The second press lists the candidates if there are several.
            terminal.type(f"{typed}\t" + "\t" * ("[" in completed))
            terminal.until(re.escape(typed.rpartition(" ")[0]) + r"[\s\S]*" + completed)
            terminal.type("\x15\n")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes(environment: dict[str, str]) -> None:
    with shell(ZSH, environment) as terminal:
        terminal.type(
            f"PS1='> '; autoload -U compinit; compinit -D; source {COMPLETION_FOLDER / 'preflight.zsh'}; echo rea''dy\n"
        )
        terminal.until("ready\n")
        terminal.type("preflight lint --stati\t")
        terminal.until("--statistics")
        terminal.type("\x15preflight lint --select RDV00\t")
        terminal.until(r"RDV001[\s\S]*rendezvous-on-loopback")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_completes(environment: dict[str, str]) -> None:
    def completed(typed: str) -> list[str]:
        script = f"source {COMPLETION_FOLDER / 'preflight.fish'}; complete --do-complete '{typed}'"
        words = ["fish", "--no-config", "-c", script]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert completed("preflight li") == ["lint"]
    assert "RDV001" in completed("preflight lint --select RDV0")


@pytest.mark.parametrize("name", ["bash", "zsh", "fish"])
def test_the_files_are_what_the_command_prints(name: str, environment: dict[str, str]) -> None:
    done = subprocess.run(
        ["preflight"],
        env={**environment, "_PREFLIGHT_COMPLETE": f"{name}_source"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout.strip() == (COMPLETION_FOLDER / f"preflight.{name}").read_text().strip()


# Every distributed shell script passes the linter, and documents its use.


SCRIPT_FOLDER = Path(__file__).resolve().parents[2] / "integrations"
SCRIPTS = sorted(path for path in SCRIPT_FOLDER.rglob("*") if path.is_file() and path.read_bytes().startswith(b"#!/"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_a_script_is_plain_shell(path: Path) -> None:
    assert path.read_text().startswith("#!/bin/sh\n# ")
    assert os.access(path, os.X_OK)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", str(path)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stdout


def test_every_script_is_tested() -> None:
    assert {path.name for path in SCRIPTS} == {"psbatch", "prolog", "health-check", "spool", "apply"}
