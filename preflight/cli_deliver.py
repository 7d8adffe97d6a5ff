"""Handing out the report of a verb: in every format asked for, and also after a bug."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from preflight.deliver import Output
    from preflight.event_stream import EventStream
    from preflight.progress import Progress
    from preflight.report import Report
    from preflight.reporters.base import Style


def deliver_report(
    verb: str,
    chosen: dict[str, Any],
    make: Callable[[], Report],
    *,
    output: str = "",
    price_per_gpu_hour: float | None = None,
) -> int:
    """Make the report and write it in every format asked for, else as `output`; the exit code is the report's own."""
    return deliver_live(verb, chosen, lambda _: make(), output=output, price_per_gpu_hour=price_per_gpu_hour)


def deliver_live(
    verb: str,
    chosen: dict[str, Any],
    make: Callable[[Progress | None], Report],
    *,
    output: str = "",
    price_per_gpu_hour: float | None = None,
) -> int:
    """The same for a run that tells how it goes: whoever reads events is told, too.

    `output` and `price_per_gpu_hour` are what the configuration says, where the command line says nothing.
    After a bug in preflight there is a report too, which says so: whoever waits for the file finds one.
    """
    from preflight import deliver
    from preflight.errors import UsageError

    outputs = _outputs(chosen, output)
    style = _style(chosen)
    with _told(chosen["events"], verb) as events:

        def hand_out(report: Report) -> int:
            if events is not None:
                events.report(report)
            deliver.deliver(report, outputs, color=chosen["color"], style=style)
            return report.exit_code

        try:
            report = make(events)
        except (UsageError, click.ClickException):
            raise
        except Exception as error:
            from preflight import api

            hand_out(api.crashed(error, verb=verb))
            raise
        return hand_out(_priced(report, chosen["price_per_gpu_hour"], price_per_gpu_hour))


def _priced(report: Report, chosen: float | None, configured: float | None) -> Report:
    """The report with what a no-go saved in money, where it saved anything and there is a price."""
    price = chosen if chosen is not None else configured
    if report.saved is None or price is None:
        return report
    from preflight.stakes import priced

    return replace(report, saved=priced(report.saved, price))


def _outputs(chosen: dict[str, Any], output: str) -> tuple[Output, ...]:
    """Where the report goes; standard output has room for it or for events."""
    from preflight import deliver
    from preflight.errors import UsageError

    if chosen["events"] != "-":
        return deliver.outputs(chosen["outputs"] or ((output,) if output else ()))
    found = deliver.outputs(chosen["outputs"]) if chosen["outputs"] else ()
    if any(one.path is None for one in found):
        raise UsageError("--events - takes standard output; give the report a file: --output text:report.txt")
    return found


def _told(target: str | None, verb: str) -> AbstractContextManager[EventStream | None]:
    if target is None:
        return nullcontext()
    from preflight.event_stream import told

    return told(target, verb)


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
