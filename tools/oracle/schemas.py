"""Writes the values that a framework's own models accept for each key, as data for the rules about settings.

python -m tools.oracle.schemas deepspeed
"""

from __future__ import annotations

import argparse
import ast
import datetime
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.oracle import frameworks
from tools.oracle.environments import python_of
from tools.oracle.frameworks.base import Framework
from tools.tables.fetch import FetchError, reader

_DATA = Path(__file__).parents[2] / "rules" / "preflight_rules" / "data" / "settings"
_PROGRAMS = Path(__file__).parent / "validators"
#: Sections that only became models in a later release; earlier ones read what they knew and passed over the rest.
_SINCE = {"deepspeed": {"fp16": "0.17", "bf16": "0.17", "bfloat16": "0.17"}}

#: An older release of the same framework, by its name here: its keys count as well.
_OLDER = {"paddle": "paddle2"}
#: Earlier releases of a framework whose configuration is made of dataclasses, with the file and the class to read.
_EARLIER = {
    "torchtitan": (
        ("0.1.0", "torchtitan/config_manager.py", "JobConfig"),
        ("0.2.0", "torchtitan/config/job_config.py", "JobConfig"),
        ("0.2.1", "torchtitan/config/job_config.py", "JobConfig"),
    )
}
#: The last release before a configuration had its form, and keys of checkouts from between it and the first above.
_BETWEEN = {
    "torchtitan": (
        "0.0.2",
        (
            *("checkpoint.model_weights_only", "model.attn_mask_type", "model.norm_type", "model.use_flex_attn"),
            *("parallelism.pipeline_parallel_microbatches", "training.batch_size"),
        ),
    )
}
#: Seconds that the program may take to print the models.
_TIMEOUT_S = 600
#: Frameworks whose choices change with most releases: only the pinned one is known to refuse others.
_OWN_CHOICES = ("axolotl",)
#: Keys that take another kind as well, by code before the models.
_ALSO = {"zero_optimization": "bool"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.oracle.schemas", description=__doc__.splitlines()[0])
    parser.add_argument(
        "framework", choices=[path.stem.removesuffix("_schema") for path in _PROGRAMS.glob("*_schema.py")]
    )
    framework = frameworks.find(parser.parse_args().framework)
    rows = _rows(framework, framework.name)
    if framework.name in _OLDER:
        older = frameworks.find(_OLDER[framework.name])
        rows = list(_both(rows, _rows(older, framework.name), framework.version, older.version))
    if framework.name in _EARLIER:
        rows = list(_with_earlier(rows, framework))
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    text = (
        f"# Values that {framework.distribution} accepts for each key of its configuration.\n"
        f"# Written by `python -m tools.oracle.schemas {framework.name}`; do not edit.\n\n"
        f'schema = 1\nversion = "{framework.version}"\ndate = "{today}"\n'
    )
    _DATA.mkdir(parents=True, exist_ok=True)
    since = _SINCE.get(framework.name, {})
    if framework.name in _OWN_CHOICES:
        rows = [{**row, "since": framework.version} if "choices" in row or "words" in row else row for row in rows]
    (_DATA / f"{framework.name}.toml").write_text(text + "".join(_row(row, since) for row in rows), encoding="utf-8")
    print(f"{framework.name}: {len(rows)} keys")


def _rows(framework: Framework, name: str) -> list[dict[str, Any]]:
    """Return the rows that the framework's program prints."""
    program = [str(python_of(framework)), str(_PROGRAMS / f"{name}_schema.py")]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S)
    rows: list[dict[str, Any]] = json.loads(done.stdout[done.stdout.index("[{") :])
    return rows


def _both(
    rows: list[dict[str, Any]], older: list[dict[str, Any]], version: str, older_version: str
) -> Iterator[dict[str, Any]]:
    """Return the keys of two releases, with the release that has a key if the other does not."""
    before, now = {row["key"] for row in older}, {row["key"] for row in rows}
    for row in rows:
        yield row if row["key"] in before else {**row, "added": version}
    yield from ({**row, "gone": older_version} for row in older if row["key"] not in now)


def _with_earlier(rows: list[dict[str, Any]], framework: Framework) -> Iterator[dict[str, Any]]:
    """Yield the keys of several releases, with the first that has a key, and the last if it is gone since."""
    known: dict[str, list[str]] = {}
    releases = _EARLIER[framework.name]
    for version, path, owner in releases:
        text = reader(framework.distribution, version, installed=False)(path)
        if text is None:
            raise FetchError(f"{framework.distribution} {version} has no {path}")
        for key in _dataclass_keys(text, owner):
            known.setdefault(key, []).append(version)
    now = {row["key"] for row in rows}
    for row in rows:
        first = known.get(row["key"], [framework.version])[0]
        yield row if first == releases[0][0] else {**row, "added": first}
    for key, versions in known.items():
        if key not in now:
            added = {"added": versions[0]} if versions[0] != releases[0][0] else {}
            yield {"key": key, **added, "gone": versions[-1]}
    before, keys = _BETWEEN.get(framework.name, ("", ()))
    yield from ({"key": key, "gone": before} for key in keys)


def _dataclass_keys(text: str, owner: str, above: str = "") -> Iterator[str]:
    """Yield the keys of a dataclass and of its nested dataclasses, joined by dots."""
    classes = {node.name: node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef)}
    for item in classes[owner].body:
        if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name):
            key = f"{above}{item.target.id}"
            yield key
            if isinstance(item.annotation, ast.Name) and item.annotation.id in classes:
                yield from _dataclass_keys(text, item.annotation.id, f"{key}.")


def _row(row: dict[str, Any], since: dict[str, str]) -> str:
    return "\n[[setting]]\n" + "".join(f"{key} = {value}\n" for key, value in _pairs(row, since))


def _pairs(row: dict[str, Any], since: dict[str, str]) -> Iterator[tuple[str, str]]:
    for key, value in row.items():
        if value is not False and not (key == "kind" and value == "any"):
            yield key, json.dumps(value)
    if row["key"] in _ALSO:
        yield "also", json.dumps(_ALSO[row["key"]])
    section = row["key"].partition(".")[0]
    if section in since:
        yield "since", json.dumps(since[section])


if __name__ == "__main__":
    main()
