"""Handing out the report of a verb: in every format asked for, and also after a bug."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from preflight.report import Report
    from preflight.reporters.base import Style


def deliver_report(verb: str, chosen: dict[str, Any], make: Callable[[], Report], *, output: str = "") -> int:
    """Make the report and write it in every format asked for, else as `output`; the exit code is the report's own.

    After a bug in preflight there is a report too, which says so: whoever waits for the file finds one.
    """
    from preflight import deliver
    from preflight.errors import UsageError

    outputs = deliver.outputs(chosen["outputs"] or ((output,) if output else ()))
    style = _style(chosen)

    def hand_out(report: Report) -> int:
        deliver.deliver(report, outputs, color=chosen["color"], style=style)
        return report.exit_code

    try:
        report = make()
    except (UsageError, click.ClickException):
        raise
    except Exception as error:
        from preflight import api

        hand_out(api.crashed(error, verb=verb))
        raise
    return hand_out(report)


def _style(chosen: dict[str, Any]) -> Style:
    """How much is wanted of the report."""
    from preflight.errors import UsageError
    from preflight.reporters.base import Style

    if chosen["concise"] and chosen["statistics"]:
        raise UsageError("--concise lists findings, and --statistics counts them instead; leave one of them out")
    if chosen["quiet"] and chosen["verbose"]:
        raise UsageError("--quiet asks for less and --verbose for more; leave one of them out")
    verbosity = -1 if chosen["quiet"] else chosen["verbose"]
    return Style(verbosity=verbosity, statistics=chosen["statistics"], concise=chosen["concise"])
