"""Reports of every kind, generated from a seed: statuses, severities, locations, nodes, odd characters."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from preflight.engine.report import Report, crashed, report_on
from preflight.model.charts import (
    Bar,
    Bars,
    Cell,
    Chart,
    Column,
    Lane,
    Layout,
    Mark,
    Matrix,
    Piece,
    Place,
    Row,
    Table,
    Timeline,
)
from preflight.model.charts import Span as Lap
from preflight.model.configuration import Configuration, Waiver
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job, Span, Suppression
from preflight.model.recording import InjectedFault, Recording, SmokeOptions, StageRecord
from preflight.plugins.authoring import (
    Check,
    Rule,
    Verdict,
    failed,
    make_fix,
    not_applicable,
    passed,
    replace_text,
    unknown,
)
from preflight.plugins.registry import Broken
from tests.builders import job, make_check, make_recording, make_rule, reached, span

#: The number of generated reports.
COUNT = 100
#: Texts from files, nodes and commands that may break quoting, markup, escapes, terminals and encodings.
ODD = (
    *("", " ", "\n", "\r\n", "\t", "\x00", "\x07", "\x1b[2J", "\x9b2J", "\u202e", "\u2028", "\u200b", "\ufeff"),
    *("\ud800", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "é", "節", "🚀", "%", "%0A", "%25", ":", "::", ",", "="),
    *("]]>", "<!--", "<script>alert(1)</script>", "</testsuites>", "&amp;", "&", "'", '"', "\\", "\\n", "{", "}"),
    *("\n::error::injected", "##[error]injected", "# EOF", '"} 1', "`", "|", "../../etc/passwd", "-", "$(id)"),
)
_WORDS = ("srun --nodes=2", "torchrun", "world size 8", "node3", "timeout", "2.1.0", "GPU", "port 29500")
_STAGES = ("node", "link", "smoke")
_PATHS = ("run.sh", "jobs/train.sbatch", "conf/a b.json", "sp:ace,d=e%.yaml", "ünï.sh")


@functools.cache
def reports() -> tuple[Report, ...]:
    """All of them; the same each time."""
    return tuple(report(seed) for seed in range(COUNT))


def report(seed: int) -> Report:
    """The report of this seed."""
    dice = random.Random(seed)
    if dice.random() < 0.04:
        return crashed(RuntimeError(_text(dice)), verb="check", created=dice.choice(("", CREATED)), version="0.1.0")
    verb = dice.choice(("lint", "check", "smoke"))
    names = [f"node{number}" for number in range(dice.choice((0, 1, 3, 40)))] if verb != "lint" else []
    silent = [name for name in names if dice.random() < 0.1]
    rules = [_rule(dice, number) for number in range(dice.randrange(5))]
    checks = [_check(dice, number, names) for number in range(dice.randrange(6))] if verb != "lint" else []
    recording = replace(
        make_recording(*_jobs(dice), verb=verb, interrupted=dice.choice((0, 0, 0, 0, 130, 143))),
        configuration=_configuration(dice),
        nodes=reached(*(name for name in names if name not in silent), silent=silent),
        executor="ssh" if names else "",
        stages=_ran(dice) if verb != "lint" else (),
        smoke_options=SmokeOptions(injected_fault=InjectedFault("kill", "rank", 1))
        if verb == "smoke" and dice.random() < 0.2
        else SmokeOptions(),
    )
    charts = _exhibits(dice, names)
    broken = (Broken("preflight.rules", _text(dice), _text(dice), _text(dice)),) if dice.random() < 0.1 else ()
    found = replace(report_on(recording, rules, checks, broken=broken), charts=charts)
    return _replaced(found, recording)


CREATED = "2026-01-02T03:04:05+05:30"


def _replaced(report: Report, recording: Recording) -> Report:
    # As `judge --allow-incomplete` does.
    allowed = recording.configuration.allow_incomplete
    return replace(report, exit_code=0) if allowed and report.exit_code == 3 else report


def _exhibits(dice: random.Random, names: Sequence[str]) -> tuple[Chart, ...]:
    """Some charts of each kind, about the given nodes."""
    words = [_text(dice) for _ in range(4)]
    cells = tuple(Cell(value, dice.random() < 0.3, words[0]) for value in (words[1], 3, 2.5, None))
    columns = tuple(Column(f"{word} {number}", words[2]) for number, word in enumerate(words))
    marks = tuple(
        Mark(row, column, dice.choice((None, 0.0, 12.5)), dice.choice(("ok", "bad", "unknown")), words[3])
        for row in range(len(names))
        for column in range(len(names))
        if row != column and dice.random() < 0.5
    )
    lanes = tuple(
        Lane(f"rank {i}", name, (Lap(0.0, 1.5, words[0]), Lap(1.5, 2.0, "ddp"))) for i, name in enumerate(names)
    )
    bars = tuple(Bar(f"{name}:0", name, dice.choice((None, 0.5, 40.0)), False, words[1]) for name in names)
    places = tuple(
        Place(name, (Piece("server 0", "server", 2.0**30), Piece(words[2], "worker", None))) for name in names
    )
    found: list[Chart] = [
        Table("versions", words[0], words[1], columns, tuple(Row(name, cells) for name in names)),
        Matrix("links.reach", words[1], words[2], "ms", tuple(names), tuple(names), marks),
        Timeline("smoke.steps", words[2], words[3], lanes),
        Bars("smoke.stragglers", words[3], words[0], "ms", bars),
        Layout("servers.placement", words[0], words[3], "bytes", places),
    ]
    return tuple(one for one in found if names and dice.random() < 0.6)


def _text(dice: random.Random) -> str:
    pieces = [dice.choice(ODD) if dice.random() < 0.5 else dice.choice(_WORDS) for _ in range(dice.randrange(1, 6))]
    return dice.choice(("", " ")).join(pieces)


def _jobs(dice: random.Random) -> Iterable[Job]:
    for number in range(dice.choice((0, 1, 1, 1, 2))):
        comment = Suppression("run.sh", 3, ("TST001", "TST502"), dice.choice(("", _text(dice))), span())
        suppressions = (comment,) if dice.random() < 0.5 else ()
        yield job(name=f"{_PATHS[number]}", suppressions=suppressions)


def _configuration(dice: random.Random) -> Configuration:
    waivers = (
        Waiver("TST002", _text(dice) or "x", owner="fabric", at=span("preflight.toml", 4)),
        Waiver("TST503", "a spare part is on its way", hosts=("node1",), expires="2030-01-01"),
        Waiver("TST004", "long ago", expires="2020-01-01"),
    )
    return Configuration(
        fail_on=dice.choice(("error", "error", "warning", "info")),
        allow_incomplete=dice.random() < 0.3,
        waivers=waivers if dice.random() < 0.4 else (),
    )


def _ran(dice: random.Random) -> tuple[StageRecord, ...]:
    found: list[StageRecord] = []
    for number, name in enumerate(_STAGES):
        skipped = _text(dice) or "why not" if dice.random() < 0.2 else ""
        found.append(StageRecord(name, float(number), number + dice.random(), skipped))
    return tuple(found)


def _rule(dice: random.Random, number: int) -> Rule:
    verdicts = [_verdict(dice, ()) for _ in range(dice.randrange(4))]
    return make_rule(lambda _: verdicts, f"TST{number:03}", severity=dice.choice(list(Severity)))


def _check(dice: random.Random, number: int, names: Sequence[str]) -> Check:
    verdicts = [_verdict(dice, names) for _ in range(dice.randrange(6))]
    when = dice.choice(_STAGES)
    judge: Callable[..., Iterable[Verdict]] = lambda *_: verdicts  # noqa: E731
    return make_check(judge, f"TST{500 + number}", when=when, severity=dice.choice(list(Severity)))


def _place(dice: random.Random) -> Span:
    line, lines = dice.randrange(1, 50), dice.choice((0, 0, 0, 3))
    column = dice.randrange(1, 9)
    path = dice.choice(_PATHS) if dice.random() < 0.9 else f"{_text(dice)}.sh"
    return Span(path, line, column, line + lines, column + dice.randrange(5), _text(dice))


def _verdict(dice: random.Random, names: Sequence[str]) -> Verdict:
    subject = dice.choice((*names, "run.sh:3", _text(dice) or "x"))
    kind = dice.random()
    if kind < 0.25:
        return passed(subject)
    if kind < 0.35:
        return not_applicable(subject, _text(dice) or "no launch")
    if kind < 0.55:
        at = _place(dice) if dice.random() < 0.5 else None
        return unknown(subject, _text(dice) or "no answer", required=dice.random() < 0.5, at=at)
    on = dice.sample(list(names), dice.randrange(len(names) + 1)) if names else []
    place = span() if dice.random() < 0.4 else _place(dice)
    evidence = Evidence("probes.ports:reachable", _text(dice), _text(dice), node=on[0] if on else "")
    replaced = Span("run.sh", 2, 8, 2, 11, "export A=1")
    return failed(
        subject,
        _text(dice) or "wrong",
        at=evidence if dice.random() < 0.3 else place,
        also=[(_place(dice), _text(dice)) for _ in range(dice.randrange(3))],
        nodes=on,
        remedy=_text(dice) or "-",
        fix=make_fix("rename A", replace_text(replaced, "A", "B"), safe=True) if dice.random() < 0.2 else None,
    )
