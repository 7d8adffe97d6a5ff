"""Asks a framework's own validator about changed configurations and records its verdicts.

python -m tools.oracle deepspeed --cases 600 --seed 1
"""

from __future__ import annotations

import argparse
import datetime
from collections.abc import Iterator

from tools.oracle import frameworks
from tools.oracle.cases import VERDICTS, Case, Verdict, write
from tools.oracle.environments import asked
from tools.oracle.frameworks.base import Framework


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.oracle", description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=frameworks.names())
    parser.add_argument("--cases", type=int, default=600, help="number of changed configurations to draw")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choice")
    given = parser.parse_args()
    framework = frameworks.find(given.framework)
    verdicts = list(_judged(framework, list(framework.cases(given.cases, given.seed))))
    write(VERDICTS / f"{framework.name}.jsonl", verdicts)
    refused = sum(verdict.refused for verdict in verdicts)
    on_node = sum(verdict.depends_on_node for verdict in verdicts)
    print(f"{framework.name} {framework.version}: {len(verdicts)} cases, {refused} refused, {on_node} for the node")


def _judged(framework: Framework, cases: list[Case]) -> Iterator[Verdict]:
    messages = asked(framework, cases)
    several = [case for case in cases if messages[case.id][0] and len(case.changes) > 1]
    parts = {case.id: list(_parts(framework, case)) for case in several}
    part_messages = asked(framework, [part for found in parts.values() for part in found]) if several else {}
    for case in cases:
        message, here = messages[case.id]
        blamed = tuple(range(len(case.changes))) if message else ()
        alone = tuple(n for n, part in enumerate(parts.get(case.id, ())) if part_messages[part.id][0])
        yield Verdict(
            case,
            refused=bool(message),
            message=message or here,
            version=f"{framework.distribution} {framework.version}",
            date=datetime.datetime.now(datetime.UTC).date().isoformat(),
            depends_on_node=bool(here) and not message,
            blamed=alone or blamed,
        )


def _parts(framework: Framework, case: Case) -> Iterator[Case]:
    """Yield the case with each of its changes alone."""
    for change in case.changes:
        yield from framework.with_changes(case, (change,))


if __name__ == "__main__":
    main()
