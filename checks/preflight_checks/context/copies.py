"""Checks that every node has the same copy of the job's files, down to individual settings."""

from __future__ import annotations

import fnmatch
import posixpath
import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import InputFile, Job, is_whole_number
from preflight.model.recording import Facts, Fleet, Observed
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import (
    Split,
    has_launches,
    known_facts,
    missing_facts,
    on_every_node,
    only_if,
    requests_for,
    split,
    warning_check,
)
from preflight_checks.probes.copies import Copies, Copy, copies
from preflight_checks.probes.packages import installed
from preflight_checks.probes.start_cost import ReadCost, import_cost, read_cost
from preflight_checks.requirements import fold, known_int, nodes_share_machine, scopes, unreached_nodes

# Checks that ranks can start on every node (interpreter, directory, setup lines, container), and how long it takes.


#: The agent's messages when the interpreter or directory is missing and no setup line could have provided it.
_ABSENT = "the job context cannot be entered"
_TOO_OLD = "is older than Python 3.8"
#: The head's words about ranks in a container (`preflight.runner.preparation`).
_IN_CONTAINER, _OUTSIDE = "the ranks run in the container", "outside the container"


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
    """Return whether ranks exchange data with this package, or compute with it in lockstep."""
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in IN_STEP)


@requests_for(installed)
def plan_installed(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """Request the packages that the ranks' interpreter finds, from every node that was reached."""
    params = {"only": SHARED_PACKAGES} if len(fleet.nodes) > MAX_LISTED else {}
    for node in fleet.reached if job.launches else ():
        yield Request(probe_name(installed), node.name, params, context=True, deadline_s=8.0)


@check("CTX001", "ranks-cannot-start", plan=plan_installed, severity=Severity.ERROR)
@only_if(has_launches, "the ranks' interpreter", "the job starts no ranks")
def ranks_cannot_start(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks' interpreter can be started on every node, in their directory and after their setup lines.

    What it checks: each node runs the setup lines and starts the job's interpreter in the working directory, like a
    rank.

    Why it matters: the failing node logs the error only locally and exits; all others wait for that node.

    Example: /opt/conda is mounted on three nodes of four; python3 is 3.6 on an old node.

    Fix: install the interpreter there, mount the file system that contains it, or name another interpreter.

    Known limits: nothing is tried if the ranks' interpreter is unknown (no --python, no --trust-job). A container is
    not entered: the verdict is then incomplete, or with --python the host is examined, which is stated.
    A failure on all nodes, after setup lines or in a container, may not occur when the scheduler starts the job.
    """
    everywhere = list(facts.each(installed))
    silent = unreached_nodes(fleet)
    if silent:
        yield unknown(f"the ranks' interpreter on {fold(silent)}", "blocked by NOD001", nodes=silent)
    closed: dict[str, list[_EntryFailure]] = {}
    reasons: dict[str, list[str]] = {}
    for row in everywhere:
        if isinstance(row.fact, Observed):
            continue
        # Without a provenance the ranks' context is unknown; the node is not to blame.
        if row.fact.kind == "context" and row.provenance:
            closed.setdefault(row.fact.reason, []).append(_EntryFailure(row.node, row.fact.detail, row.provenance))
        else:
            reasons.setdefault(row.fact.reason, []).append(row.node)
    for reason, found in closed.items():
        yield _entry_finding(job, reason, found, everywhere=len(found) == len(everywhere))
    for reason, nodes in reasons.items():
        # The claims state where the ranks run, so that the host is not what must be examined.
        required = reason.startswith(_IN_CONTAINER)
        yield unknown(f"the ranks' interpreter on {fold(nodes)}", reason, nodes=nodes, required=required)
    outside = [row.node for row in everywhere if isinstance(row.fact, Observed) and _OUTSIDE in row.provenance]
    if outside:
        reason = "the interpreter of --python was examined on the host, but the job starts its ranks in a container"
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
    others = "" if everywhere else ", but on the other nodes they can"
    remedy = "On {}, install the Python version of the other nodes, 3.8 or newer, or name another interpreter."
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


@warning_check(
    "RMT005",
    "framework-comes-slowly",
    plan=on_every_node(read_cost, params={"packages": PACKAGES}, when=has_launches, context=True, deadline_s=6.0),
)
@only_if(has_launches, "start of the framework", "the job starts no ranks")
def framework_comes_slowly(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The framework's files load equally fast on all nodes, and fast enough to import it.

    What it checks: the time to read 120 modules and libraries of torch or paddle on each node, compared with the
    fleet's median and with 2.5 seconds.

    Why it matters: ranks import thousands of files at the same time. On a slow shared file system, this takes minutes
    and differs between nodes; the first ranks reach the rendezvous timeout.

    Example: a conda environment in a home directory on NFS.

    Fix: put the environment on the nodes' own disks, into a container image, or pack it into one file that is unpacked
    there.

    Known limits: cached files load fast now but slowly after a restart. A busy node is also slow, so this is only a
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
            f"start of the framework on {fold(busy)}", f"it was slow, but the node is busy (load {load:.1f} per core)"
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
    """Return the nodes that did not finish, and those far behind the median."""
    middle = statistics.median(value.took_s for value in observed.values())
    return {
        node: value
        for node, value in observed.items()
        if value.cut or (value.took_s > max(AT_LEAST_S, MUCH_SLOWER * middle) and len(observed) > 2)
    }


@warning_check(
    "RMT006",
    "framework-imports-slowly",
    plan=on_every_node(import_cost, params={"packages": PACKAGES}, when=has_launches, context=True, deadline_s=9.0),
    profile="pedantic",
)
@only_if(has_launches, "import of the framework", "the job starts no ranks")
def framework_imports_slowly(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Importing the framework works on every node, and takes about the same time.

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


#: Launchers that start the ranks of all nodes from one node: the others need the program, not the start script.
_STARTED_FROM_ONE = ("deepspeed", "mpirun", "horovodrun", "pdsh", "fabric", "srun", "ray")
#: Kinds of files that start ranks and may contain the name of their node.
_START_FILES = ("shell", "hostfile", "makefile", "dotenv", "requirements")
#: Settings that determine the number of samples and steps, and the layout of ranks.
_SIZES = re.compile(
    r"batch|accumulat|world.?size|nnodes|num.?nodes|nproc|gpus|num.?machines|num.?processes|parallel|"
    r"stage|seq.*len|max.?steps|train.?steps|epochs?$|num.?workers|trainers|servers|shards?$|slots",
    re.IGNORECASE,
)
#: A start script may contain these, and differ between nodes for that reason.
_PER_NODE_SETTINGS = re.compile(r"(node|machine|local|host)?_?-?(rank|id|index)$|port$", re.IGNORECASE)
_MICRO = (
    "train_micro_batch_size_per_gpu",
    "micro_batch_size",
    "per_device_train_batch_size",
    "--batch-size",
    "batch_size",
)
_ACCUMULATION = ("gradient_accumulation_steps", "accumulate_grad_batches", "--gradient-accumulation-steps")


#: If this many nodes have the same copy of a start file, it contains nothing specific to a node.
_MIN_AGREEING = 2


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file of the job.

    `on_all_nodes`: whether every node needs it, not only the launcher's. `starts_ranks`: whether it starts ranks, and
    so may contain its node's name. `read_on_each`: whether each node reads its own copy.
    """

    name: str
    places: tuple[str, ...]
    file: InputFile
    on_all_nodes: bool
    starts_ranks: bool
    read_on_each: bool


def _wanted_files(job: Job) -> tuple[_Wanted, ...]:
    if not job.launches:
        return ()
    programs = {launch.program for launch in job.launches}
    configs = {reference.target for reference in job.references if reference.role in ("config", "script")}
    folders = list(dict.fromkeys(posixpath.dirname(launch.span.path) for launch in job.launches))
    started_from_one = all(launch.launcher in _STARTED_FROM_ONE for launch in job.launches)
    by_ray = all("ray" in (launch.launcher, *launch.wrappers) for launch in job.launches)
    wanted_files: list[_Wanted] = []
    for file in job.files:
        tried = [posixpath.relpath(file.path, folder or ".") for folder in folders]
        places = tuple(dict.fromkeys(p for p in (*tried, file.path) if not p.startswith(("..", "/"))))
        starts_ranks = file.kind in _START_FILES
        needed = file.path in programs or (file.path in configs and not starts_ranks)
        # Ray ships the working directory itself.
        on_all_nodes = not by_ray and (needed or (not starts_ranks and not started_from_one))
        read = not by_ray and not (starts_ranks and started_from_one)
        wanted_files.append(_Wanted(places[0], places, file, on_all_nodes, starts_ranks, read))
    return tuple(wanted_files)


@requests_for(copies)
def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    wanted = _wanted_files(job)
    if wanted and len(fleet.nodes) > 1 and not nodes_share_machine(fleet):
        files = [(item.name, item.places) for item in wanted]
        # With thousands of nodes, lists of code files would dominate the recording.
        params = {"files": files, "whole": True} if len(fleet.nodes) > MAX_LISTED else {"files": files}
        for node in fleet.reached:
            yield Request(probe_name(copies), node.name, params, context=True)


def _copies_by_node(item: _Wanted, observed: Mapping[str, Copies]) -> dict[str, Copy]:
    return {node: copy for node, value in observed.items() for copy in value.copies if copy.name == item.name}


def _incomparable_verdicts(job: Job, fleet: Fleet, facts: Facts, subject: str) -> Iterator[Verdict]:
    """Yield the verdicts that replace the comparison if there is nothing to compare."""
    if len(fleet.nodes) < 2 or not _wanted_files(job) or nodes_share_machine(fleet):
        yield not_applicable(subject, "the job has one node, starts no ranks, or runs on one machine")
        return
    blind = tuple(missing_facts(facts, copies, subject))
    yield from blind
    observed = facts.observed(copies)
    if not observed and not blind:
        yield unknown(subject, "no node compared its copies of the files")
    elif observed and not any(copy.path for value in observed.values() for copy in value.copies):
        directory = next(iter(observed.values())).directory
        yield unknown(
            subject,
            f"no node has any of the job's files in {directory}; pass the correct directory with --directory",
            required=False,
        )


def _comparable(facts: Facts) -> dict[str, Copies]:
    observed = facts.observed(copies)
    return observed if len(observed) > 1 and any(c.path for value in observed.values() for c in value.copies) else {}


def differing_settings(item: Mapping[str, Copy], *, starts_ranks: bool) -> dict[str, Split[str]]:
    """Return the named values that differ between the nodes' copies, each with the nodes by value."""
    readable = {node: copy for node, copy in item.items() if copy.sha256}
    if len({copy.sha256 for copy in readable.values()}) < 2:
        return {}
    found: dict[str, Split[str]] = {}
    for name in sorted({name for copy in readable.values() for name in copy.numbers}):
        if starts_ranks and _PER_NODE_SETTINGS.search(name):
            continue
        divided = split({node: copy.numbers.get(name, "not set") for node, copy in readable.items()})
        if divided is not None and divided.odd:
            found[name] = divided
    return found


@check("BAT030", "sizes-differ-between-nodes", plan=_plan, severity=Severity.ERROR)
def sizes_differ_between_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Batch sizes, world sizes and the like are the same in every node's copy of the job's files.

    What it checks: the numbers in each node's copy of the configuration, start script and training script; a finding
    shows both values and the samples per step that follow from them.

    Why it matters: ranks with a different batch size run a different number of steps, and the last collective waits
    forever; ranks with a different world size never connect, or divide the data differently.

    Example: `train_micro_batch_size_per_gpu` is 8 in ds_config.json on node3 and 4 on the others.

    Fix: copy the file to the differing node again, or keep it on a shared file system.

    Known limits: numbers are compared by name; values that a program computes are not. Start scripts may differ in
    ranks and ports.
    """
    yield from _incomparable_verdicts(job, fleet, facts, "sizes")
    observed = _comparable(facts)
    odd = list(_odd_sizes(job, observed))
    for item, sizes in odd:
        yield _sizes_finding(job, item, _copies_by_node(item, observed), sizes)
    if observed and not odd:
        yield passed(f"file sizes on {len(observed)} nodes")


def odd_sizes(job: Job, facts: Facts) -> Iterator[tuple[str, str, Split[str]]]:
    """Yield each size that differs between the nodes' copies of the job's files: file, setting and values."""
    for item, sizes in _odd_sizes(job, _comparable(facts)):
        for name, who in sizes.items():
            yield item.name, name, who


def _odd_sizes(job: Job, observed: Mapping[str, Copies]) -> Iterator[tuple[_Wanted, dict[str, Split[str]]]]:
    for item in _wanted_files(job):
        settings = differing_settings(_copies_by_node(item, observed), starts_ranks=item.starts_ranks)
        sizes = {name: who for name, who in settings.items() if _SIZES.search(name.rpartition(".")[2])}
        if sizes and item.read_on_each:
            yield item, sizes


def _sizes_finding(job: Job, item: _Wanted, copies: Mapping[str, Copy], sizes: Mapping[str, Split[str]]) -> Verdict:
    nodes = tuple(dict.fromkeys(node for who in sizes.values() for node in who.odd))
    name, who = next(iter(sizes.items()))
    node, value = who.first_odd
    return failed(
        f"{item.name} on {fold(nodes)}",
        f"{item.name} is not the same on every node: "
        + "; ".join(f"{name} is {who.description}" for name, who in list(sizes.items())[:4])
        + _products_text(job, copies, nodes, who.agreeing),
        at=Evidence(
            "the node's copy", f"{name}: {value}", f"{name}: {who.common}", f"sha256sum {copies[node].path}", node
        ),
        also=[launch for launch in job.launches if launch.program == item.file.path][:1],
        nodes=nodes,
        remedy=f"Copy {item.name} to {fold(nodes)} again (from {who.agreeing[0]}), or keep it on a shared file system.",
    )


def _products_text(job: Job, copies: Mapping[str, Copy], nodes: tuple[str, ...], agreeing: tuple[str, ...]) -> str:
    """Return the samples per step in both groups of copies; empty if one of its factors is unknown."""
    worlds = [value for scope in scopes(job) if (value := known_int(job, "world_size", scope)) is not None]
    sides = [(node, _product(copies[node].numbers)) for node in (nodes[0], agreeing[0]) if node in copies]
    if not worlds or len(sides) < 2 or sides[0][1] is None or sides[1][1] is None:
        return ""
    (one, (a, b)), (other, (c, d)) = ((node, value) for node, value in sides if value is not None)
    if a * b == c * d:
        return ""
    world = worlds[0]
    return (
        f". With {world} ranks, {one} counts {a} x {b} x {world} = {a * b * world} samples per step, {other} {c} x "
        f"{d} x {world} = {c * d * world}"
    )


def _product(numbers: Mapping[str, str]) -> tuple[int, int] | None:
    micro = next((numbers[name] for name in _MICRO if name in numbers), "")
    accumulation = next((numbers[name] for name in _ACCUMULATION if name in numbers), "1")
    return (int(micro), int(accumulation)) if is_whole_number(micro) and is_whole_number(accumulation) else None


@check("CPY001", "job-files-differ", plan=_plan, severity=Severity.ERROR)
def job_files_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The training script and its configuration exist on every node and are identical.

    What it checks: the SHA-256 of the job's own files in the ranks' working directory on each node, compared between
    nodes and with the files that were linted.

    Why it matters: a node with a stale copy runs a different program: the others hang in a collective that it does not
    call, or it silently trains something else.

    Example: train.py was changed on node1 and copied to all nodes but node3.

    Fix: copy the files again, or keep them on a shared file system.

    Known limits: the working directory must be known (--directory, or the job with --trust-job). BAT030 reports
    differing sizes. Start scripts and host files are compared with the linted ones on the first node; a shell file that
    differs on a few nodes, or is missing there, is a warning.
    """
    yield from _incomparable_verdicts(job, fleet, facts, "the job's files")
    observed = _comparable(facts)
    wrong = False
    for item in _wanted_files(job):
        for verdict in _judge_file(job, fleet, item, _copies_by_node(item, observed)):
            wrong = True
            yield verdict
    if observed and not wrong:
        yield passed(f"the job's files on {len(observed)} nodes")


def _judge_file(job: Job, fleet: Fleet, item: _Wanted, copies: Mapping[str, Copy]) -> Iterator[Verdict]:
    existing = {node: copy for node, copy in copies.items() if copy.sha256}
    if not existing:
        return
    absent = {node: copy for node, copy in copies.items() if node not in existing}
    if absent and item.on_all_nodes:
        yield _missing_file_finding(job, item, absent, existing)
    digests = split({node: copy.sha256 for node, copy in existing.items()})
    assert digests is not None
    if digests.odd and not item.starts_ranks and not item.read_on_each:
        return
    if digests.odd and not item.starts_ranks:
        if not any(_SIZES.search(name.rpartition(".")[2]) for name in differing_settings(copies, starts_ranks=False)):
            yield _difference_finding(job, item, copies, digests)
    elif not digests.odd or item.starts_ranks:
        yield from _stale_start_file(job, fleet, item, copies, digests)
        node = fleet.nodes[0].name if item.starts_ranks else next(iter(existing))
        if node in existing and item.file.sha256 and existing[node].sha256 != item.file.sha256:
            yield _linted_difference_finding(item, node, existing[node], len(existing))


def _stale_start_file(
    job: Job, fleet: Fleet, item: _Wanted, copies: Mapping[str, Copy], digests: Split[str]
) -> Iterator[Verdict]:
    """Yield a finding for a shell file that each node runs and that is missing or different on a few nodes."""
    first = fleet.nodes[0].name
    if not item.starts_ranks or not item.read_on_each or item.file.kind != "shell" or first not in digests.agreeing:
        return
    if len(digests.agreeing) < _MIN_AGREEING or 2 * len(digests.agreeing) <= len(copies):
        return
    absent = {node: copy for node, copy in copies.items() if not copy.sha256}
    if absent:
        existing = {node: copies[node] for node in digests.agreeing}
        yield _as_warning(_missing_file_finding(job, item, absent, existing))
    sizes = differing_settings(copies, starts_ranks=True)
    if digests.odd and not any(_SIZES.search(name.rpartition(".")[2]) for name in sizes):
        yield _as_warning(_difference_finding(job, item, copies, digests))


def _as_warning(finding: Verdict) -> Verdict:
    """Return the finding as a warning, because a difference in a start file may not matter."""
    return replace(finding, severity=Severity.WARNING, confidence=Confidence.MEDIUM)


def _missing_file_finding(job: Job, item: _Wanted, absent: Mapping[str, Copy], existing: Mapping[str, Copy]) -> Verdict:
    node, copy = next(iter(absent.items()))
    place = next(iter(existing.values())).path
    reason = "is missing" if copy.problem == "missing" else f"cannot be read ({copy.problem})"
    return failed(
        f"{item.name} on {fold(absent)}",
        f"{item.name} {reason} on {fold(absent)}, but is at {place} on {fold(existing, 4)}",
        at=Evidence("the node's copy", copy.problem, place, f"ls -l {place}", node),
        also=[launch for launch in job.launches if launch.program == item.file.path][:1],
        nodes=tuple(absent),
        remedy=f"Copy {item.name} to {place} on {fold(absent)}, or mount the directory there.",
    )


def _difference_finding(job: Job, item: _Wanted, copies: Mapping[str, Copy], digests: Split[str]) -> Verdict:
    node, _ = digests.first_odd
    settings = differing_settings(copies, starts_ranks=False)
    what = "; ".join(f"{name} is {who.description}" for name, who in list(settings.items())[:4])
    mine, theirs = copies[node], copies[digests.agreeing[0]]
    sizes = f"{mine.size_bytes} bytes on {node}, {theirs.size_bytes} on {digests.agreeing[0]}"
    return failed(
        f"{item.name} on {fold(digests.odd)}",
        f"{item.name} on {fold(digests.odd)} differs from the copy on {fold(digests.agreeing, 4)}: {what or sizes}",
        at=Evidence("the node's copy", mine.sha256[:12], theirs.sha256[:12], f"sha256sum {mine.path}", node),
        also=[launch for launch in job.launches if launch.program == item.file.path][:1],
        nodes=tuple(digests.odd),
        remedy=f"Copy {item.name} from {digests.agreeing[0]} to {fold(digests.odd)} again.",
    )


def _linted_difference_finding(item: _Wanted, node: str, copy: Copy, count: int) -> Verdict:
    where = node if item.starts_ranks or count == 1 else f"all {count} nodes"
    return failed(
        f"{item.name}: linted",
        f"{item.name} on {where} differs from the file that was linted on this machine ({item.file.path})",
        at=Evidence("the node's copy", copy.sha256[:12], item.file.sha256[:12], f"sha256sum {copy.path}", node),
        remedy=f"Copy {item.file.path} to the nodes, or lint the file that they have.",
        severity=Severity.WARNING,
    )


@warning_check("CPY002", "code-differs", plan=_plan)
def code_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The code next to the training script is the same on every node.

    What it checks: hashes of the source files in the ranks' working directory and its subfolders, and the checked-out
    commit.

    Why it matters: a module that the training script imports matters as much as the script itself, but a stale copy on
    one node is the last thing anyone suspects.

    Example: model/attention.py on node3 is last week's version.

    Fix: synchronize the working directory.

    Known limits: at most 1500 files; hidden folders, installed packages and program output are skipped. A home
    directory is not searched.
    """
    yield from _incomparable_verdicts(job, fleet, facts, "code")
    observed = _comparable(facts)
    if not observed:
        return
    cut = {node: value.cut for node, value in observed.items() if value.cut}
    for reason in dict.fromkeys(cut.values()):
        yield unknown(f"code on {fold(node for node, why in cut.items() if why == reason)}", reason)
    walked = {node: value for node, value in observed.items() if value.code_hash}
    # CPY001 compares the files of the job itself.
    named = {item.name for item in _wanted_files(job)}
    commits = split({node: value.commit[:12] for node, value in walked.items() if value.commit})
    same_code = len({value.code_hash for value in walked.values()}) < 2
    listed = {n: {k: v for k, v in c.code.items() if k not in named} for n, c in walked.items() if not same_code}
    if same_code:
        odd, agreeing = dict[str, tuple[tuple[str, str], ...]](), tuple(walked)
    elif all(value.code or not value.code_files for value in walked.values()):
        hashes = split({node: tuple(sorted(files.items())) for node, files in listed.items()})
        odd, agreeing = (hashes.odd, hashes.agreeing) if hashes is not None else ({}, ())
    else:
        whole = split({node: value.code_hash for node, value in walked.items()})
        odd, agreeing = (dict.fromkeys(whole.odd, ()), whole.agreeing) if whole is not None else ({}, ())
    if odd:
        node = next(iter(odd))
        mine, theirs = listed[node], listed[agreeing[0]]
        files = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
        directory = walked[node].directory
        yield failed(
            f"code on {fold(odd)}",
            f"the code under {directory} on {fold(odd)} differs from that on {fold(agreeing, 4)}"
            + (f": {fold(files, 6)}" if files else f" ({walked[node].code_files} files)"),
            at=Evidence("code", walked[node].code_hash, walked[agreeing[0]].code_hash, f"ls -lR {directory}", node),
            nodes=tuple(odd),
            remedy=f"Synchronize {directory} on {fold(odd)} with {agreeing[0]}.",
        )
    elif commits is not None and commits.odd:
        node, commit = commits.first_odd
        directory = walked[node].directory
        yield failed(
            f"commit on {fold(commits.odd)}",
            f"different commits are checked out in {directory}: {commits.description}",
            at=Evidence("code", commit, commits.common, f"git -C {directory} log -1", node),
            nodes=tuple(commits.odd),
            remedy=f"Check out {commits.common} on {fold(commits.odd)}.",
            severity=Severity.INFO,
        )
    elif walked:
        yield passed(f"code on {len(walked)} nodes")
