"""Lists of nodes, one name per line: fit for the job, not fit, and unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from preflight._util.sanitize import clean
from preflight.engine.node_status import Hosts, hosts_of
from preflight.engine.report import Report
from preflight.reporters.base import Style


@dataclass(frozen=True, slots=True)
class HostsReporter:
    """Renders one of the lists in rank order. An empty list gives an empty file."""

    name: str
    chosen: Callable[[Hosts], tuple[str, ...]]

    def render(self, report: Report, style: Style) -> bytes:
        """Render one name per line; `style` is ignored."""
        return "".join(f"{clean(name)}\n" for name in self.chosen(hosts_of(report))).encode("utf-8", "replace")


PASSING = HostsReporter("passing-hosts", lambda hosts: hosts.passing)
FAILING = HostsReporter("failing-hosts", lambda hosts: hosts.failing)
UNKNOWN = HostsReporter("unknown-hosts", lambda hosts: hosts.unknown)
