"""Checks that ranks can start on every node: interpreter, directory, setup lines, container."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.probes.installed import installed
from preflight_checks.requirements.claims import claims_in_force, scopes
from preflight_checks.requirements.hosts import fold, unreached

#: The agent's messages when the interpreter or directory is missing and no setup line could have provided it.
_ABSENT = "the job context cannot be entered"
_TOO_OLD = "is older than Python 3.8"
#: The head's words about ranks in a container (`preflight.runner.job_context`).
_IN_CONTAINER, _OUTSIDE = "the ranks run in the container", "outside of the container"


#: Packages that ranks exchange data with or compute with in lockstep: another version on one node can stop or distort
#: a run.
IN_STEP = (
    *("numpy", "protobuf", "grpcio", "mpi4py", "cloudpickle", "dill", "pyarrow", "msgpack", "pyzmq", "cupy*"),
    *("transformers", "datasets", "tokenizers", "peft", "trl", "lightning", "pytorch-lightning", "fairscale"),
    *("megatron-core", "colossalai", "transformer-engine*", "flash-attn*", "apex", "xformers", "triton"),
    *("torchvision", "torchaudio", "torchdata", "torchrec", "fbgemm-gpu*", "bitsandbytes"),
    *("tensorflow*", "jax", "jaxlib", "mxnet*", "byteps", "paddlenlp", "pgl", "vllm", "composer", "mosaicml-streaming"),
    *("nvidia-[!m]*", "amd-*", "intel-extension-for-*"),
)
#: In larger fleets each node reports only these packages, and a digest of all.
MAX_LISTED = 128
SHARED_PACKAGES = (*IN_STEP, "torch", "paddlepaddle*", "deepspeed", "accelerate", "horovod", "ray", "onnxruntime*")


def computed_in_step(name: str) -> bool:
    """Whether ranks exchange data with this package, or compute with it in lockstep."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in IN_STEP)


def plan_installed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request the packages that the ranks' interpreter finds, from every node that was reached."""
    params = {"only": SHARED_PACKAGES} if len(fleet.nodes) > MAX_LISTED else {}
    for node in fleet.reached if job.launches else ():
        yield Request(probe_name(installed), node.name, params, context=True, deadline_s=8.0)


@check(
    "CTX001",
    "ranks-cannot-start",
    plan=plan_installed,
    probes=(installed,),
    cost="starts the ranks' interpreter once and lists its package folders; a tenth of a second",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#1603", "deepspeedai/DeepSpeed#4370", "https://peps.python.org/pep-0011/"),
)
def ranks_cannot_start(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks' interpreter can be started on every node, in their directory and after their setup lines.

    What it checks: on each node the interpreter, working directory and setup lines of the job are entered, the way a
    rank is started.

    Why it matters: the node where it fails logs the error only locally and ends; all others wait for it.

    Example: /opt/conda is mounted on three nodes of four; python3 is 3.6 on an old one.

    Fix: install the interpreter there, mount the file system that contains it, or name another one.

    Known limits: nothing is tried if the ranks' interpreter is unknown (no --python, no --trust-job). A container is
    not entered: the verdict is then incomplete, or with --python the host is examined, which is stated.
    What fails on every node alike after setup lines or in a container may still work when the scheduler starts it.
    """
    if not job.launches:
        yield not_applicable("the ranks' interpreter", "the job starts no ranks")
        return
    everywhere = list(facts.each(installed))
    silent = unreached(fleet)
    if silent:
        yield unknown(f"the ranks' interpreter on {fold(silent)}", "blocked by NOD001", nodes=silent)
    closed: dict[str, list[_EntryFailure]] = {}
    reasons: dict[str, list[str]] = {}
    for seen in everywhere:
        if isinstance(seen.fact, Observed):
            continue
        # Without a provenance the ranks' context is unknown, which is no fault of a node.
        if seen.fact.kind == "context" and seen.provenance:
            closed.setdefault(seen.fact.reason, []).append(_EntryFailure(seen.node, seen.fact.detail, seen.provenance))
        else:
            reasons.setdefault(seen.fact.reason, []).append(seen.node)
    for reason, found in closed.items():
        yield _entry_finding(job, reason, found, everywhere=len(found) == len(everywhere))
    for reason, nodes in reasons.items():
        # The claims say where the ranks run, so that a look at the host would be one at something else.
        required = reason.startswith(_IN_CONTAINER)
        yield unknown(f"the ranks' interpreter on {fold(nodes)}", reason, nodes=nodes, required=required)
    outside = [seen.node for seen in everywhere if isinstance(seen.fact, Observed) and _OUTSIDE in seen.provenance]
    if outside:
        reason = "the interpreter of --python was examined on the host, and the job starts its ranks in a container"
        yield unknown(f"the container of the ranks on {fold(outside)}", reason, nodes=outside)
    elif everywhere and not closed and not reasons:
        yield passed(f"the ranks' interpreter on {len(everywhere)} nodes")


@dataclass(frozen=True, slots=True)
class _EntryFailure:
    """A node on which the job context cannot be entered."""

    node: str
    detail: str
    provenance: str


def _entry_finding(job: Job, reason: str, failures: list[_EntryFailure], *, everywhere: bool) -> Verdict:
    nodes = tuple(item.node for item in failures)
    subject = f"the ranks' interpreter on {fold(nodes)}"
    if everywhere and not reason.startswith(_ABSENT):
        return unknown(subject, reason, nodes=nodes, required=_TOO_OLD not in reason)
    claims = tuple(
        claim
        for quantity in ("interpreter", "working_directory")
        for scope in scopes(job)
        for claim in claims_in_force(job, quantity, scope)
    )
    detail = failures[0].detail.strip().splitlines()
    others = "" if everywhere else ", but they can on the other nodes"
    remedy = "Install Python 3.8 or newer on {}, the version of the other nodes, or name another interpreter."
    if _TOO_OLD not in reason:
        remedy = "Mount or install the missing file on {}, or correct its path."
    return failed(
        subject,
        f"ranks cannot start on {fold(nodes)}{others}: {reason}",
        at=Evidence(
            "the job context",
            detail[-1] if detail else reason,
            "a Python interpreter that starts",
            failures[0].provenance,
            nodes[0],
        ),
        also=tuple(dict.fromkeys(claims)),
        nodes=nodes,
        remedy=remedy.format(fold(nodes)),
    )
