"""Lists of nodes, a name a line: those that are fit for the job, those that are not, those nobody can tell of."""

from __future__ import annotations

from collections.abc import Callable

from preflight.hosts import Hosts, hosts_of
from preflight.lazy.dataclasses import dataclass
from preflight.report import Report
from preflight.reporters.base import Style
from preflight.reporters.clean import clean


@dataclass(frozen=True, slots=True)
class HostsReporter:
    """One of the lists, in rank order; an empty one is an empty file."""

    name: str
    chosen: Callable[[Hosts], tuple[str, ...]]

    def render(self, report: Report, style: Style) -> bytes:
        """A name a line; `style` has no influence."""
        return "".join(f"{clean(name)}\n" for name in self.chosen(hosts_of(report))).encode("utf-8", "replace")


PASSING = HostsReporter("passing-hosts", lambda hosts: hosts.passing)
FAILING = HostsReporter("failing-hosts", lambda hosts: hosts.failing)
UNTOLD = HostsReporter("untold-hosts", lambda hosts: hosts.untold)
