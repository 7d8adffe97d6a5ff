"""Checks that ranks can start on every node (interpreter, directory, setup lines, container), and how long it takes."""

from __future__ import annotations

import fnmatch
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, passed, unknown
from preflight_checks.plans import has_launches, known_facts, on_every_node, only_if, requests_for
from preflight_checks.probes.installed import installed
from preflight_checks.probes.start_cost import ReadCost, import_cost, read_cost
from preflight_checks.requirements import fold, scopes, unreached

#: The agent's messages when the interpreter or directory is missing and no setup line could have provided it.
_ABSENT = "the job context cannot be entered"
_TOO_OLD = "is older than Python 3.8"
#: The head's words about ranks in a container (`preflight.runner.preparation`).
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


@requests_for(installed)
def plan_installed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request the packages that the ranks' interpreter finds, from every node that was reached."""
    params = {"only": SHARED_PACKAGES} if len(fleet.nodes) > MAX_LISTED else {}
    for node in fleet.reached if job.launches else ():
        yield Request(probe_name(installed), node.name, params, context=True, deadline_s=8.0)


@check(
    "CTX001",
    "ranks-cannot-start",
    plan=plan_installed,
    cost="starts the ranks' interpreter once and lists its package folders; a tenth of a second",
    severity=Severity.ERROR,
)
@only_if(has_launches, "the ranks' interpreter", "the job starts no ranks")
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
        for claim in job.value_claims(quantity, scope)
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


#: The frameworks that ranks import, in search order.
PACKAGES = ("torch", "paddle", "tensorflow", "mxnet", "jax")
#: A node is slow if it exceeds the fleet's median by this factor and by this much in absolute terms.
MUCH_SLOWER, AT_LEAST_S = 5.0, 1.0
#: With a higher load per core than this, the disk cannot be judged.
BUSY = 1.5
#: An import that takes longer than this keeps ranks past the timeouts of rendezvous when hundreds of them start.
LONG_IMPORT_S = 30.0


@check(
    "RMT005",
    "framework-comes-slowly",
    plan=on_every_node(read_cost, params={"packages": PACKAGES}, when=has_launches, context=True, deadline_s=6.0),
    cost="reads 120 files and at most 8 MiB of the framework's own, hundredths of a second, 2.5 seconds at most",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
)
@only_if(has_launches, "start of the framework", "the job starts no ranks")
def framework_comes_slowly(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The framework's files load equally fast on all nodes, and fast enough to import it.

    What it checks: the time to read 120 modules and libraries of torch or paddle on each node, compared with the
    fleet's median and with 2.5 seconds.

    Why it matters: ranks import thousands of files at once. From a slow shared file system that takes minutes, and
    differs from node to node; the first ones run into the timeout of the rendezvous.

    Example: a conda environment in a home directory on NFS.

    Fix: put the environment on the nodes' own disks, into a container image, or pack it into one file that is unpacked
    there.

    Known limits: cached files load fast now and slowly after a restart. A busy node is slow, too, so this is only a
    warning.
    """
    observed = yield from known_facts(facts, read_cost, "start of the framework")
    if not observed:
        return
    slow = _slow_nodes(observed)
    busy = {node: value for node, value in slow.items() if (value.load_per_core or 0.0) > BUSY}
    slow = {node: value for node, value in slow.items() if node not in busy}
    if busy:
        load = max(value.load_per_core or 0.0 for value in busy.values())
        yield unknown(
            f"start of the framework on {fold(busy)}", f"it was slow, but the node is busy (load {load:.1f} a core)"
        )
    if not slow and len(busy) < len(observed):
        yield passed(f"start of the framework on {len(observed) - len(busy)} nodes")
    if not slow:
        return
    node, value = max(slow.items(), key=lambda item: item[1].took_s)
    middle = statistics.median(value.took_s for value in observed.values())
    how = f"more than {value.took_s:.1f} s" if value.cut else f"{value.took_s:.1f} s"
    everywhere = len(slow) == len(observed)
    yield failed(
        f"{value.package} on {fold(slow)}",
        f"reading {value.files} files of {value.package} from {value.folder} takes {how} on {node}"
        + (" on every node" if everywhere and len(observed) > 1 else "")
        + (f"; half of the nodes need less than {middle:.2f} s" if not everywhere else ""),
        at=Evidence(
            "start of the framework",
            how,
            f"about {min(middle, AT_LEAST_S):.2f} s",
            f"time cat {value.folder}/*.py",
            node,
        ),
        nodes=tuple(slow),
        remedy=f"Move the ranks' environment to a local disk of {fold(slow)}, or into a container image.",
    )


def _slow_nodes(observed: Mapping[str, ReadCost]) -> dict[str, ReadCost]:
    """The nodes that did not finish, and those far behind the median."""
    middle = statistics.median(value.took_s for value in observed.values())
    return {
        node: value
        for node, value in observed.items()
        if value.cut or (value.took_s > max(AT_LEAST_S, MUCH_SLOWER * middle) and len(observed) > 2)
    }


@check(
    "RMT006",
    "framework-imports-slowly",
    plan=on_every_node(import_cost, params={"packages": PACKAGES}, when=has_launches, context=True, deadline_s=9.0),
    cost="imports the framework once on each node: seconds of CPU time",
    profile="pedantic",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
)
@only_if(has_launches, "import of the framework", "the job starts no ranks")
def framework_imports_slowly(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Importing the framework works on every node, and takes about equally long.

    What it checks: `import torch` (or paddle ...) in the ranks' context, once on each node.

    Why it matters: as for RMT005, and imports also fail or hang on missing libraries and on devices that do not
    respond.

    Example: 40 seconds on the node whose environment was moved to NFS, 3 on the others.

    Fix: put the environment on the nodes' own disks, or in a container image.

    Known limits: takes seconds of CPU time on each node, so it runs only in the `pedantic` profile.
    """
    observed = yield from known_facts(facts, import_cost, "import of the framework")
    if not observed:
        return
    middle = statistics.median(value.took_s for value in observed.values())
    bound = max(MUCH_SLOWER * middle, 3.0) if len(observed) > 2 else LONG_IMPORT_S
    slow = {node: value for node, value in observed.items() if value.took_s > min(bound, LONG_IMPORT_S)}
    if not slow:
        yield passed(f"import of the framework on {len(observed)} nodes")
        return
    node, value = max(slow.items(), key=lambda item: item[1].took_s)
    yield failed(
        f"import of {value.package} on {fold(slow)}",
        f"`import {value.package}` takes {value.took_s:.1f} s on {node}; the median is {middle:.1f} s",
        at=Evidence(
            "import",
            f"{value.took_s:.1f} s",
            f"{middle:.1f} s",
            f"python -X importtime -c 'import {value.package}'",
            node,
        ),
        nodes=tuple(slow),
        remedy=f"Move the ranks' environment to a local disk of {fold(slow)}, or into a container image.",
    )
