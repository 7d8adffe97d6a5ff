"""The check that the ranks' interpreter has the frameworks that the job's script imports."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight_checks.data_tables import table
from preflight_checks.plans import known_facts
from preflight_checks.probes.packages import Importable, importable
from preflight_checks.requirements import fold, known_text, scopes

#: The text of a context in which the job's setup lines ran.
_PRELUDE_RAN = "setup lines of the job"
#: The text of one without the job's variables.
_NO_VARIABLES = "no variables of the job"


def _imports(job: Job) -> dict[str, list[Claim]]:
    """The claims by package, in the order of the job's files."""
    found: dict[str, list[Claim]] = {}
    for scope in scopes(job):
        for claim in job.about("imported_framework", scope):
            for value in claim.alternatives:
                known = found.setdefault(str(value), [])
                if claim not in known:
                    known.append(claim)
    return found


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    found = _imports(job) if job.launches else {}
    if not found:
        return
    claims = tuple(dict.fromkeys(claim for each in found.values() for claim in each))
    params = {"names": sorted(found), "scripts": sorted({claim.span.path for claim in claims})}
    for node in fleet.reached:
        yield Request(probe_name(importable), node.name, params, context=True, because=claims, deadline_s=8.0)


@check(
    "PKG005",
    "imported-framework-missing",
    plan=_plan,
    probes=(importable,),
    cost="looks for the script's imports on the ranks' search path, some milliseconds; nothing is imported",
    severity=Severity.ERROR,
    evidence=("hiyouga/LlamaFactory#3381", ("imports that fail on the other nodes", "deepspeedai/DeepSpeed#3489")),
)
def imported_framework_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks' interpreter finds every framework that the job's script imports.

    What it checks: the frameworks that the script imports on every path (not in a `try`, under a condition, or in a
    function that may not be called) and that are no file of the job, looked for by the ranks' interpreter, in their
    directory and environment, on every node.

    Why it matters: the ranks on such a node end at the import. If all nodes lack it, every rank does, after the job has
    waited in the queue; if one does, the others wait for it.

    Example: train.py imports deepspeed, which /opt/venv/bin/python3 does not find on node[1-4].

    Fix: install it for that interpreter, or start the ranks with the one that has it.

    Known limits: only frameworks that are known by name; what imported modules import is not followed. If the job
    installs packages, changes the search path, or has setup lines that were not run (`--prelude`), a missing one is
    `unknown`. A package that is found may still fail to import.
    """
    wanted = _imports(job) if job.launches else {}
    if not wanted:
        yield not_applicable("imported frameworks", "the job's script certainly imports none")
        return
    values = yield from known_facts(facts, importable, "imported frameworks")
    provenance = next((row.provenance for row in facts.each(importable) if isinstance(row.fact, Observed)), "")
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name in wanted:
        nodes = tuple(node for node, value in values.items() if name in value.missing)
        if nodes:
            lacking.setdefault(nodes, []).append(name)
    for nodes, names in lacking.items():
        for name in names:
            doubt = _doubt(job, wanted[name], provenance)
            if doubt:
                text = f"{name} is not found by {values[nodes[0]].executable} on {fold(nodes)}, but {doubt}"
                yield unknown(name, text, nodes=nodes)
            else:
                yield _finding(name, nodes, values, wanted[name])
    undecided: dict[tuple[str, str], list[str]] = {}
    for node, value in values.items():
        for item in value.undecided.items():
            undecided.setdefault(item, []).append(node)
    for (name, why), nodes_of in undecided.items():
        yield unknown(name, f"whether {name} is found on {fold(nodes_of)} could not be decided: {why}", nodes=nodes_of)
    if values and not lacking and not undecided:
        yield passed(f"{fold(sorted(wanted), 8)} on {len(values)} nodes")


def _doubt(job: Job, claims: list[Claim], provenance: str) -> str:
    """Why the ranks may find a package that the interpreter did not; empty if they certainly do not."""
    conditions = [claim.condition for claim in claims]
    if all(conditions):
        return f"it is imported {conditions[0]}"
    if job.about("installing_line"):
        return "the job installs packages before it starts"
    if job.about("prelude") and _PRELUDE_RAN not in provenance:
        return "the job's setup lines, which may provide it, were not run (--trust-job --prelude runs them)"
    if job.about("container"):
        return "the ranks run in a container"
    for claim in job.about("env.PYTHONPATH"):
        if not isinstance(claim.value, Known):
            return f"PYTHONPATH in {claim.span.path} line {claim.span.line} is only known when the job runs"
        if _NO_VARIABLES in provenance:
            return "the job sets PYTHONPATH, which was not used (--trust-job uses it)"
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
