"""Batch scripts, judged by `sbatch --test-only` against a running slurmctld, as Debian packages it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.oracle.cases import Case, Change, located
from tools.oracle.frameworks.base import Framework, Seed

_FILE = "job.sbatch"
_BODY = """
srun --ntasks-per-node=1 torchrun --nnodes=$SLURM_NNODES --nproc-per-node=$SLURM_GPUS_ON_NODE \\
  --rdzv-backend=c10d --rdzv-endpoint=$head:29500 train.py
"""
#: A line that makes the endpoint known, so that nothing but the header is in question.
_HEAD = 'head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'


@dataclass(frozen=True, slots=True)
class BatchScripts(Framework):
    """The header of a batch script: one option a line."""

    def cases(self, number: int, random_seed: int) -> Iterator[Case]:
        """The valid scripts and about `number` changed ones."""
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
        """The case with these changes alone."""
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


#: Values worth trying for each option, right or wrong.
_SPACE: dict[str, tuple[Any, ...]] = {
    "nodes": ("1", "2-4", "4", "0", "-1", "two", "4-2", "1.5", "2k", "1,3"),
    "ntasks": ("8", "16", "0", "-4", "eight", "4.5", ""),
    "ntasks-per-node": ("1", "8", "0", "-1", "all", "2.5", "1x"),
    "cpus-per-task": ("4", "16", "0", "-2", "max", "8.0"),
    "gpus": ("8", "h100:16", "h100:8,h100:8", "0", "-1", "eight", "h100:x", "h100=4", "8:h100"),
    "gpus-per-node": ("8", "h100:8", "0", "all", "-2", "h100:", "4x"),
    "gpus-per-task": ("1", "h100:1", "0", "one", "1.5"),
    "gres": ("gpu:8", "gpu:h100:4", "gpu", "gpu:0", "gpus:4", "gpu:four", "gpu=4", "gpu:-1", "gpu:h100:4:2", "GPU:4"),
    "mem": ("64G", "0", "512000", "64GB", "64 G", "lots", "1.5T", "-1", "64g", "100M", "5P"),
    "mem-per-cpu": ("4G", "4000", "4GB", "4Gi", "none"),
    "mem-per-gpu": ("80G", "80GB", "80Gi", "x"),
    "time": (
        *("24:00:00", "2-00:00:00", "60", "1-12", "0", "2 days", "24h", "1:2:3:4", "-5", "UNLIMITED", "infinite"),
        *("3-24:00", "1.5", "02:00:00:00", "12:00:00.0", "24-00-00"),
    ),
    "time-min": ("1:00:00", "x", "100-00:00:00"),
    "array": ("0-3", "1,3,5", "0-7%2", "3-1", "a-b", "0-3%0", "0-3%x", "-1", "1-10:2", "1-10:0"),
    "exclusive": (None, "user", "mcs", "node", "yes"),
    "gpu-bind": ("closest", "none", "single:1", "map_gpu:0,1", "nearest", "per_task:1", "map_gpu:x", "verbose,closest"),
    "gpu-freq": ("high", "medium", "fast", "memory=high"),
    "distribution": ("block:block", "cyclic", "plane=4", "block:roundrobin", "plane=x", "random"),
    "hint": ("nomultithread", "compute_bound", "memory_bound", "multithread", "hyperthread"),
    "mail-type": ("END", "BEGIN,FAIL", "ALL", "NEVER", "FAILED", "TIME_LIMIT_80", "end,fail"),
    "open-mode": ("append", "truncate", "overwrite"),
    "signal": ("USR1@60", "B:TERM@300", "10", "USR1@", "FOO@60", "USR1@soon", "R:USR1@30", "SIGUSR1@90", "USR1@70000"),
    "constraint": ("h100", "h100&nvlink", "[h100|nvlink]", "h100,nvlink", "h100&", "[h100"),
    "threads-per-core": ("1", "2", "0", "two", "-1"),
    "cores-per-socket": ("8", "x", "0"),
    "sockets-per-node": ("2", "x"),
    "ntasks-per-core": ("1", "0", "x"),
    "ntasks-per-socket": ("1", "x", "-1"),
    "ntasks-per-gpu": ("1", "8", "0", "x"),
    "partition": ("gpu", "debug", "gpu,debug", "gpus", ""),
    "requeue": (None,),
    "no-requeue": (None, "yes"),
    "switches": ("1", "1@10:00", "x", "1@x"),
    "nice": ("100", "-100", "x", None),
    "priority": ("100", "TOP", "x", "-5"),
    "begin": ("now+1hour", "16:00", "tomorrow", "2030-01-31T12:00:00", "soon", "2030-13-01", "now+1week", "noon"),
    "deadline": ("now+3days", "2030-01-31", "never", "2020-01-01"),
    "dependency": ("afterok:1", "singleton", "afterok", "after_ok:1", "afterok:x", "afterany:1:2"),
    "core-spec": ("1", "x", "-1"),
    "tmp": ("100G", "100GB", "x"),
    "overcommit": (None,),
    "contiguous": (None,),
    "export": ("ALL", "NONE", "NIL", "ALL,A=1"),
    "nodelist": ("n1", "n[1-4]", "n[1-", "n1,n2"),
    "exclude": ("n3", "n[1-2]", "n["),
    "wait-all-nodes": ("0", "1", "2", "yes"),
    "kill-on-invalid-dep": ("yes", "no", "maybe"),
    "cpu-freq": ("high", "low-high", "quick"),
    "power": ("level", "none", "full"),
    "profile": ("none", "task", "all", "gpu"),
    "propagate": ("ALL", "NONE", "MEMLOCK", "MEMORY", "STACK,MEMLOCK"),
    "mcs-label": ("x",),
    "no-kill": (None, "off", "on"),
    "use-min-nodes": (None,),
    "oversubscribe": (None, "yes"),
    "reservation": ("maintenance",),
    "qos": ("high",),
    "licenses": ("matlab:1",),
    "extra-node-info": ("2:8", "2:8:1", "x", "2:x"),
    "mem-bind": ("local", "none", "far"),
    "container": ("/images/train",),
    "acctg-freq": ("task=30", "30", "x", "gpu=30"),
    "spread-job": (None,),
    "thread-spec": ("1", "x"),
    "delay-boot": ("10", "x"),
    "parsable": (None,),
    "wckey": ("a",),
    "chdir": ("/tmp", "/does/not/exist"),
    "get-user-env": (None, "10", "10L", "x"),
    "wrap": ("hostname",),
    "bb": ("x",),
}
#: Spellings that are none, as users write them.
_UNKNOWN = (
    *(
        "gpu",
        "node",
        "n-tasks",
        "ntasks_per_node",
        "cpus_per_task",
        "tasks-per-node",
        "walltime",
        "memory",
        "num-nodes",
    ),
    *("gpus-per-nodes", "job_name", "job-names", "mail", "mail-users", "email", "queue", "ppn", "cpu-per-task", "cpus"),
    *(
        "mem_per_cpu",
        "gpus_per_node",
        "out",
        "err",
        "stdout",
        "accounts",
        "ntask",
        "nproc",
        "gpu-per-node",
        "time-limit",
    ),
    *("exclusives", "constraints", "mem-per-node", "tasks", "gpus-per-cpu", "requeues", "project", "env"),
)


def _drawn(draw: random.Random, settings: dict[str, Any]) -> Change:
    kind = draw.choices(("value", "present", "unknown", "typo"), weights=(6, 6, 2, 2))[0]
    if kind == "unknown":
        return Change(draw.choice(_UNKNOWN), "unknown", draw.choice(("4", "8", "x")))
    if kind == "typo":
        name = draw.choice(sorted(settings))
        place = draw.randrange(1, max(2, len(name) - 1))
        wrong = draw.choice((name[:place] + name[place + 1 :], name[:place] + name[place] + name[place:], f"{name}s"))
        return Change(wrong, "unknown", settings[name])
    known = sorted(key for key in settings if key in _SPACE)
    key = draw.choice(known if kind == "present" and known else sorted(_SPACE))
    return Change(key, "value", draw.choice(_SPACE[key]))


FRAMEWORK = BatchScripts(
    name="slurm",
    distribution="slurm",
    version="22.05.8",
    requirements=("pytest==9.2.0",),
    validator="slurm_validator.py",
    seeds=(
        Seed(
            "gpus per node",
            {
                "job-name": "train",
                "partition": "gpu",
                "nodes": "4",
                "ntasks-per-node": "1",
                "gpus-per-node": "8",
                "cpus-per-task": "64",
                "mem": "0",
                "time": "24:00:00",
                "output": "logs/%x-%j.out",
                "exclusive": None,
            },
        ),
        Seed(
            "gres",
            {
                "job-name": "gpt",
                "nodes": "2",
                "ntasks-per-node": "1",
                "gres": "gpu:8",
                "cpus-per-task": "32",
                "mem": "500G",
                "time": "2-00:00:00",
                "signal": "USR1@120",
                "mail-type": "FAIL",
                "requeue": None,
                "open-mode": "append",
            },
        ),
        Seed(
            "array",
            {
                "job-name": "sweep",
                "partition": "debug",
                "array": "0-7%4",
                "nodes": "2",
                "ntasks-per-node": "1",
                "gpus-per-node": "8",
                "mem-per-cpu": "4G",
                "time": "12:00:00",
                "constraint": "h100",
                "hint": "nomultithread",
            },
        ),
    ),
    space={},
    render=lambda form, settings: _case(form, settings, ()),
    needs_torch=False,
)
