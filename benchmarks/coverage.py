"""How much of public repositories preflight reads: files and launches by kind, compared with kinds found by patterns.

`python -m benchmarks coverage [--json FILE] [--examples N] DIR...` with one folder for each repository.
`benchmarks/coverage_kinds.py` finds the files; `api.lint` shows what preflight reads of them. A file that is not read
as part of its folder is linted again by name.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.coverage_kinds import Hit, kinds_of

if TYPE_CHECKING:
    from preflight.model.job import Job, Launch

#: A repository that takes longer is counted as failed.
TIMEOUT_S = 900
#: At most this many unread files of a repository are linted again by name.
MAX_NAMED = 400
_MAX_BYTES = 1 << 20
_SIZES = ("world_size", "ps_workers", "nodes", "processes_per_node", "tasks", "tasks_per_node")
#: An unknown size that depends on a named value: a variable, an option, a property of the cluster.
_NAMED_SIZE = re.compile(
    r"\$\{?\w+|--[\w-]+|`[^`]+`|\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b|\b(?:allocation|host|outside|GPUs)\b"
)


def main() -> int:
    """Measure each folder in a separate process, and print the tables."""
    arguments = sys.argv[1:]
    if arguments[:1] == ["--child"]:
        json.dump(_measured(Path(arguments[1])), sys.stdout)
        return 0
    target, examples = "", 3
    while arguments and arguments[0].startswith("--"):
        option, value = arguments[:2]
        del arguments[:2]
        if option == "--json":
            target = value
        elif option == "--examples":
            examples = int(value)
        else:
            print(f"unknown option {option}; use --json FILE or --examples N", file=sys.stderr)
            return 2
    found = [_result_of(Path(folder)) for folder in arguments]
    if target:
        Path(target).write_text(json.dumps(found, indent=1) + "\n")
    _print(found, examples)
    return 0


def _result_of(folder: Path) -> dict[str, Any]:
    """The child process's result for one repository, or the reason why there is none."""
    start = time.monotonic()
    command = [sys.executable, "-m", "benchmarks", "coverage", "--child", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        answer: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"failed": done.stderr[-2000:]}
    except subprocess.TimeoutExpired:
        answer = {"failed": f"no result within {TIMEOUT_S} s"}
    print(f"  {folder.name}: {answer.get('failed') or 'done'} ({time.monotonic() - start:.0f} s)", file=sys.stderr)
    return {"repository": folder.name, **answer}


def _files(root: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in (".git", "node_modules"))
        for name in sorted(names):
            path = Path(folder) / name
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= _MAX_BYTES:
                yield path.relative_to(root).as_posix(), path.read_bytes().decode("utf-8", errors="replace")


def _measured(root: Path) -> dict[str, Any]:
    from preflight import api
    from preflight.config.resolve import jobs_in

    hits = {path: found for path, text in _files(root) if (found := tuple(kinds_of(path, text)))}
    start, cpu = time.monotonic(), time.process_time()
    report = api.lint([root], root=root)
    took = {"wall_s": round(time.monotonic() - start, 1), "cpu_s": round(time.process_time() - cpu, 1)}
    seen = _ReadFiles(report.jobs)
    # A file that starts ranks but gave no launch as part of the folder is linted by name, as a user would do.
    missed = [path for path, found in hits.items() if path not in seen.launches and any(hit.starts for hit in found)]
    missed += [path for path in hits if path not in seen.sources and path not in missed]
    named = _ReadFiles(job for path in missed[:MAX_NAMED] for job in jobs_in([root / path], root=root))
    rows = [_row(path, hit, seen, named) for path, found in sorted(hits.items()) for hit in found]
    findings = [
        {
            "id": f.id,
            "severity": f.severity.value,
            "path": f.locations[0].path,
            "line": f.locations[0].line,
            "message": f.message,
        }
        for f in report.findings
    ]
    crashes = [note.message for job in report.jobs for note in job.notes if note.kind.value == "crashed"]
    crashes += [f"{o.id}: {o.reason}" for o in report.outcomes if "crashed" in (o.reason or "")]
    return {**took, "rows": rows, "findings": findings, "crashes": crashes, "launches": seen.worlds()}


class _ReadFiles:
    """What preflight read: the source of each file, and its launches with their known world sizes."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.sources: dict[str, str] = {}
        self.claims: Counter[str] = Counter()
        self.launches: dict[str, list[tuple[range, str]]] = defaultdict(list)
        for job in jobs:
            self.sources.update((file.path, file.kind) for file in job.files)
            self.claims.update(claim.span.path for claim in job.claims)
            for launch in job.launches:
                world = _world(job, launch)
                for span in (launch.span, *launch.started_at):
                    self.launches[span.path].append((range(span.line, span.end_line + 1), world))

    def worlds(self) -> dict[str, int]:
        return dict(Counter(world for found in self.launches.values() for _, world in found))


def _world(job: Job, launch: Launch) -> str:
    """`known`; `symbolic` if it is one of a few values or depends on a named value; else `unknown`."""
    from preflight.model.job import Known, OneOf, Unresolved

    claims = {quantity: job.value_claims(quantity, launch.scope) for quantity in _SIZES}
    whole = claims["world_size"] or claims["ps_workers"]
    if whole and all(isinstance(claim.value, Known) for claim in whole):
        return "known"
    for claim in (claim for found in claims.values() for claim in found):
        if isinstance(claim.value, OneOf) or (
            isinstance(claim.value, Unresolved) and _NAMED_SIZE.search(claim.value.why)
        ):
            return "symbolic"
    return "unknown"


def _row(path: str, hit: Hit, seen: _ReadFiles, named: _ReadFiles) -> dict[str, Any]:
    """One kind of one file. `source` is the source that read it in the folder, `named` the one that read it by name."""
    used = seen if path in seen.launches or path not in named.launches else named
    launches = used.launches.get(path, [])
    found = [line for line in hit.lines if any(line in lines for lines, _ in launches)]
    return {
        "path": path,
        "kind": hit.kind,
        "starts": hit.starts,
        "source": seen.sources.get(path, ""),
        "named": named.sources.get(path, ""),
        "claims": max(seen.claims[path], named.claims[path]),
        "launches": len(launches),
        "in_folder": path in seen.launches,
        "lines": list(hit.lines),
        "lines_found": found,
        "worlds": [world for _, world in launches],
    }


def _is_read(row: dict[str, Any]) -> bool:
    """Whether preflight used the file: it gave a launch if it starts ranks, else a claim or a launch."""
    if row["starts"]:
        return bool(row["launches"])
    return bool(row["source"] or row["named"]) and bool(row["claims"] or row["launches"])


def _print(found: list[dict[str, Any]], examples: int) -> None:
    kinds: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for one in found:
        for row in one.get("rows", ()):
            kinds[row["kind"]].append({**row, "repository": one["repository"]})
    print(f"{len(found)} repositories, {sum('failed' in one for one in found)} failed")
    wall, processor = (sum(one.get(key, 0) for one in found) for key in ("wall_s", "cpu_s"))
    print(f"lint took {wall:.0f} s, of the processor {processor:.0f} s")
    crashes = [f"{one['repository']}: {text}" for one in found for text in one.get("crashes", ())]
    print(f"{len(crashes)} crashes", *crashes, sep="\n  ")
    head = ("kind", "repos", "files", "read", "named", "used", "lines", "found", "known", "symb.", "unkn.")
    line = "{:48}" + "{:>7}" * (len(head) - 1)
    print("\n" + line.format(*head))
    for kind, rows in sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0])):
        print(line.format(kind[:48], *_counts(rows)))
    every = [row for rows in kinds.values() for row in rows]
    for title, starts in (("all that start ranks", True), ("all that shape a job", False)):
        print(line.format(title, *_counts([row for row in every if row["starts"] is starts])))
    print(
        "\nread: by a source in the folder. named: only when the file is named. used: those that gave a launch, or a"
        "\nclaim if they start no ranks. lines: commands found by pattern; found: those with a launch in preflight."
    )
    print("\nnot used, by kind")
    missing = {kind: [row for row in rows if not _is_read(row)] for kind, rows in kinds.items()}
    for kind, rows in sorted(missing.items(), key=lambda item: (-len(item[1]), item[0])):
        if rows and examples:
            print(f"{len(rows):5} of {len(kinds[kind]):5}  {kind}")
            for row in _spread(rows, examples):
                print(f"               {row['repository']}/{row['path']}{''.join(f':{n}' for n in row['lines'][:1])}")
    print("\nfindings by rule (error, warning, info)")
    rules: dict[str, Counter[str]] = defaultdict(Counter)
    for one in found:
        for finding in one.get("findings", ()):
            rules[finding["id"]][finding["severity"]] += 1
    for rule, counts in sorted(rules.items()):
        print(f"  {rule:8} {counts['error']:5} {counts['warning']:5} {counts['info']:5}")


def _counts(rows: list[dict[str, Any]]) -> tuple[int, ...]:
    worlds = Counter(world for row in rows if row["starts"] for world in row["worlds"])
    return (
        len({row["repository"] for row in rows}),
        len(rows),
        sum(bool(row["source"]) for row in rows),
        sum(bool(row["named"]) and not row["source"] for row in rows),
        sum(_is_read(row) for row in rows),
        sum(len(row["lines"]) for row in rows),
        sum(len(row["lines_found"]) for row in rows),
        *(worlds[world] for world in ("known", "symbolic", "unknown")),
    )


def _spread(rows: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """A few of the rows, from as many repositories as possible."""
    by_repository: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        by_repository[row["repository"]].append(row)
    order = [(number, name, row) for name, own in by_repository.items() for number, row in enumerate(own)]
    order.sort(key=lambda item: item[:2])
    return [row for _, _, row in order[:count]]


if __name__ == "__main__":
    sys.exit(main())
