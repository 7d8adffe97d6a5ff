"""Checks that the ranks of all nodes find the same packages with the same kind of interpreter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.context.entry import computed_in_step, plan_installed
from preflight_checks.data_tables import table
from preflight_checks.plans import Plan, combined, known_facts, missing_facts, several_nodes
from preflight_checks.probes.installed import Installed, installed
from preflight_checks.probes.packages import DISTRIBUTIONS
from preflight_checks.requirements import fold

_COST = "lists the folders of the ranks' packages, a tenth of a second; nothing is imported"
#: VER003 covers these.
_JUDGED_ELSEWHERE = frozenset(name for names in DISTRIBUTIONS.values() for name in names)
#: An extra one of these is untidy but rarely breaks a job.
_HARMLESS = ("opencv-python", "pynvml", "onnxruntime")


_plan = combined(Plan((installed,), plan_installed), when=several_nodes)


def _too_few_nodes(job: Job, fleet: Fleet, subject: str) -> Verdict | None:
    if len(fleet.nodes) < 2 or not job.launches:
        return not_applicable(subject, "the job has one node, or no launch")
    return None


def _applicable(job: Job, fleet: Fleet, facts: Facts, subject: str) -> Iterator[Verdict]:
    """The verdicts that explain why nothing can be compared; none if it can."""
    alone = _too_few_nodes(job, fleet, subject)
    if alone is not None:
        yield alone
        return
    blind = tuple(missing_facts(facts, installed, subject))
    yield from blind
    if len(facts.observed(installed)) < 2 and not blind:
        yield unknown(subject, "the packages of fewer than two nodes are known")


@check(
    "PKG001",
    "package-set-differs",
    plan=_plan,
    cost=_COST,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#286", "NVIDIA/nccl#1328", "Unakar/Logic-RL#30"),
)
def package_set_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks of all nodes find the same packages in the same versions.

    What it checks: every distribution that the ranks' interpreter finds, compared with what most nodes have; what ranks
    exchange data with or compute with in lockstep is a warning, everything else is information. VER003 covers the
    frameworks.

    Why it matters: data pickled by one version is not read by another, a library that computes differently distorts
    the run, and a package that one node lacks ends it there after the others have joined.

    Example: node3 has numpy 2.1 and protobuf 5, the others numpy 1.26 and protobuf 4.

    Fix: install from one lock file on every node, or use one image or a shared file system.

    Known limits: versions come from installed metadata; a package on PYTHONPATH without metadata is not seen.
    """
    reasons = list(_applicable(job, fleet, facts, "packages"))
    yield from reasons
    observed = facts.observed(installed)
    if _too_few_nodes(job, fleet, "") is not None or len(observed) < 2:
        return
    # Most nodes have the same, so each different set is searched once.
    sets = {value.digest: value.distributions for value in observed.values()}
    names = {name for held in sets.values() for name in held}
    unlike = [name for name in sorted(names) if len({held.get(name) for held in sets.values()}) > 1]
    together: dict[tuple[bool, tuple[str, ...]], dict[str, str]] = {}
    for name in unlike:
        if name in _JUDGED_ELSEWHERE:
            continue
        found = split({node: value.distributions.get(name, "none") for node, value in observed.items()})
        if found is not None and found.odd:
            shown = fold((f"{version} on {node}" for node, version in found.odd.items()), 3)
            together.setdefault((computed_in_step(name), tuple(found.odd)), {})[name] = (
                f"{name} {shown} ({found.common})"
            )
    for (in_step, nodes), differing in together.items():
        yield _packages_finding(observed, nodes, differing, in_step=in_step)
    if len(sets) > 1 and not unlike and (found := split({node: value.digest for node, value in observed.items()})):
        yield _unlisted_finding(observed, tuple(found.odd))
    elif not together:
        yield passed(f"packages on {len(observed)} nodes")


def _unlisted_finding(observed: Mapping[str, Installed], nodes: tuple[str, ...]) -> Verdict:
    """Findings for differences that are not listed one by one, or that belong to another check."""
    executable = observed[nodes[0]].executable
    return failed(
        f"further packages on {fold(nodes)}",
        f"packages on {fold(nodes)} differ from those of most nodes, but not in the packages that ranks use for joint "
        "computation",
        at=Evidence("packages", observed[nodes[0]].digest, "one set", f"{executable} -m pip freeze", nodes[0]),
        nodes=nodes,
        remedy="Run all ranks from one environment.",
        severity=Severity.INFO,
    )


def _packages_finding(
    observed: Mapping[str, Installed], nodes: tuple[str, ...], differing: Mapping[str, str], *, in_step: bool
) -> Verdict:
    node = nodes[0]
    count = f"{len(differing)} packages differ" if len(differing) > 1 else "a package differs"
    executable = observed[node].executable
    names = fold(differing, 6)
    return failed(
        f"packages on {fold(nodes)}: {names}",
        f"{count} on {fold(nodes)} from most nodes (their versions in brackets): {fold(differing.values(), 8)}",
        at=Evidence("packages", next(iter(differing.values())), "one version", f"{executable} -m pip freeze", node),
        nodes=nodes,
        remedy=f"Install the versions of the other nodes on {fold(nodes)}, or run all ranks from one environment.",
        severity=None if in_step else Severity.INFO,
    )


@check(
    "PKG002",
    "interpreters-differ",
    plan=_plan,
    cost=_COST,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("deepspeedai/DeepSpeed#1603", "deepspeedai/DeepSpeed#4370"),
)
def interpreters_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks of all nodes use one kind of interpreter on one kind of processor.

    What it checks: whether the interpreter is that of a virtual environment, of conda or the system's own, its
    processor and binary interface, and its path.

    Why it matters: a node that falls back to the system's Python has other packages, and fails at the first import, or
    later; wheels for another processor are different programs.

    Example: on node3 `python3` is /usr/bin/python3, on the others /opt/conda/bin/python3.

    Fix: name the interpreter by its full path, or make the login without a terminal find the same one.

    Known limits: a different path alone is information; versions of Python are compared by VER003.
    """
    yield from _applicable(job, fleet, facts, "interpreters")
    observed = facts.observed(installed)
    if _too_few_nodes(job, fleet, "") is not None or len(observed) < 2:
        return
    wrong = False
    for what, values, severe in (
        ("processor", {node: value.machine for node, value in observed.items()}, True),
        ("kind of environment", {node: value.kind for node, value in observed.items()}, True),
        ("binary interface", {node: _abi(value) for node, value in observed.items()}, True),
        ("place", {node: value.resolved for node, value in observed.items()}, False),
    ):
        found = split(values)
        if found is None or not found.odd or (wrong and not severe):
            continue
        wrong = True
        node, value = found.first_odd
        yield failed(
            f"interpreters: {what}",
            f"the {what} of the ranks' interpreter differs: {found.description}",
            at=Evidence(
                "interpreter", f"{observed[node].executable}: {value}", found.common, observed[node].resolved, node
            ),
            nodes=tuple(found.odd),
            remedy=f"Start the ranks with the same interpreter everywhere, by its full path; check {fold(found.odd)}.",
            severity=None if severe else Severity.INFO,
        )
    if not wrong:
        yield passed(f"interpreters on {len(observed)} nodes")


def _abi(value: Installed) -> str:
    """The binary interface without the processor, which is reported separately."""
    return value.abi.partition(f"-{value.machine}")[0]


@check(
    "PKG003",
    "source-trees-differ",
    plan=_plan,
    cost=_COST,
    severity=Severity.WARNING,
    confidence=Confidence.HIGH,
    evidence=(("PEP 610 (direct_url.json)", "https://peps.python.org/pep-0610/"), "NVIDIA/nccl#1328"),
)
def source_trees_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Packages installed from a source tree or repository have the same commit on every node.

    What it checks: the commit of packages installed from a repository, and the one that is checked out where a package
    is installed in place (pip install -e).

    Why it matters: the version number is the same and the code is not: one node runs last week's trainer.

    Example: Megatron-LM installed in place at 3f2a91c on node3 and at 8be10d4 elsewhere.

    Fix: check out one commit everywhere, or install in place only on a shared file system.

    Known limits: changes that are not committed are not seen here; CPY001 compares the job's own files.
    """
    yield from _applicable(job, fleet, facts, "source trees")
    observed = facts.observed(installed)
    if _too_few_nodes(job, fleet, "") is not None or len(observed) < 2:
        return
    wrong = False
    for name in sorted({name for value in observed.values() for name in value.sources}):
        values = {
            n: v.sources[name].commit[:12] for n, v in observed.items() if name in v.sources and v.sources[name].commit
        }
        found = split(values)
        if found is None or not found.odd:
            continue
        wrong = True
        node, commit = found.first_odd
        place = observed[node].sources[name].place
        yield failed(
            f"{name}: commit",
            f"{name}, installed from {place}, is of different commits: {found.description}",
            at=Evidence("packages", commit, found.common, f"git -C {place} log -1", node),
            nodes=tuple(found.odd),
            remedy=f"Check out {found.common} of {name} on {fold(found.odd)}.",
        )
    if not wrong:
        yield passed(f"source trees on {len(observed)} nodes")


@check(
    "PKG004",
    "packages-overwrite-each-other",
    plan=plan_installed,
    cost=_COST,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "PaddlePaddle/Paddle#23922",
        (
            "the specification of recorded installs",
            "https://packaging.python.org/en/latest/specifications/recording-installed-packages/",
        ),
    ),
)
def packages_overwrite_each_other(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No two installed distributions provide the same import package, and none is installed in two versions.

    What it checks: pairs such as paddlepaddle and paddlepaddle-gpu or NCCL for two releases of CUDA, which write files
    of the same names; and metadata of two versions of one distribution in one folder.

    Why it matters: whichever was installed last has overwritten part of the other, and removing one breaks both. Which
    NCCL or framework is loaded is then random, and may differ between nodes.

    Example: `paddlepaddle-gpu` installed over `paddlepaddle`.

    Fix: uninstall both, then install the one that is wanted.

    Known limits: only pairs known from training jobs are checked.
    """
    if not job.launches:
        yield not_applicable("packages", "the job starts no ranks")
        return
    observed = yield from known_facts(facts, installed, "packages")
    doubled: dict[tuple[str, ...], list[str]] = {}
    for node, value in observed.items():
        for group in table("distributions")["overlapping"]:
            both = tuple(f"{name} {value.distributions[name]}" for name in group if name in value.distributions)
            if len(both) > 1 and group[0] not in _HARMLESS:
                doubled.setdefault(both, []).append(node)
        for name, versions in value.twice.items():
            doubled.setdefault(tuple(f"{name} {version}" for version in versions), []).append(node)
    for both, nodes in doubled.items():
        names = " ".join(dict.fromkeys(item.split()[0] for item in both))
        executable = observed[nodes[0]].executable
        yield failed(
            f"{' and '.join(both)}",
            f"{' and '.join(both)} are installed together on {fold(nodes)} and overwrite each other's files",
            at=Evidence("packages", " and ".join(both), "one of them", f"{executable} -m pip list", nodes[0]),
            nodes=nodes,
            remedy=f"`{executable} -m pip uninstall {names}` until none is left, then install the wanted one.",
            run=(command(executable, "-m", "pip", "uninstall", "-y", *names.split(), on=nodes),),
        )
    if observed and not doubled:
        yield passed(f"packages on {len(observed)} nodes")
