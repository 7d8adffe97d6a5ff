"""A baseline: the lint findings that existed when a project adopted preflight, so that only new findings count.

Entries are fingerprints, which do not change when lines move. A baseline does not include faults of nodes, which do not
belong to the repository; waivers, which expire, accept them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight._util import regular_file
from preflight._util.usage_error import UsageError
from preflight.model.configuration import Accepted
from preflight.model.findings import Finding

DEFAULT_NAME = "preflight-baseline.json"
_VERSION = 1
_MAX_MESSAGE_LENGTH = 160
#: The largest size of a baseline: some 60,000 findings, more than any project accepts.
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Baseline:
    """Accepted findings, sorted by file, then by rule."""

    entries: tuple[Accepted, ...] = ()


def of_findings(findings: Iterable[Finding]) -> Baseline:
    """Return a baseline that accepts all of these findings."""
    entries = (
        Accepted(
            finding.fingerprint,
            finding.id,
            finding.locations[0].path if finding.locations else "",
            " ".join(finding.message.split())[:_MAX_MESSAGE_LENGTH],
        )
        for finding in findings
    )
    return Baseline(tuple(sorted(entries, key=lambda entry: (entry.path, entry.id, entry.fingerprint))))


def remove_entries(baseline: Baseline, stale_entries: Sequence[Accepted]) -> Baseline:
    """Return the baseline without these entries."""
    stale_fingerprints = {entry.fingerprint for entry in stale_entries}
    return Baseline(tuple(entry for entry in baseline.entries if entry.fingerprint not in stale_fingerprints))


def load(path: Path) -> Baseline:
    """Load the baseline from a file. Raises UsageError."""
    try:
        document = json.loads(regular_file.read(path, _MAX_BYTES))
    except FileNotFoundError:
        raise UsageError(f"the baseline {path} does not exist; `preflight baseline write` creates it") from None
    except OSError as error:
        raise UsageError(f"the baseline {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"the baseline {path} is not valid JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("findings"), list):
        raise UsageError(f"{path} is not a baseline; `preflight baseline write` creates one")
    if document.get("schema_version") != _VERSION:
        version = document.get("schema_version")
        raise UsageError(f"the baseline {path} has the schema version {version!r}; this preflight reads {_VERSION}")
    return Baseline(tuple(_parse_entry(path, number, item) for number, item in enumerate(document["findings"])))


def _parse_entry(path: Path, number: int, item: Any) -> Accepted:
    keys = ("fingerprint", "id", "path", "message")
    if not isinstance(item, dict) or not all(isinstance(item.get(key), str) for key in keys):
        raise UsageError(f"{path}: findings[{number}] must have the strings fingerprint, id, path and message")
    return Accepted(*(str(item[key]) for key in keys))


def dump(baseline: Baseline) -> bytes:
    """Return the baseline as JSON with one finding per line, so that version control shows which findings change."""
    rows = [
        json.dumps(
            {"id": entry.id, "path": entry.path, "fingerprint": entry.fingerprint, "message": entry.message},
            ensure_ascii=True,
        )
        for entry in baseline.entries
    ]
    inner = ",\n".join(f"    {row}" for row in rows)
    body = f"[\n{inner}\n  ]" if rows else "[]"
    return f'{{\n  "schema_version": {_VERSION},\n  "findings": {body}\n}}\n'.encode()


def count_text(entries: Sequence[Accepted]) -> str:
    """Return the number of entries as `1 finding` or `12 findings`."""
    return f"{len(entries)} finding{'' if len(entries) == 1 else 's'}"


def format_entries(entries: Sequence[Accepted]) -> str:
    """Return a line for each entry."""
    return "".join(f"{entry.path}: {entry.id} {entry.message}\n" for entry in entries)


def format_table(baseline: Baseline) -> str:
    """Return the numbers of accepted findings by rule and file, as text."""
    lines: list[str] = []
    rule_counts = Counter(entry.id for entry in baseline.entries)
    for id, count in sorted(rule_counts.items(), key=lambda pair: (-pair[1], pair[0])):
        lines.append(f"{id}  {count}")
        file_counts = Counter(entry.path for entry in baseline.entries if entry.id == id)
        for path, file_count in sorted(file_counts.items()):
            lines.append(f"    {path}{f'  {file_count}' if file_count > 1 else ''}")
    lines.append(f"{count_text(baseline.entries)} accepted")
    return "\n".join(lines) + "\n"
