"""Which nodes of a report are fit for the job, which are not, and how to run without the latter."""

from __future__ import annotations

from typing import NamedTuple

from preflight._util.hostnames import folded, is_hostname
from preflight.engine.report import ExitCode, Report
from preflight.model.findings import Severity


class Hosts(NamedTuple):
    """The nodes of a run by result, each in rank order and in exactly one of the three.

    Args:
        passing: all others.
        failing: not reached, or named by a finding that makes the verdict no-go.
        unknown: a required result about them is unknown.
    """

    passing: tuple[str, ...] = ()
    failing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


def hosts_of(report: Report) -> Hosts:
    """Sort the nodes of a report by result. A finding only about files concerns no node.

    A run with an injected fault decides nothing about its nodes.
    """
    rank = Severity(report.configuration.fail_on).rank
    failing = {record.node.name for record in report.nodes if record.problem}
    has_injected_fault = report.run.smoke_options.injected_fault is not None
    for finding in () if has_injected_fault else report.findings:
        if finding.severity.rank >= rank:
            failing.update(finding.nodes)
    names = [record.node.name for record in report.nodes]
    unknown = (set(names) if has_injected_fault else _unknown(report, frozenset(names))) - failing
    return Hosts(
        tuple(name for name in names if name not in failing and name not in unknown),
        tuple(name for name in names if name in failing),
        tuple(name for name in names if name in unknown),
    )


def _unknown(report: Report, names: frozenset[str]) -> set[str]:
    """The nodes that a required unknown result concerns. One that lists no nodes concerns all of them."""
    looked_at = any(stage.name == "node" and not stage.skipped for stage in report.run.stages)
    if not looked_at or report.exit_code in (ExitCode.INTERRUPTED, ExitCode.TERMINATED):
        return set(names)
    unknown: set[str] = set()
    for outcome in report.coverage.unknown_outcomes:
        if outcome.required and outcome.stage != "lint":
            # A check of a plugin may name a node in the subject alone.
            unknown |= (names & {*outcome.nodes, outcome.subject}) or names
    return unknown


def starts_without(report: Report, hosts: Hosts) -> tuple[str, ...]:
    """Commands and options that run the job without the failing nodes; empty if no node would be left."""
    left = len(hosts.passing) + len(hosts.unknown)
    if not hosts.failing or not left or not all(map(is_hostname, hosts.failing)):
        return ()
    starts: list[str] = []
    scripts = sorted({c.span.path for job in report.jobs for c in job.claims if c.source == "slurm"})
    if scripts or report.run.executor == "slurm":
        starts.append(f"sbatch --exclude={folded(hosts.failing)}" + (f" {scripts[0]}" if len(scripts) == 1 else ""))
    launchers = {launch.launcher for job in report.jobs for launch in job.launches}
    if "deepspeed" in launchers:
        starts.append(f'deepspeed --exclude="{"@".join(hosts.failing)}"')
    if not starts:
        starts.append("--output passing-hosts:hosts.txt lists the passing nodes, for launchers that accept a host file")
    return tuple(starts)
