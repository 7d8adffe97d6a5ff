"""Writes the result of a command in every requested format; a report even after a bug in preflight."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from pathlib import Path

    from preflight.engine.report import Report
    from preflight.model.progress import Progress
    from preflight.reporters.base import Style
    from preflight.reporters.events import EventStream
    from preflight.reporters.output import Output


def deliver_report(
    verb: str,
    chosen: dict[str, Any],
    make: Callable[[], Report],
    *,
    output: str = "",
    price_per_gpu_hour: float | None = None,
) -> int:
    """Make the report, write it in every requested format (default: `output`), and return its exit code."""
    return deliver_live(verb, chosen, lambda _: make(), output=output, price_per_gpu_hour=price_per_gpu_hour)


def deliver_live(
    verb: str,
    chosen: dict[str, Any],
    make: Callable[[Progress | None], Report],
    *,
    output: str = "",
    price_per_gpu_hour: float | None = None,
) -> int:
    """Like `deliver_report`, for a run that reports progress: `make` gets the event stream, if there is one.

    `output` and `price_per_gpu_hour` come from the configuration and apply if the command line does not set them.
    After a bug in preflight a report is written as well, so that a program waiting for the file always gets one.
    """
    from preflight._util.usage_error import UsageError
    from preflight.reporters import output as report_output

    outputs = _outputs(chosen, output)
    style = _style(chosen)
    with _event_stream(chosen["events"], verb) as events:

        def write(report: Report) -> int:
            if events is not None:
                events.report(report)
            report_output.deliver(report, outputs, color=chosen["color"], style=style)
            return report.exit_code

        try:
            report = make(events)
        except (UsageError, click.ClickException):
            raise
        except Exception as error:
            from preflight import api

            write(api.crashed(error, verb=verb))
            raise
        return write(_with_price(report, chosen["price_per_gpu_hour"], price_per_gpu_hour))


def deliver_document(
    document: object,
    targets: Iterable[tuple[str, Path | None]],
    render: Callable[[str, Style], str | bytes],
    *,
    color: bool | None,
    verbosity: int = 0,
    bulk: tuple[str, ...] = (),
) -> None:
    """Write what is not a report in every requested format: as JSON, or as `render` gives the named format.

    Args:
        bulk: lists of which each item is one line of JSON.
    """
    from preflight._util.json_output import to_bytes
    from preflight._util.terminal import encoded
    from preflight.reporters import output

    for name, path in targets:
        style = output.style_of(path, color, verbosity)
        content = to_bytes(document, indent=2, bulk=bulk) if name == "json" else render(name, style)
        output.put(content if isinstance(content, bytes) else encoded(content, style.encoding), name, path)


def _with_price(report: Report, chosen: float | None, configured: float | None) -> Report:
    """Add the avoided cost in money, if anything was avoided and a price is known."""
    price = chosen if chosen is not None else configured
    if report.avoided_cost is None or price is None:
        return report
    from preflight.engine.waste import with_price

    return replace(report, avoided_cost=with_price(report.avoided_cost, price))


def _outputs(chosen: dict[str, Any], output: str) -> tuple[Output, ...]:
    """Return where the report goes. Standard output accepts either the report or events, not both."""
    from preflight._util.usage_error import UsageError
    from preflight.reporters import output as report_output

    if chosen["events"] != "-":
        return report_output.outputs(chosen["outputs"] or ((output,) if output else ()))
    found = report_output.outputs(chosen["outputs"]) if chosen["outputs"] else ()
    if any(item.path is None for item in found):
        raise UsageError("--events - writes to standard output; write the report to a file: --output text:report.txt")
    return found


def _event_stream(target: str | None, verb: str) -> AbstractContextManager[EventStream | None]:
    if target is None:
        return nullcontext()
    from preflight.reporters.events import open_event_stream

    return open_event_stream(target, verb)


def _style(chosen: dict[str, Any]) -> Style:
    """Return how detailed the report should be."""
    from preflight._util.usage_error import UsageError
    from preflight.reporters.base import Style

    if chosen["concise"] and chosen["statistics"]:
        raise UsageError("--concise and --statistics exclude each other: one lists findings, the other counts them")
    if chosen["quiet"] and chosen["verbose"]:
        raise UsageError("--quiet and --verbose exclude each other")
    verbosity = -1 if chosen["quiet"] else chosen["verbose"]
    return Style(verbosity=verbosity, statistics=chosen["statistics"], concise=chosen["concise"])
