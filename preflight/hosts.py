"""Which nodes of a report are fit for the job, which are not, and how to leave those out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.job.hostlist import expand_hosts
from preflight.job.hostname import folded, is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Severity
from preflight.report import ExitCode, Report

_CUT_SHORT = lazy_pattern(r"\band [0-9]+ more\b")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The nodes of a run by what became of them, each in rank order and in one of the three.

    Args:
        failing: not reached, or named by a finding that makes the verdict no-go.
        untold: something that had to be known of them could not be.
        passing: all others.
    """

    passing: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    untold: tuple[str, ...] = ()


def hosts_of(report: Report) -> Hosts:
    """What became of each node of the report. A finding about files alone names none and so speaks of none.

    A run that played a fault says nothing of the nodes that took part.
    """
    rank = Severity(report.configuration.fail_on).rank
    failing = {record.node.name for record in report.nodes if record.problem}
    drilled = report.run.wish.drill is not None
    for finding in () if drilled else report.findings:
        if finding.severity.rank >= rank:
            failing.update(finding.nodes)
    names = [record.node.name for record in report.nodes]
    untold = (set(names) if drilled else _untold(report, names)) - failing
    return Hosts(
        tuple(name for name in names if name not in failing and name not in untold),
        tuple(name for name in names if name in failing),
        tuple(name for name in names if name in untold),
    )


def _untold(report: Report, names: Sequence[str]) -> set[str]:
    """The nodes of which something that had to be known is not. A question that names no node is open for all."""
    looked_at = any(stage.name == "node" and not stage.skipped for stage in report.run.stages)
    if not looked_at or report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        return set(names)
    untold: set[str] = set()
    for outcome in report.coverage.not_told:
        if outcome.required and outcome.stage != "lint":
            text = f"{outcome.subject} {outcome.reason}"
            named = _named(names, text)
            # "node1, node2 and 6 more" does not say which.
            untold |= named if named and not _CUT_SHORT.search(text) else set(names)
    return untold


def _named(names: Sequence[str], text: str) -> set[str]:
    """The names that stand in a text as words of their own, or in a range such as `node[1-3]`."""
    words: set[str] = set()
    for word in re.findall(r"[A-Za-z0-9_.-]+(?:\[[0-9,-]+\][A-Za-z0-9_.-]*)*", text):
        try:
            words.update(expand_hosts(word) if "[" in word else (word.rstrip("."),))
        except ValueError:
            words.add(word)
    return {name for name in names if name in words}


def ways_without(report: Report, hosts: Hosts) -> tuple[str, ...]:
    """Commands and options that run the job without the failing nodes; none where no node would be left."""
    left = len(hosts.passing) + len(hosts.untold)
    if not hosts.failing or not left or not all(map(is_hostname, hosts.failing)):
        return ()
    ways: list[str] = []
    scripts = sorted({c.span.path for job in report.jobs for c in job.claims if c.source == "slurm"})
    if scripts or report.run.executor == "slurm":
        ways.append(f"sbatch --exclude={folded(hosts.failing)}" + (f" {scripts[0]}" if len(scripts) == 1 else ""))
    launchers = {launch.launcher for job in report.jobs for launch in job.launches}
    if "deepspeed" in launchers:
        ways.append(f'deepspeed --exclude="{"@".join(hosts.failing)}"')
    if not ways:
        ways.append("--output passing-hosts:hosts.txt lists the nodes that are fit, for launchers with a host file")
    return tuple(ways)
