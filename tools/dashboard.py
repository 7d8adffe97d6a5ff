"""Writes the dashboard for Grafana over the metrics of preflight: `python -m tools.dashboard`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "integrations" / "prometheus" / "preflight-dashboard.json"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24
_STATE_COLORS = {"passing": "green", "failing": "red", "unknown": "orange"}


class _Board:
    def __init__(self) -> None:
        self.panels: list[dict[str, Any]] = []
        self._x = self._y = self._row = 0

    def add(
        self,
        kind: str,
        title: str,
        queries: list[tuple[str, str]],
        *,
        width: int,
        height: int,
        about: str,
        unit: str = "",
        options: dict[str, Any] | None = None,
        defaults: dict[str, Any] | None = None,
        overrides: list[dict[str, Any]] | None = None,
        instant: bool = False,
        transformations: list[dict[str, Any]] | None = None,
    ) -> None:
        """Add a panel. A query is an expression and the legend of its series."""
        if self._x + width > _WIDTH:
            self._x, self._y, self._row = 0, self._y + self._row, 0
        targets = [
            {
                "refId": chr(ord("A") + number),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": instant,
                "range": not instant,
                **({"format": "table"} if kind == "table" else {}),
            }
            for number, (expression, legend) in enumerate(queries)
        ]
        panel: dict[str, Any] = {
            "id": len(self.panels) + 1,
            "type": kind,
            "title": title,
            "description": about,
            "datasource": _SOURCE,
            "gridPos": {"x": self._x, "y": self._y, "w": width, "h": height},
            "targets": targets,
            "fieldConfig": {
                "defaults": {**({"unit": unit} if unit else {}), **(defaults or {})},
                "overrides": overrides or [],
            },
            "options": options or {},
        }
        if transformations:
            panel["transformations"] = transformations
        self.panels.append(panel)
        self._x += width
        self._row = max(self._row, height)


def dashboard() -> dict[str, Any]:
    board = _Board()
    stat = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "background"}
    board.add(
        "stat",
        "Verdict of the newest run",
        [('max by (verdict) (preflight_verdict{job=~"$job"}) == 1', "{{verdict}}")],
        width=6,
        height=4,
        about="go, no-go, incomplete or not judged.",
        options={**stat, "textMode": "name"},
        overrides=[_colored("go", "green"), _colored("no-go", "red"), _colored("incomplete", "orange")],
        instant=True,
    )
    board.add(
        "stat",
        "Nodes",
        [('sum by (state) (preflight_nodes{job=~"$job"})', "{{state}}")],
        width=8,
        height=4,
        about="Nodes of the newest run by result.",
        options=stat,
        overrides=[_colored(state, color) for state, color in _STATE_COLORS.items()],
        instant=True,
    )
    board.add(
        "stat",
        "Age of the newest run",
        [('time() - max(preflight_run_timestamp_seconds{job=~"$job"})', "age")],
        width=5,
        height=4,
        unit="s",
        about="Red if there was no run for 36 hours.",
        options=stat,
        defaults={"thresholds": _steps(("green", None), ("orange", 26 * 3600), ("red", 36 * 3600))},
        instant=True,
    )
    board.add(
        "stat",
        "Required checks without a decision",
        [('sum(preflight_required_unknowns{job=~"$job"})', "undecided")],
        width=5,
        height=4,
        about="What could not be decided is not passed.",
        options=stat,
        defaults={"thresholds": _steps(("green", None), ("orange", 1))},
        instant=True,
    )
    lines = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": True}, "tooltip": {"mode": "multi"}}
    board.add(
        "timeseries",
        "Nodes over time",
        [('sum by (state) (preflight_nodes{job=~"$job"})', "{{state}}")],
        width=12,
        height=8,
        about="Nodes of each run by result.",
        options=lines,
        overrides=[_colored(state, color) for state, color in _STATE_COLORS.items()],
    )
    board.add(
        "state-timeline",
        "Failing nodes",
        [('max by (node) (preflight_node_state{job=~"$job",node=~"$node",state="failing"}) == 1', "{{node}}")],
        width=12,
        height=8,
        about="When each node was failing. Nodes that never failed have no row.",
        options={"showValue": "never", "mergeValues": True, "rowHeight": 0.9},
        defaults={"color": {"mode": "fixed", "fixedColor": "red"}},
    )
    hide = {"id": "organize", "options": {"excludeByName": {"Time": True}}}
    add_table = partial(board.add, "table", width=12, height=8, instant=True, transformations=[hide])
    add_table(
        "What failed",
        [('sum by (id, name, severity) (preflight_rule_findings{job=~"$job"})', "")],
        about="Findings by check. `preflight explain ID` says what it means.",
    )
    add_table(
        "Findings by node",
        [('sum by (node, id, name, severity) (preflight_node_findings{job=~"$job",node=~"$node"})', "")],
        about="Findings that are not suppressed.",
    )
    for title, metric, unit, about in (
        ("Throughput of nodes", "preflight_node_bandwidth_bytes_per_second", "Bps", "Median over the links of a node."),
        ("Round trip of nodes", "preflight_node_latency_seconds", "s", "Median over the links of a node."),
        ("Warmest GPU of nodes", "preflight_node_gpu_temperature_celsius", "celsius", "While the check ran."),
        ("Clock offset of nodes", "preflight_node_clock_offset_seconds", "s", "From the machine that ran preflight."),
    ):
        board.add(
            "timeseries",
            title,
            [(f'max by (node) ({metric}{{job=~"$job",node=~"$node"}})', "{{node}}")],
            width=12,
            height=8,
            unit=unit,
            about=about,
            options=lines,
        )
    add_table(
        "Slowest links",
        [
            (
                "bottomk(20, max by (node, peer) "
                '(preflight_link_bandwidth_bytes_per_second{job=~"$job",node=~"$node"}))',
                "",
            )
        ],
        unit="Bps",
        about="Throughput from node to peer in the newest run.",
    )
    add_table(
        "What nodes consist of",
        [('count by (gpu, gpus, driver, kernel, os) (preflight_node_info{job=~"$job",node=~"$node"})', "")],
        about="Number of nodes with the same GPUs, driver, kernel and system.",
    )
    return {
        "uid": "preflight-fleet",
        "title": "preflight: the fleet",
        "description": "What `preflight nodes --output openmetrics:FILE` found, run by run.",
        "tags": ["preflight"],
        "timezone": "browser",
        "schemaVersion": 39,
        "editable": True,
        "refresh": "5m",
        "time": {"from": "now-30d", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
                _variable("job", "Job of Prometheus", "label_values(preflight_build, job)"),
                _variable("node", "Node", 'label_values(preflight_node_state{job=~"$job"}, node)'),
            ]
        },
        "panels": board.panels,
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "sort": 1,
        "current": {"text": "All", "value": "$__all"},
    }


def _colored(name: str, color: str) -> dict[str, Any]:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
    }


def _steps(*steps: tuple[str, float | None]) -> dict[str, Any]:
    return {"mode": "absolute", "steps": [{"color": color, "value": value} for color, value in steps]}


def text() -> str:
    return json.dumps(dashboard(), indent=2) + "\n"


if __name__ == "__main__":
    FILE.write_text(text())
