"""The account of a fleet as text: first the stories, then the changes over time, then the nodes that ever failed."""

from __future__ import annotations

from rich.text import Text

from preflight._util.sanitize import fold_nodes
from preflight.commands.history.account import Account, NodeAccount
from preflight.commands.history.stories import Story
from preflight.reporters.base import Style
from preflight.reporters.text.full_report import Sheet
from preflight.reporters.text.groups import count

_SEVERE = ("down", "fails-again")
#: Number of property changes listed without -v, the newest ones.
_MAX_CHANGES = 5


def page(account: Account, style: Style) -> str:
    """Return the account as text, with ANSI colours if `style` requests them."""
    sheet = Sheet(style)
    if style.verbosity >= 0:
        period = f"{account.first[:10]} to {account.last[:10]}, " if account.runs else ""
        size = f"{count(account.runs, 'run')} of {count(len(account.nodes), 'node')}"
        sheet.wrapped(f"{period}{size} ({account.database})", indent=0, label="history: ", style="bold")
        sheet.line()
    for story in account.stories:
        _print_story(sheet, story)
    if style.verbosity >= 0:
        _print_changes(sheet, account, style)
    if style.verbosity > 0:
        _print_nodes(sheet, account)
    sheet.line(_last_line(account))
    return sheet.text()


def _print_story(sheet: Sheet, story: Story) -> None:
    kind = Text(f"{story.kind} ", style="bold red" if story.kind in _SEVERE else "bold yellow")
    nodes = fold_nodes(story.nodes)
    number = f" ({len(story.nodes)} nodes)" if len(story.nodes) > 1 else ""
    sheet.line(kind.append(f"{nodes}{number}", style="bold"))
    sheet.wrapped(story.message)
    when = "last failure" if story.kind == "fails-again" else "since"
    sheet.wrapped(f"{when} {story.since[:10]}" + (f"; {story.forecast}" if story.forecast else ""))


def _print_changes(sheet: Sheet, account: Account, style: Style) -> None:
    shown = account.changes if style.verbosity > 0 else account.changes[-_MAX_CHANGES:]
    if shown:
        sheet.line()
    for change in shown:
        what = f"{change.name} {change.before} -> {change.after} on {fold_nodes(change.nodes)}"
        sheet.wrapped(what, indent=0, hanging=2, label=f"{change.at[:10]} ")
    if len(shown) < len(account.changes):
        sheet.line(f"{count(len(account.changes) - len(shown), 'earlier change')} not shown; -v lists all")


def _print_nodes(sheet: Sheet, account: Account) -> None:
    failed = [node for node in account.nodes if node.failures or node.state != "passing"]
    if failed:
        sheet.line()
    for node in sorted(failed, key=lambda item: (-item.failures, item.node)):
        sheet.wrapped(_node_summary(node), indent=0, hanging=2, label=f"{node.node} ")
    healthy = len(account.nodes) - len(failed)
    if healthy:
        sheet.line(f"{count(healthy, 'node')} never failed alone")


def _node_summary(node: NodeAccount) -> str:
    words = [f"{node.state} now", f"failed {count(node.failures, 'time')} in {count(node.runs, 'run')}"]
    if node.mean_days_between_failures is not None:
        words.append(f"{node.mean_days_between_failures:g} days between failures on average")
    if node.healthy_since is not None:
        words.append(f"healthy since {node.healthy_since[:10]}")
    elif node.last_failure is not None:
        words.append(f"last failure {node.last_failure[:10]}")
    return ", ".join(words)


def _last_line(account: Account) -> str:
    if not account.runs:
        return "preflight: no runs are stored for these nodes"
    if not account.stories:
        return "preflight: nothing to report"
    nodes = len({node for story in account.stories for node in story.nodes})
    number = len(account.stories)
    return f"preflight: {number} {'story' if number == 1 else 'stories'} about {count(nodes, 'node')}"
