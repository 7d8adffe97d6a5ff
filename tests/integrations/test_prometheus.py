"""The dashboard and the alerts: current, valid, and answered by a real Prometheus that scrapes our metrics."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from preflight.engine.report import Report
from preflight.model.measurements import Measurements
from preflight.reporters.base import Style
from preflight.reporters.openmetrics import REPORTER
from preflight_checks.charts.link_matrices import LINK_BANDWIDTH, LINK_LATENCY
from tests.commands.history.fleet import Fleet
from tests.ports import free_port
from tests.waiting import until
from tools.dashboard import FILE, text

pytestmark = pytest.mark.thorough

ALERTS = FILE.with_name("preflight-alerts.yml")
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
        Measurements(LINK_BANDWIDTH, names, tuple(9e9 for _ in names), peers),
        Measurements(LINK_LATENCY, names, tuple(4e-5 for _ in names), peers),
    )
    return replace(report, measurements=(*report.measurements, *links))


def checked(arguments: list[str], **options: Any) -> str:
    """Run a program to its end, which must be good; what it says."""
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_dashboard_is_what_is_written_today() -> None:
    assert FILE.read_text() == text(), "write it again: python -m tools.dashboard"


def test_grafanas_own_types_lose_nothing_of_the_dashboard() -> None:
    """A key that Grafana does not know, or has elsewhere, would not survive."""
    pytest.importorskip("grafana_foundation_sdk")
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.cog.plugins import register_default_plugins
    from grafana_foundation_sdk.models.dashboard import Dashboard

    register_default_plugins()
    given = json.loads(FILE.read_text())
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


PANELS = json.loads(text())["panels"]


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
    for variable in json.loads(text())["templating"]["list"]:
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
