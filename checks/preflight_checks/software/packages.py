"""Checks that nodes have the same packages, interpreters and libraries, and that the job's imports are found."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from functools import partial

from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight_checks.context.copies import computed_in_step, plan_installed
from preflight_checks.context.environment import observed_environments, plan_both, set_by_job, unknown_bare_environments
from preflight_checks.plans import (
    Plan,
    all_of,
    combine_plans,
    gated_by,
    has_launches,
    has_several_nodes,
    known_facts,
    missing_facts,
    only_if,
    split,
    table,
    warning_check,
)
from preflight_checks.probes.environment import environment
from preflight_checks.probes.packages import DISTRIBUTIONS, Importable, Installed, importable, installed
from preflight_checks.requirements import fold, gpu_claims, known_text, scopes

#: The text of a context after the job's setup lines ran.
_PRELUDE_RAN = "setup lines of the job"
#: The text of one without the job's variables.
_NO_VARIABLES = "no variables of the job"


def _imports(job: Job) -> dict[str, list[Claim]]:
    """Return the claims by package, in the order of the job's files."""
    found: dict[str, list[Claim]] = {}
    for scope in scopes(job):
        for claim in job.about("imported_framework", scope):
            for value in claim.alternatives:
                known = found.setdefault(str(value), [])
                if claim not in known:
                    known.append(claim)
    return found


def _import_plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    found = _imports(job) if job.launches else {}
    if not found:
        return
    claims = tuple(dict.fromkeys(claim for each in found.values() for claim in each))
    params = {"names": sorted(found), "scripts": sorted({claim.span.path for claim in claims})}
    for node in fleet.reached:
        yield Request(probe_name(importable), node.name, params, context=True, because=claims, deadline_s=8.0)


@check("PKG005", "imported-framework-missing", plan=_import_plan, probes=(importable,), severity=Severity.ERROR)
def imported_framework_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks' interpreter finds every framework that the job's script imports.

    What it checks: the frameworks that the script imports on every path (not in a `try`, under a condition, or in a
    function that may not be called) and that are not files of the job, as found by the ranks' interpreter, in their
    directory and environment, on every node.

    Why it matters: the ranks on such a node stop at the import. If all nodes lack it, every rank stops, after the job
    has waited in the queue; if one node lacks it, the others wait for it.

    Example: train.py imports deepspeed, which /opt/venv/bin/python3 does not find on node[1-4].

    Fix: install it for that interpreter, or start the ranks with an interpreter that has it.

    Known limits: only frameworks that are known by name; what imported modules import is not followed. If the job
    installs packages, changes the search path, or has setup lines that were not run (`--prelude`), a missing framework
    is `unknown`. A package that is found may still fail to import.
    """
    imports = _imports(job) if job.launches else {}
    if not imports:
        yield not_applicable("imported frameworks", "the job's script certainly imports no package")
        return
    values = yield from known_facts(facts, importable, "imported frameworks")
    provenance = next((row.provenance for row in facts.each(importable) if isinstance(row.fact, Observed)), "")
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name in imports:
        nodes = tuple(node for node, value in values.items() if name in value.missing)
        if nodes:
            lacking.setdefault(nodes, []).append(name)
    for nodes, names in lacking.items():
        for name in names:
            doubt = _doubt_reason(job, imports[name], provenance)
            if doubt:
                text = f"{values[nodes[0]].executable} does not find {name} on {fold(nodes)}, but {doubt}"
                yield unknown(name, text, nodes=nodes)
            else:
                yield _finding(name, nodes, values, imports[name])
    undecided = grouped((item, node) for node, value in values.items() for item in value.undecided.items())
    for (name, why), nodes_of in undecided.items():
        yield unknown(name, f"whether {name} is installed on {fold(nodes_of)} is unknown: {why}", nodes=nodes_of)
    if values and not lacking and not undecided:
        yield passed(f"{fold(sorted(imports), 8)} on {len(values)} nodes")


def _doubt_reason(job: Job, claims: list[Claim], provenance: str) -> str:
    """Return why ranks may find a package that the interpreter did not find; empty if they certainly do not."""
    conditions = [claim.condition for claim in claims]
    if all(conditions):
        return f"it is imported {conditions[0]}"
    if job.about("installing_line"):
        return "the job installs packages before it starts"
    if job.about("prelude") and _PRELUDE_RAN not in provenance:
        return "the job's setup lines, which may provide it, were not run (use --trust-job --prelude to run them)"
    if job.about("container"):
        return "the ranks run in a container"
    for claim in job.about("env.PYTHONPATH"):
        if not isinstance(claim.value, Known):
            return f"PYTHONPATH in {claim.span.path} line {claim.span.line} is known only at run time"
        if _NO_VARIABLES in provenance:
            return "the job sets PYTHONPATH, which was not applied (use --trust-job to apply it)"
    interpreters = {known_text(job, "interpreter", scope) for scope in scopes(job)}
    if len(interpreters) > 1:
        return "its launches start different interpreters"
    return ""


def _finding(name: str, nodes: tuple[str, ...], values: dict[str, Importable], claims: list[Claim]) -> Verdict:
    value = values[nodes[0]]
    claim = next(claim for claim in claims if not claim.condition)
    distribution = table("distributions")["packages"].get(name, name)
    broken = value.missing[name]
    installed = f", although its distribution {broken} is installed" if broken else ""
    executables = {node: values[node].executable for node in nodes}
    return failed(
        name,
        f"{claim.span.path} imports {name}, which {value.executable} does not find on {fold(nodes)}{installed}",
        at=claim,
        also=[
            Evidence("imports", f"no module {name}", "it is found", f"{value.executable} -c 'import {name}'", nodes[0])
        ],
        nodes=nodes,
        remedy=f"Install {distribution or name} for {value.executable} on {fold(nodes)}, or start the ranks with an "
        "interpreter that has it.",
        run=[
            command(
                executable, "-m", "pip", "install", distribution, on=[n for n in nodes if executables[n] == executable]
            )
            for executable in dict.fromkeys(executables.values())
            if distribution and executable
        ],
    )


_PATHS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH")


@warning_check("ENV024", "library-paths-differ", plan=combine_plans(plan_both, when=has_launches))
@only_if(all_of(has_several_nodes, has_launches), "library paths", "the job has one node, or starts no ranks")
def library_paths_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """LD_LIBRARY_PATH, LD_PRELOAD and PYTHONPATH of the ranks are the same on every node.

    What it checks: these three variables where the ranks run, folder by folder.

    Why it matters: they determine which NCCL, CUDA and Python modules are loaded, ahead of anything installed. A node
    with a different order loads a different library of the same name.

    Example: on node3, /usr/local/cuda-11.8/lib64 precedes /usr/local/cuda/lib64, which the others have.

    Fix: set the variables in the job's script, or fix the profile of the differing node.

    Known limits: folders in /etc/ld.so.conf are not seen; a different order, and folders that are missing on the node,
    are reported.
    """
    yield from missing_facts(facts, environment, "library paths")
    environments = observed_environments(facts)
    if environments is None:
        yield unknown("library paths", "the environment is known on fewer than two nodes")
        return
    wrong = False
    for name in _PATHS:
        values = {node: value.variables.get(name, "") for node, value in environments.by_node.items()}
        division = split({node: ":".join(part for part in text.split(":") if part) for node, text in values.items()})
        if division is None or not division.odd or name in set_by_job(job):
            continue
        wrong = True
        node, value = division.first_odd
        mine, theirs = value.split(":") if value else [], division.common.split(":") if division.common else []
        parts = []
        if more := [part for part in mine if part not in theirs]:
            parts.append(f"{fold(more, 3)} only there")
        if less := [part for part in theirs if part not in mine]:
            parts.append(f"{fold(less, 3)} not there")
        yield failed(
            f"{name} on {fold(division.odd)}",
            f"{environments.where}, {name} differs on {fold(division.odd)}: {'; '.join(parts) or 'another order'}",
            at=Evidence("environment", value or "not set", division.common or "not set", f"printenv {name}", node),
            nodes=tuple(division.odd),
            remedy=f"Set {name} in the job's script, or fix it in the profile of {fold(division.odd)}.",
        )
    missing = split({node: ":".join(value.missing_folders) for node, value in environments.by_node.items()})
    if not wrong and missing is not None and missing.odd:
        wrong = True
        node, folders = next(((n, f) for n, f in missing.odd.items() if f), missing.first_odd)
        where = tuple(n for n, f in {**missing.odd, **dict.fromkeys(missing.agreeing, missing.common)}.items() if f)
        absent = folders or missing.common
        yield failed(
            f"folders of LD_LIBRARY_PATH on {fold(where)}",
            f"LD_LIBRARY_PATH names {fold(absent.split(':'), 3)}, which {'is' if absent.count(':') == 0 else 'are'} "
            f"missing on {fold(where)} but present on the other nodes",
            at=Evidence("library path", "no such folder", "a folder", f"ls -d {absent.split(':')[0]}", where[0]),
            nodes=where,
            remedy=f"Install or mount {absent.split(':')[0]} on {fold(where)}.",
        )
    if not wrong:
        yield passed(f"library paths on {len(environments.by_node)} nodes")


def _reads_settings(job: Job) -> bool:
    deepspeed = any(launch.launcher == "deepspeed" for launch in job.launches)
    return bool(job.launches) and (deepspeed or bool(gpu_claims(job)))


@check(
    "ENV025",
    "settings-file-misread",
    plan=combine_plans(plan_both, when=lambda job, fleet: _reads_settings(job)),
    severity=Severity.WARNING,
    confidence=Confidence.HIGH,
)
def settings_file_misread(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The settings files of NCCL and DeepSpeed contain only lines that these can parse.

    What it checks: each line of /etc/nccl.conf, ~/.nccl.conf or $NCCL_CONF_FILE, read as NCCL does, and of DeepSpeed's
    .deepspeed_env; and whether the files can be read at all.

    Why it matters: NCCL trims nothing and reports nothing. `NCCL_DEBUG = INFO` sets a variable whose name ends in a
    space, which nothing reads. DeepSpeed's launcher stops with a traceback at a line without an equals sign.

    Example: `NCCL_IB_HCA = mlx5_0` in /etc/nccl.conf.

    Fix: write `NAME=value` with no spaces.

    Known limits: values are not judged here.
    """
    if not _reads_settings(job):
        yield not_applicable("settings files", "nothing in the job reads these files")
        return
    # Both observations read the same files; one is enough.
    yield from unknown_bare_environments(facts, "settings files")
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
            remedy=f"Write `NAME=value` with no spaces around the equals sign in {path}, or make the file readable "
            "for this user.",
        )
    if looked and not wrong:
        yield passed(f"settings files on {len(looked)} nodes")


#: VER003 covers these.
_JUDGED_ELSEWHERE = frozenset(name for names in DISTRIBUTIONS.values() for name in names)
#: An extra one of these is untidy but rarely breaks a job.
_HARMLESS = ("opencv-python", "pynvml", "onnxruntime")


_plan = combine_plans(Plan((installed,), plan_installed), when=has_several_nodes)


def _comparable_packages(
    job: Job, fleet: Fleet, facts: Facts, subject: str
) -> Generator[Verdict, None, Mapping[str, Installed] | None]:
    """Return the packages of each node; with fewer than two nodes, yield the verdict that replaces the check."""
    if len(fleet.nodes) < 2 or not job.launches:
        yield not_applicable(subject, "the job has one node, or no launch")
        return None
    observed, blind = facts.observed(installed), tuple(missing_facts(facts, installed, subject))
    yield from blind
    if len(observed) < 2 and not blind:
        yield unknown(subject, "the packages are known on fewer than two nodes")
    return observed if len(observed) > 1 else None


@warning_check("PKG001", "package-set-differs", plan=_plan)
@gated_by(partial(_comparable_packages, subject="packages"))
def package_set_differs(job: Job, fleet: Fleet, facts: Facts, observed: Mapping[str, Installed]) -> Iterator[Verdict]:
    """The ranks of all nodes find the same packages in the same versions.

    What it checks: every distribution that the ranks' interpreter finds, compared with what most nodes have; packages
    that ranks exchange data with or compute with in lockstep are a warning, all others informational. VER003 covers the
    frameworks.

    Why it matters: data that is pickled by one version cannot be read by another, a library that computes differently
    distorts the run, and a package that one node lacks stops its ranks after the others have joined.

    Example: node3 has numpy 2.1 and protobuf 5, the others numpy 1.26 and protobuf 4.

    Fix: install from one lock file on every node, or use one image or a shared file system.

    Known limits: versions come from installed metadata; a package on PYTHONPATH without metadata is not seen.
    """
    # Most nodes have the same, so each different set is searched once.
    sets = {value.digest: value.distributions for value in observed.values()}
    names = {name for held in sets.values() for name in held}
    unlike = [name for name in sorted(names) if len({held.get(name) for held in sets.values()}) > 1]
    together: dict[tuple[bool, tuple[str, ...]], dict[str, str]] = {}
    for name in unlike:
        if name in _JUDGED_ELSEWHERE:
            continue
        division = split({node: value.distributions.get(name, "none") for node, value in observed.items()})
        if division is not None and division.odd:
            shown = fold((f"{version} on {node}" for node, version in division.odd.items()), 3)
            together.setdefault((computed_in_step(name), tuple(division.odd)), {})[name] = (
                f"{name} {shown} ({division.common})"
            )
    for (in_step, nodes), differing in together.items():
        yield _packages_finding(observed, nodes, differing, in_step=in_step)
    if len(sets) > 1 and not unlike and (division := split({node: value.digest for node, value in observed.items()})):
        yield _unlisted_finding(observed, tuple(division.odd))
    elif not together:
        yield passed(f"packages on {len(observed)} nodes")


def _unlisted_finding(observed: Mapping[str, Installed], nodes: tuple[str, ...]) -> Verdict:
    """Return the finding for differences that are not listed individually, or that belong to another check."""
    executable = observed[nodes[0]].executable
    return failed(
        f"other packages on {fold(nodes)}",
        f"packages on {fold(nodes)} differ from those of most nodes, but not in the packages that the ranks need to "
        "compute together",
        at=Evidence("packages", observed[nodes[0]].digest, "one set", f"{executable} -m pip freeze", nodes[0]),
        nodes=nodes,
        remedy="Run all ranks in the same environment.",
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
        f"{count} on {fold(nodes)} from most nodes (whose versions are in parentheses): {fold(differing.values(), 8)}",
        at=Evidence("packages", next(iter(differing.values())), "one version", f"{executable} -m pip freeze", node),
        nodes=nodes,
        remedy=f"Install the versions of the other nodes on {fold(nodes)}, or run all ranks in the same environment.",
        severity=None if in_step else Severity.INFO,
    )


@warning_check("PKG002", "interpreters-differ", plan=_plan)
@gated_by(partial(_comparable_packages, subject="interpreters"))
def interpreters_differ(job: Job, fleet: Fleet, facts: Facts, observed: Mapping[str, Installed]) -> Iterator[Verdict]:
    """The ranks of all nodes use the same kind of interpreter on the same kind of processor.

    What it checks: whether the interpreter belongs to a virtual environment, to conda or to the system, its processor
    and binary interface, and its path.

    Why it matters: a node that falls back to the system's Python has other packages, and fails at the first import, or
    later; wheels for another processor are different programs.

    Example: on node3 `python3` is /usr/bin/python3, on the others /opt/conda/bin/python3.

    Fix: name the interpreter by its full path, or make non-interactive logins find the same one.

    Known limits: a different path alone is informational; VER003 compares versions of Python.
    """
    wrong = False
    for what, values, severe in (
        ("processor", {node: value.machine for node, value in observed.items()}, True),
        ("kind of environment", {node: value.kind for node, value in observed.items()}, True),
        ("binary interface", {node: _abi(value) for node, value in observed.items()}, True),
        ("place", {node: value.resolved for node, value in observed.items()}, False),
    ):
        division = split(values)
        if division is None or not division.odd or (wrong and not severe):
            continue
        wrong = True
        node, value = division.first_odd
        yield failed(
            f"interpreters: {what}",
            f"the {what} of the ranks' interpreter differs: {division.description}",
            at=Evidence(
                "interpreter", f"{observed[node].executable}: {value}", division.common, observed[node].resolved, node
            ),
            nodes=tuple(division.odd),
            remedy=f"Start the ranks with the same interpreter everywhere, by its full path; "
            f"check {fold(division.odd)}.",
            severity=None if severe else Severity.INFO,
        )
    if not wrong:
        yield passed(f"interpreters on {len(observed)} nodes")


def _abi(value: Installed) -> str:
    """Return the binary interface without the processor, which is reported separately."""
    return value.abi.partition(f"-{value.machine}")[0]


@check("PKG003", "source-trees-differ", plan=_plan, severity=Severity.WARNING, confidence=Confidence.HIGH)
@gated_by(partial(_comparable_packages, subject="source trees"))
def source_trees_differ(job: Job, fleet: Fleet, facts: Facts, observed: Mapping[str, Installed]) -> Iterator[Verdict]:
    """Packages installed from a source tree or repository have the same commit on every node.

    What it checks: the commit of packages that are installed from a repository, and the checked-out commit of packages
    that are installed in place (pip install -e).

    Why it matters: the version number is the same but the code is not: one node runs last week's trainer.

    Example: Megatron-LM installed in place at 3f2a91c on node3 and at 8be10d4 elsewhere.

    Fix: check out the same commit everywhere, or install in place only on a shared file system.

    Known limits: changes that are not committed are not seen here; CPY001 compares the job's own files.
    """
    wrong = False
    for name in sorted({name for value in observed.values() for name in value.sources}):
        values = {
            n: v.sources[name].commit[:12] for n, v in observed.items() if name in v.sources and v.sources[name].commit
        }
        division = split(values)
        if division is None or not division.odd:
            continue
        wrong = True
        node, commit = division.first_odd
        place = observed[node].sources[name].place
        yield failed(
            f"{name}: commit",
            f"{name}, installed from {place}, has different commits: {division.description}",
            at=Evidence("packages", commit, division.common, f"git -C {place} log -1", node),
            nodes=tuple(division.odd),
            remedy=f"Check out {division.common} of {name} on {fold(division.odd)}.",
        )
    if not wrong:
        yield passed(f"source trees on {len(observed)} nodes")


@warning_check("PKG004", "packages-overwrite-each-other", plan=plan_installed)
@only_if(has_launches, "packages", "the job starts no ranks")
def packages_overwrite_each_other(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """No two installed distributions provide the same import package, and none is installed in two versions.

    What it checks: pairs such as paddlepaddle and paddlepaddle-gpu, or NCCL for two releases of CUDA, which write files
    with the same names; and metadata of two versions of one distribution in one folder.

    Why it matters: whichever was installed last has overwritten part of the other, and removing one breaks both. Which
    NCCL or framework is loaded is then random, and may differ between nodes.

    Example: `paddlepaddle-gpu` installed over `paddlepaddle`.

    Fix: uninstall both, then install the intended one.

    Known limits: only pairs known from training jobs are checked.
    """
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
            remedy=f"`{executable} -m pip uninstall {names}` until none is left, then install the intended one.",
            run=(command(executable, "-m", "pip", "uninstall", "-y", *names.split(), on=nodes),),
        )
    if observed and not doubled:
        yield passed(f"packages on {len(observed)} nodes")
