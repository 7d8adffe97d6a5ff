"""Checks that library paths agree between nodes, and that settings files are well formed."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.context.node_environment import observed_environments, plan_both, set_by_job, unseen_bare
from preflight_checks.plans import combined, has_launches, missing_facts
from preflight_checks.probes.environment import environment
from preflight_checks.requirements import fold, gpu_claims

_PATHS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")


@check(
    "ENV024",
    "library-paths-differ",
    plan=combined(plan_both, when=has_launches),
    cost="reads the environment of one process and looks for the folders it names, milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#286", "PaddlePaddle/Paddle#23922", "PaddlePaddle/Paddle#26954"),
)
def library_paths_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """LD_LIBRARY_PATH, LD_PRELOAD and PYTHONPATH of the ranks are the same on every node.

    What it checks: the three variables where the ranks run, folder by folder.

    Why it matters: they determine which NCCL, CUDA and Python modules are loaded, ahead of anything installed. A node
    with another order loads another library of the same name.

    Example: node3 has /usr/local/cuda-11.8/lib64 before the others' /usr/local/cuda/lib64.

    Fix: set the variables in the job's script, or fix the profile of the odd node.

    Known limits: folders of /etc/ld.so.conf are not seen; a different order, and folders missing on the node, are
    reported.
    """
    if len(fleet.nodes) < 2 or not job.launches:
        yield not_applicable("library paths", "the job has one node, or starts no ranks")
        return
    yield from missing_facts(facts, environment, "library paths")
    seen = observed_environments(facts)
    if seen is None:
        yield unknown("library paths", "the environment of fewer than two nodes is known")
        return
    wrong = False
    for name in _PATHS:
        values = {node: value.variables.get(name, "") for node, value in seen.by_node.items()}
        found = split({node: ":".join(part for part in text.split(":") if part) for node, text in values.items()})
        if found is None or not found.odd or name in set_by_job(job):
            continue
        wrong = True
        node, value = found.first_odd
        mine, theirs = value.split(":") if value else [], found.common.split(":") if found.common else []
        parts = []
        if more := [part for part in mine if part not in theirs]:
            parts.append(f"{fold(more, 3)} only there")
        if less := [part for part in theirs if part not in mine]:
            parts.append(f"{fold(less, 3)} not there")
        yield failed(
            f"{name} on {fold(found.odd)}",
            f"{seen.where}, {name} differs on {fold(found.odd)}: {'; '.join(parts) or 'another order'}",
            at=Evidence("environment", value or "not set", found.common or "not set", f"printenv {name}", node),
            nodes=tuple(found.odd),
            remedy=f"Set {name} in the job's script, or fix it in the profile of {fold(found.odd)}.",
        )
    missing = split({node: ":".join(value.missing_folders) for node, value in seen.by_node.items()})
    if not wrong and missing is not None and missing.odd:
        wrong = True
        node, folders = next(((n, f) for n, f in missing.odd.items() if f), missing.first_odd)
        where = tuple(n for n, f in {**missing.odd, **dict.fromkeys(missing.agreeing, missing.common)}.items() if f)
        absent = folders or missing.common
        yield failed(
            f"folders of LD_LIBRARY_PATH on {fold(where)}",
            f"LD_LIBRARY_PATH names {fold(absent.split(':'), 3)}, which {'is' if absent.count(':') == 0 else 'are'} "
            f"missing on {fold(where)} and present on the other nodes",
            at=Evidence("library path", "no such folder", "a folder", f"ls -d {absent.split(':')[0]}", where[0]),
            nodes=where,
            remedy=f"Install or mount {absent.split(':')[0]} on {fold(where)}.",
        )
    if not wrong:
        yield passed(f"library paths on {len(seen.by_node)} nodes")


def _reads_settings(job: Job) -> bool:
    deepspeed = any(launch.launcher == "deepspeed" for launch in job.launches)
    return bool(job.launches) and (deepspeed or bool(gpu_claims(job)))


@check(
    "ENV025",
    "settings-file-misread",
    plan=combined(plan_both, when=lambda job, fleet: _reads_settings(job)),
    cost="reads at most three small files, milliseconds",
    severity=Severity.WARNING,
    confidence=Confidence.HIGH,
    evidence=(
        "https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html",
        (
            "NCCL's documentation of its configuration files, and src/misc/param.cc",
            "https://github.com/NVIDIA/nccl/blob/master/src/misc/param.cc",
        ),
    ),
)
def settings_file_misread(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The settings files of NCCL and DeepSpeed contain only lines that these can parse.

    What it checks: each line of /etc/nccl.conf, ~/.nccl.conf or $NCCL_CONF_FILE, read as NCCL does, and of DeepSpeed's
    .deepspeed_env; and whether the files can be read at all.

    Why it matters: NCCL trims nothing and reports nothing. `NCCL_DEBUG = INFO` sets a variable whose name ends in a
    blank, which nothing reads. DeepSpeed's launcher ends with a traceback at a line without an equals sign.

    Example: `NCCL_IB_HCA = mlx5_0` in /etc/nccl.conf.

    Fix: write `NAME=value` with no spaces.

    Known limits: values are not judged here.
    """
    if not _reads_settings(job):
        yield not_applicable("settings files", "nothing in the job's files reads them")
        return
    # Both observations read the same files; one is enough.
    yield from unseen_bare(facts, "settings files")
    wrong: dict[tuple[str, str], list[str]] = {}
    looked = set()
    for node, seen in facts.observed(environment).items():
        looked.add(node)
        for file in (*seen.nccl_files, *seen.export_files):
            if file.problem:
                wrong.setdefault((file.path, f"cannot be read: {file.problem}"), []).append(node)
            for line in file.unread:
                wrong.setdefault((file.path, line), []).append(node)
    for (path, line), nodes in wrong.items():
        yield failed(
            f"{path}: {line}",
            f"{path} on {fold(nodes)}: {line}",
            at=Evidence("settings file", line, "NAME=value, with no spaces", f"cat -A {path}", nodes[0]),
            nodes=nodes,
            remedy=f"Write `NAME=value` with no spaces around the equals sign in {path}, or let this user read it.",
        )
    if looked and not wrong:
        yield passed(f"settings files on {len(looked)} nodes")
