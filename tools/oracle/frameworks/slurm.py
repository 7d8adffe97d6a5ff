"""Batch scripts, judged by `sbatch --test-only` against a running slurmctld, as Debian packages it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.oracle.cases import Case, Change, located
from tools.oracle.frameworks.base import Framework, seeds, space

_FILE = "job.sbatch"
_BODY = """
srun --ntasks-per-node=1 torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE \\
  --rdzv-backend=c10d --rdzv-endpoint=$head:29500 train.py
"""
#: A line that makes the endpoint known, so that nothing but the header is in question.
_HEAD = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'


@dataclass(frozen=True, slots=True)
class BatchScripts(Framework):
    """The header of a batch script, with one option per line."""

    def cases(self, number: int, random_seed: int) -> Iterator[Case]:
        draw = random.Random(random_seed)
        seen: set[str] = set()
        for seed in self.seeds:
            unchanged = _case(seed.form, seed.settings, ())
            seen.add(unchanged.id)
            yield unchanged
            for _ in range(number // len(self.seeds)):
                settings = dict(seed.settings)
                changes: list[Change] = []
                for _ in range(draw.choice((1, 1, 1, 2, 2, 3))):
                    change = _drawn(draw, settings)
                    if change.key not in {other.key for other in changes}:
                        _apply(settings, change)
                        changes.append(change)
                case = _case(seed.form, settings, tuple(changes))
                if case.id not in seen:
                    seen.add(case.id)
                    yield case

    def with_changes(self, case: Case, changes: tuple[Change, ...]) -> Iterator[Case]:
        seed = next(seed for seed in self.seeds if seed.form == case.form)
        settings = dict(seed.settings)
        for change in changes:
            _apply(settings, change)
        yield _case(case.form, settings, changes)


def _apply(settings: dict[str, Any], change: Change) -> None:
    if change.kind == "removed":
        settings.pop(change.key, None)
    else:
        settings[change.key] = change.value


def _case(form: str, settings: dict[str, Any], changes: tuple[Change, ...]) -> Case:
    rows, lines = ["#!/bin/bash"], dict[str, int]()
    for key, value in settings.items():
        rows.append(f"#SBATCH --{key}" if value is None else f"#SBATCH --{key}={value}")
        lines[key] = len(rows)
    text = "\n".join(rows) + "\n\n" + _HEAD + _BODY
    return located(Case("slurm", form, {_FILE: text}, changes=changes, lines={_FILE: lines}))


_SPACE = space("slurm")
_OPTIONS, _UNKNOWN = _SPACE["header"], _SPACE["unknown"]["option"]


def _drawn(draw: random.Random, settings: dict[str, Any]) -> Change:
    kind = draw.choices(("value", "present", "unknown", "typo"), weights=(6, 6, 2, 2))[0]
    if kind == "unknown":
        return Change(draw.choice(_UNKNOWN), "unknown", draw.choice(("4", "8", "x")))
    if kind == "typo":
        name = draw.choice(sorted(settings))
        place = draw.randrange(1, max(2, len(name) - 1))
        wrong = draw.choice((name[:place] + name[place + 1 :], name[:place] + name[place] + name[place:], f"{name}s"))
        return Change(wrong, "unknown", settings[name])
    known = sorted(key for key in settings if key in _OPTIONS)
    key = draw.choice(known if kind == "present" and known else sorted(_OPTIONS))
    return Change(key, "value", draw.choice(_OPTIONS[key]))


FRAMEWORK = BatchScripts(
    name="slurm",
    distribution="slurm",
    version="22.05.8",
    requirements=("pytest==9.2.0", "anyio"),
    validator="slurm_validator.py",
    seeds=seeds("slurm"),
    space={},
    render=lambda form, settings: _case(form, settings, ()),
    needs_torch=False,
)
