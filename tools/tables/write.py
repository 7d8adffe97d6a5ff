"""Writes rows as a JSON document with one row per line."""

from __future__ import annotations

import json
from collections.abc import Sequence

from preflight.sources.tables import Row
from tools.tables.targets import Target


def merged(by_version: Sequence[tuple[str, Sequence[Row]]]) -> tuple[Row, ...]:
    """Return the rows of several versions, oldest first, as one table; the newest declaration of an option counts."""
    versions = [version for version, _ in by_version]
    seen: dict[tuple[str, str], list[str]] = {}
    newest: dict[tuple[str, str], Row] = {}
    for version, rows in by_version:
        for row in rows:
            key = key_of(row)
            seen.setdefault(key, []).append(version)
            before = newest.get(key)
            older = before.spellings if before is not None else ()
            newest[key] = row._replace(spellings=tuple(dict.fromkeys((*row.spellings, *older))))
    table = []
    for key, row in newest.items():
        first, last = seen[key][0], seen[key][-1]
        since, until = "" if first == versions[0] else first, "" if last == versions[-1] else last
        table.append(row._replace(since=since, until=until))
    return tuple(table)


def key_of(row: Row) -> tuple[str, str]:
    """Return a key that is equal for declarations of the same option: `--fuse` and `--no-fuse` may set the same
    variable.

    Spellings are added in front (`-H` before `--hostfile`), so the last one is stable.
    """
    return row.dest, row.spellings[-1] if row.spellings else ""


def table_text(target: Target, rows: Sequence[Row]) -> str:
    """Return a table as text; the same input gives the same text."""
    head = {
        "program": target.program,
        "distribution": target.distribution,
        "versions": target.versions,
        "date": target.date,
        "files": tuple(dict.fromkeys(part.path for part in target.parts)),
    }
    lines = [f"  {json.dumps(name)}: {json.dumps(value)}," for name, value in head.items()]
    body = ",\n".join(f"    {json.dumps(_given(row), ensure_ascii=False)}" for row in rows)
    return "\n".join(["{", *lines, '  "rows": [', body, "  ]", "}", ""])


def _given(row: Row) -> dict[str, object]:
    """Return the fields of a row that differ from their defaults."""
    return {name: value for name, value in row._asdict().items() if value != Row._field_defaults.get(name)}
