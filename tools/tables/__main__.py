"""Writes the tables: all of them, or the named ones."""

from __future__ import annotations

import sys

from preflight.sources.tables import FOLDER, Row
from tools.tables.extract import rows_of
from tools.tables.fetch import FetchError, reader
from tools.tables.targets import TARGETS, Target
from tools.tables.write import key_of, merged, table_text


def main(names: list[str]) -> int:
    """Write the named tables (all without names); return 1 if one could not be generated."""
    unknown = set(names) - {target.name for target in TARGETS}
    if unknown:
        print(f"unknown tables: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    failed = 0
    for target in TARGETS:
        if names and target.name not in names:
            continue
        try:
            rows = _rows(target)
        except (FetchError, SyntaxError) as error:
            print(f"{target.name}: {error}", file=sys.stderr)
            failed = 1
            continue
        (FOLDER / f"{target.name}.json").write_text(table_text(target, rows), encoding="utf-8")
        print(f"{target.name}: {len(rows)} rows")
    return failed


def _rows(target: Target) -> tuple[Row, ...]:
    by_version = []
    for version in target.versions:
        read = reader(target.distribution, version, installed=target.installed)
        found: dict[tuple[str, str], Row] = {}
        for part in target.parts:
            text = read(part.path)
            for row in rows_of(text, part) if text is not None else ():
                found.setdefault(key_of(row), row)
        if not found:
            raise FetchError(
                f"{target.distribution} {version} declares no options in {target.parts[0].path}; "
                "check the path and the names of the target"
            )
        by_version.append((version, tuple(found.values())))
    return merged(by_version)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
