"""Compare the verdicts of two checkouts on the same jobs: `python -m tools.compare_verdicts OTHER [--jobs FOLDER]`.

The jobs are the cases of the rules, the incidents and the examples of this checkout, and each folder below `--jobs`.
Recordings (`--recordings FOLDER`) are judged by both. What counts is the exit code and the place and severity of each
finding, never its wording. Rules that only one of the checkouts has are left out and counted.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight._util import toml

ROOT = Path(__file__).resolve().parent.parent
#: The packages of a checkout are in these folders.
PACKAGES = (".", "checks", "rules")
#: Runs in a process of its own for each checkout: answers every job of a list with one line.
_WORKER = """
import importlib, json, sys
run = importlib.import_module(sys.argv[1]).run
with open(sys.argv[2], "w") as answers:
    for line in sys.stdin:
        job = json.loads(line)
        code = run([*job["arguments"], "--quiet", "--output", "json:" + job["report"]])
        answers.write(json.dumps({"job": job["name"], "code": code, "report": job["report"]}) + "\\n")
        answers.flush()
"""
Finding = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """A checkout's judgement of one job: exit code; rule, location and severity of each finding; the rules that ran."""

    code: int
    findings: frozenset[Finding]
    rules: frozenset[str]


def jobs(scratch: Path, more: Path | None, recordings: Path | None) -> Iterator[tuple[str, list[str]]]:
    """Yield each job's name and the arguments that judge it; jobs from tables of cases are written to `scratch`."""
    for table in sorted((ROOT / "tests" / "rules" / "cases").glob("*.toml")):
        for name, row in toml.load(table).items():
            yield from _written(scratch / "cases" / table.stem / name, row)
    for table in sorted((ROOT / "tests" / "incidents").rglob("*.toml")):
        for number, row in enumerate(toml.load(table).get("incident", ())):
            for key in ("files", "repaired"):
                yield from _written(scratch / "incidents" / table.stem / f"{number}-{key}", row.get(key, {}))
    folders = [*(ROOT / "examples").iterdir(), *(more.iterdir() if more is not None else ())]
    for folder in sorted(folders):
        if folder.is_dir():
            yield f"{folder.parent.name}/{folder.name}", ["lint", str(folder)]
    for recording in sorted(recordings.rglob("*.json") if recordings is not None else ()):
        yield f"recordings/{recording.name}", ["judge", str(recording)]


def _written(folder: Path, files: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    texts = {name: text for name, text in files.items() if isinstance(text, str) and ("." in name or "/" in name)}
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.removeprefix("\n"), encoding="utf-8")
    if texts:
        yield "/".join(folder.parts[-3:]), ["lint", str(folder)]


def answers(checkout: Path, asked: Mapping[str, list[str]], folder: Path) -> dict[str, Answer]:
    """Return a checkout's judgement of each job. Its packages are imported from its own folders."""
    project = toml.load(checkout / "pyproject.toml")["project"]
    described = folder / f"{project['name'].replace('-', '_')}-0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = project["entry-points"].items()
    (described / "entry_points.txt").write_text(
        "".join(f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups)
    )
    search = [str(folder), *(str(checkout / package) for package in PACKAGES)]
    out = folder / "answers.jsonl"
    lines = [
        json.dumps({"name": name, "arguments": arguments, "report": str(folder / f"{number}.json")})
        for number, (name, arguments) in enumerate(asked.items())
    ]
    module = project["scripts"]["preflight"].partition(":")[0]
    with (folder / "stderr").open("w") as errors:
        subprocess.run(
            [sys.executable, "-c", _WORKER, module, str(out)],
            input="\n".join(lines),
            text=True,
            stdout=errors,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(search), "XDG_CACHE_HOME": str(folder)},
            cwd=folder,
            check=True,
        )
    read = [json.loads(line) for line in out.read_text().splitlines()]
    return {item["job"]: _answer(item["code"], Path(item["report"])) for item in read}


def _answer(code: int, report: Path) -> Answer:
    if not report.exists():
        return Answer(code, frozenset(), frozenset())
    read = json.loads(report.read_text(encoding="utf-8"))
    found = frozenset((item["id"], _place(item), item["severity"]) for item in read["findings"])
    return Answer(code, found, frozenset(item["id"] for item in read["outcomes"]))


def _place(finding: Mapping[str, Any]) -> str:
    first = next(iter(finding["locations"]), None)
    return f"{first['path']}:{first['line']}" if first is not None else ",".join(finding["nodes"])


def rules_of(answers: Mapping[str, Answer]) -> frozenset[str]:
    return frozenset(rule for answer in answers.values() for rule in answer.rules)


def differences(old: Mapping[str, Answer], new: Mapping[str, Answer]) -> Iterator[tuple[str, str, str]]:
    """Yield each difference as its kind, the rule, and the job with the location. A finding that moved is `place`."""
    shared = rules_of(old) & rules_of(new)
    for job, was in old.items():
        now = new[job]
        before = {item for item in was.findings if item[0] in shared}
        after = {item for item in now.findings if item[0] in shared}
        for rule in sorted({item[0] for item in before ^ after}):
            lost = sorted(item[1:] for item in before - after if item[0] == rule)
            come = sorted(item[1:] for item in after - before if item[0] == rule)
            if {place for place, _ in lost} & {place for place, _ in come}:
                kind = "severity"
            else:
                kind = "place" if lost and come else "lost" if lost else "new"
            yield kind, rule, f"{job}: {lost or '-'} -> {come or '-'}"
        if before == after == was.findings == now.findings and was.code != now.code:
            yield "exit code", "-", f"{job}: {was.code} -> {now.code}"


def main() -> None:
    """Print the differences by kind and rule; exit with 1 if a finding was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the checkout to compare with")
    parser.add_argument("--jobs", type=Path, help="a folder with more jobs")
    parser.add_argument("--recordings", type=Path, help="a folder with recordings, which both checkouts judge")
    parser.add_argument("--all", action="store_true", help="list every job instead of the first three per rule")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked = dict(jobs(folder / "jobs", given.jobs, given.recordings))
        old = answers(given.other.resolve(), asked, folder / "old")
        new = answers(ROOT, asked, folder / "new")
    found = collections.defaultdict(list)
    for kind, rule, text in differences(old, new):
        found[kind, rule].append(text)
    for (kind, rule), texts in sorted(found.items()):
        print(f"{kind}  {rule}  {len(texts)}")
        for text in texts if given.all else texts[:3]:
            print(f"    {text}")
    counts = collections.Counter(dict.fromkeys(("lost", "new", "severity", "place", "exit code"), 0))
    for (kind, _), texts in found.items():
        counts[kind] += len(texts)
    print(f"{len(asked)} jobs, {len(rules_of(old) & rules_of(new))} rules and checks in both: ", end="")
    print(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    sys.exit(bool(counts["lost"]))


if __name__ == "__main__":
    main()
