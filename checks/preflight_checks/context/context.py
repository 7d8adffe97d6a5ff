"""Whether the place where ranks run can be entered on every node: interpreter, directory, set-up lines, container."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import deciding, fold, scopes, unreached
from preflight_checks.probes.installed import installed

#: What the agent says when the interpreter or directory is not there, and no set-up line could have changed it.
_ABSENT = "the job context cannot be entered"
_TOO_OLD = "is older than Python 3.8"


#: What ranks exchange data with, or compute with in step: another version on one node can stop or bend the run.
IN_STEP = (
    *("numpy", "protobuf", "grpcio", "mpi4py", "cloudpickle", "dill", "pyarrow", "msgpack", "pyzmq", "cupy*"),
    *("transformers", "datasets", "tokenizers", "peft", "trl", "lightning", "pytorch-lightning", "fairscale"),
    *("megatron-core", "colossalai", "transformer-engine*", "flash-attn*", "apex", "xformers", "triton"),
    *("torchvision", "torchaudio", "torchdata", "torchrec", "fbgemm-gpu*", "bitsandbytes"),
    *("tensorflow*", "jax", "jaxlib", "mxnet*", "byteps", "paddlenlp", "pgl", "vllm", "composer", "mosaicml-streaming"),
    *("nvidia-[!m]*", "amd-*", "intel-extension-for-*"),
)
#: Of larger fleets each node tells only these, and a digest of all.
MOST_LISTED = 128
FOLLOWED = (*IN_STEP, "torch", "paddlepaddle*", "deepspeed", "accelerate", "horovod", "ray", "onnxruntime*")


def computed_in_step(name: str) -> bool:
    """Whether ranks exchange data with this package, or compute with it in step."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in IN_STEP)


def plan_installed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Ask every node that answered what the ranks' interpreter finds."""
    params = {"only": FOLLOWED} if len(fleet.nodes) > MOST_LISTED else {}
    for node in fleet.reached if job.launches else ():
        yield Request(probe_name(installed), node.name, params, context=True, deadline_s=8.0)


@check(
    "CTX001",
    "ranks-cannot-start",
    plan=plan_installed,
    probes=(installed,),
    cost="starts the ranks' interpreter once and lists the folders of its packages, a tenth of a second",
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#1603", "deepspeedai/DeepSpeed#4370", "https://peps.python.org/pep-0011/"),
)
def ranks_cannot_start(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks' interpreter can be started on every node, in their directory and after their set-up lines.

    What it checks: on each node the interpreter, working directory and set-up lines of the job are entered, the way a
    rank is started.

    Why it matters: the node where it fails says so in its own log and ends; all others wait for it.

    Example: /opt/conda is mounted on three nodes of four; python3 is 3.6 on an old one.

    Fix: install the interpreter there, mount what holds it, or name another one.

    Known limits: where nobody says which interpreter the ranks have (no --python, no --trust-job) nothing is entered.
    What fails on every node alike after set-up lines or in a container may work where the scheduler starts it.

    Evidence: deepspeedai/DeepSpeed#1603, deepspeedai/DeepSpeed#4370.
    """
    if not job.launches:
        yield not_applicable("the ranks' interpreter", "the job starts no ranks")
        return
    everywhere = list(facts.each(installed))
    silent = unreached(fleet)
    if silent:
        yield unknown(f"the ranks' interpreter on {fold(silent)}", "blocked by NOD001")
    closed: dict[str, list[_Closed]] = {}
    reasons: dict[str, list[str]] = {}
    for seen in everywhere:
        if isinstance(seen.fact, Observed):
            continue
        # Without a provenance nobody said where the ranks run; then there is nothing wrong with a node.
        if seen.fact.kind == "context" and seen.provenance:
            closed.setdefault(seen.fact.reason, []).append(_Closed(seen.node, seen.fact.detail, seen.provenance))
        else:
            reasons.setdefault(seen.fact.reason, []).append(seen.node)
    for reason, found in closed.items():
        yield _judged(job, reason, found, everywhere=len(found) == len(everywhere))
    for reason, nodes in reasons.items():
        yield unknown(f"the ranks' interpreter on {fold(nodes)}", reason)
    if everywhere and not closed and not reasons:
        yield passed(f"the ranks' interpreter on {len(everywhere)} nodes")


@dataclass(frozen=True, slots=True)
class _Closed:
    """A node on which the job context cannot be entered."""

    node: str
    detail: str
    provenance: str


def _judged(job: Job, reason: str, found: list[_Closed], *, everywhere: bool) -> Verdict:
    nodes = tuple(item.node for item in found)
    subject = f"the ranks' interpreter on {fold(nodes)}"
    if everywhere and not reason.startswith(_ABSENT):
        return unknown(subject, reason, required=_TOO_OLD not in reason)
    claims = tuple(
        claim
        for quantity in ("interpreter", "working_directory")
        for scope in scopes(job)
        for claim in deciding(job, quantity, scope)
    )
    detail = found[0].detail.strip().splitlines()
    others = "" if everywhere else ", but they can on the other nodes"
    remedy = "Install Python 3.8 or newer on {}, the version of the other nodes, or name another interpreter."
    if _TOO_OLD not in reason:
        remedy = "Make it work on {}: mount or install what is missing, or correct the name."
    return failed(
        subject,
        f"ranks cannot start on {fold(nodes)}{others}: {reason}",
        at=Evidence(
            "the job context", detail[-1] if detail else reason, "a Python that starts", found[0].provenance, nodes[0]
        ),
        also=tuple(dict.fromkeys(claims)),
        nodes=nodes,
        remedy=remedy.format(fold(nodes)),
    )
