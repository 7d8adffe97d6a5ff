"""Whether every node has the same copy of the job's files, and in which setting it has not."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping

from preflight.job import InputFile, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request, probe_name
from preflight_checks.context.context import MOST_LISTED
from preflight_checks.demands import fold, known_int, scopes, stand_ins, unseen
from preflight_checks.majority import Split, split
from preflight_checks.probes.copies import Copies, Copy, copies

_COST = "reads the job's own files and the code beside them in the working directory, at most 2 seconds"
#: Who starts ranks on all nodes from one: the others need the program and what it reads, not the start script.
_FROM_ONE_NODE = ("deepspeed", "mpirun", "horovodrun", "pdsh", "fabric", "srun", "ray")
#: Kinds of files that start ranks and may name the node they lie on.
_STARTING = ("shell", "hostfile", "makefile", "dotenv", "requirements")
#: Settings that decide how many samples and steps there are, and how ranks are laid out.
_SIZES = lazy_pattern(
    r"batch|accumulat|world.?size|nnodes|num.?nodes|nproc|gpus|num.?machines|num.?processes|parallel|"
    r"stage|seq.*len|max.?steps|train.?steps|epochs?$|num.?workers|trainers|servers|shards?$|slots",
    re.IGNORECASE,
)
#: A start script may rightly hold these, and be another one on each node.
_OF_THE_NODE = lazy_pattern(r"(node|machine|local|host)?_?-?(rank|id|index)$|port$", re.IGNORECASE)
_MICRO = (
    "train_micro_batch_size_per_gpu",
    "micro_batch_size",
    "per_device_train_batch_size",
    "--batch-size",
    "batch_size",
)
_ACCUMULATION = ("gradient_accumulation_steps", "accumulate_grad_batches", "--gradient-accumulation-steps")


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A file of the job.

    `everywhere`: every node needs it; else it may lie where the launcher is started alone. `starting`: it starts ranks,
    and may name its node. `read_on_each`: what another node's copy says counts.
    """

    name: str
    places: tuple[str, ...]
    file: InputFile
    everywhere: bool
    starting: bool
    read_on_each: bool


def _wanted(job: Job) -> tuple[_Wanted, ...]:
    if not job.launches:
        return ()
    programs = {launch.program for launch in job.launches}
    configs = {reference.target for reference in job.references if reference.role in ("config", "script")}
    folders = list(dict.fromkeys(posixpath.dirname(launch.span.path) for launch in job.launches))
    from_one = all(launch.launcher in _FROM_ONE_NODE for launch in job.launches)
    by_ray = all("ray" in (launch.launcher, *launch.wrappers) for launch in job.launches)
    found: list[_Wanted] = []
    for file in job.files:
        tried = [posixpath.relpath(file.path, folder or ".") for folder in folders]
        places = tuple(dict.fromkeys(p for p in (*tried, file.path) if not p.startswith(("..", "/"))))
        starting = file.kind in _STARTING
        needed = file.path in programs or (file.path in configs and not starting)
        # Ray takes the working directory along itself.
        everywhere = not by_ray and (needed or (not starting and not from_one))
        read = not by_ray and not (starting and from_one)
        found.append(_Wanted(places[0], places, file, everywhere, starting, read))
    return tuple(found)


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    wanted = _wanted(job)
    if wanted and len(fleet.nodes) > 1 and not stand_ins(fleet):
        files = [(item.name, item.places) for item in wanted]
        # Of thousands of nodes, lists of their code would be all that a recording holds.
        params = {"files": files, "whole": True} if len(fleet.nodes) > MOST_LISTED else {"files": files}
        for node in fleet.reached:
            yield Request(probe_name(copies), node.name, params, context=True)


def _by_file(item: _Wanted, have: Mapping[str, Copies]) -> dict[str, Copy]:
    return {node: copy for node, value in have.items() for copy in value.copies if copy.name == item.name}


def _preamble(job: Job, fleet: Fleet, facts: Facts, what: str) -> Iterator[Verdict]:
    """Why there is nothing to compare, where there is not."""
    if len(fleet.nodes) < 2 or not _wanted(job) or stand_ins(fleet):
        yield not_applicable(what, "the job has one node, or starts no ranks, or its nodes are one machine")
        return
    blind = tuple(unseen(facts, copies, what))
    yield from blind
    have = facts.observed(copies)
    if not have and not blind:
        yield unknown(what, "no node looked at its copies")
    elif have and not any(copy.path for value in have.values() for copy in value.copies):
        directory = next(iter(have.values())).directory
        yield unknown(
            what, f"none of the job's files lies in {directory} on any node; say where with --directory", required=False
        )


def _comparable(facts: Facts) -> dict[str, Copies]:
    have = facts.observed(copies)
    return have if len(have) > 1 and any(c.path for value in have.values() for c in value.copies) else {}


def differing_settings(item: Mapping[str, Copy], *, starting: bool) -> dict[str, Split[str]]:
    """The named values in which the copies differ, with who has what."""
    readable = {node: copy for node, copy in item.items() if copy.sha256}
    if len({copy.sha256 for copy in readable.values()}) < 2:
        return {}
    found: dict[str, Split[str]] = {}
    for name in sorted({name for copy in readable.values() for name in copy.numbers}):
        if starting and _OF_THE_NODE.search(name):
            continue
        divided = split({node: copy.numbers.get(name, "not set") for node, copy in readable.items()})
        if divided is not None and divided.odd:
            found[name] = divided
    return found


@check(
    "BAT030",
    "sizes-differ-between-nodes",
    plan=_plan,
    probes=(copies,),
    cost=_COST,
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#6914", "huggingface/accelerate#2818", "Lightning-AI/pytorch-lightning#13498"),
)
def sizes_differ_between_nodes(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Batch sizes, world sizes and the like are the same in every node's own copy of the job's files.

    What it checks: the numbers that each node's copy of the configuration, start script and training script names;
    where a size differs, both sides and the samples of a step that follow from them.

    Why it matters: ranks with another batch size run another number of steps, and the last collective waits for ever;
    ranks with another world size never meet, or divide the data differently.

    Example: `train_micro_batch_size_per_gpu` is 8 in ds_config.json on node3 and 4 on the others.

    Fix: copy the file to the odd node again, or keep it on a shared file system.

    Known limits: numbers are compared by the name they stand under; what a program computes is not. Start scripts may
    differ in ranks and ports.

    Evidence: deepspeedai/DeepSpeed#6914, huggingface/accelerate#2818, Lightning-AI/pytorch-lightning#13498.
    """
    yield from _preamble(job, fleet, facts, "sizes")
    have = _comparable(facts)
    odd = list(_odd_sizes(job, have))
    for item, sizes in odd:
        yield _sizes_finding(job, item, _by_file(item, have), sizes)
    if have and not odd:
        yield passed(f"sizes on {len(have)} nodes")


def odd_sizes(job: Job, facts: Facts) -> Iterator[tuple[str, str, Split[str]]]:
    """File, name and values of each size in which the nodes' own copies of the job's files differ."""
    for item, sizes in _odd_sizes(job, _comparable(facts)):
        for name, who in sizes.items():
            yield item.name, name, who


def _odd_sizes(job: Job, have: Mapping[str, Copies]) -> Iterator[tuple[_Wanted, dict[str, Split[str]]]]:
    for item in _wanted(job):
        settings = differing_settings(_by_file(item, have), starting=item.starting)
        sizes = {name: who for name, who in settings.items() if _SIZES.search(name.rpartition(".")[2])}
        if sizes and item.read_on_each:
            yield item, sizes


def _sizes_finding(job: Job, item: _Wanted, held: Mapping[str, Copy], sizes: Mapping[str, Split[str]]) -> Verdict:
    nodes = tuple(dict.fromkeys(node for who in sizes.values() for node in who.odd))
    name, who = next(iter(sizes.items()))
    node, value = who.first_odd
    return failed(
        f"{item.name} on {fold(nodes)}",
        f"{item.name} is not the same on every node: "
        + "; ".join(f"{name} is {who.spoken}" for name, who in list(sizes.items())[:4])
        + _products(job, held, nodes, who.agreeing),
        at=Evidence(
            "the node's own copy", f"{name}: {value}", f"{name}: {who.common}", f"sha256sum {held[node].path}", node
        ),
        also=[launch for launch in job.launches if launch.program == item.file.path][:1],
        nodes=nodes,
        remedy=f"Copy {item.name} to {fold(nodes)} again (from {who.agreeing[0]}), or keep it on a shared file system.",
    )


def _products(job: Job, held: Mapping[str, Copy], odd: tuple[str, ...], agreeing: tuple[str, ...]) -> str:
    """What a step comes to on either side, where micro batch, accumulation and world size are all known."""
    worlds = [value for scope in scopes(job) if (value := known_int(job, "world_size", scope)) is not None]
    sides = [(node, _product(held[node].numbers)) for node in (odd[0], agreeing[0]) if node in held]
    if not worlds or len(sides) < 2 or sides[0][1] is None or sides[1][1] is None:
        return ""
    (one, (a, b)), (other, (c, d)) = ((node, value) for node, value in sides if value is not None)
    if a * b == c * d:
        return ""
    world = worlds[0]
    return (
        f". With {world} ranks {one} counts {a} x {b} x {world} = {a * b * world} samples a step, "
        f"{other} {c} x {d} x {world} = {c * d * world}"
    )


def _product(numbers: Mapping[str, str]) -> tuple[int, int] | None:
    micro = next((numbers[name] for name in _MICRO if name in numbers), "")
    accumulation = next((numbers[name] for name in _ACCUMULATION if name in numbers), "1")
    return (int(micro), int(accumulation)) if micro.isdigit() and accumulation.isdigit() else None


@check(
    "CPY001",
    "job-files-differ",
    plan=_plan,
    probes=(copies,),
    cost=_COST,
    severity=Severity.ERROR,
    evidence=("deepspeedai/DeepSpeed#1603", "deepspeedai/DeepSpeed#4370", "NVIDIA/Megatron-LM#35"),
)
def job_files_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The training script and its configuration are there on every node, and the same.

    What it checks: on each node the job's own files in the ranks' working directory, by their SHA-256, against each
    other and against the files that were linted.

    Why it matters: a node with a stale copy runs another program: it hangs the others in a collective that it does not
    have, or trains something else without a word.

    Example: train.py was changed on node1 and copied to all nodes but node3.

    Fix: copy the files again, or keep them on a shared file system.

    Known limits: the working directory has to be known (--directory, or the job with --trust-job). Sizes that differ
    are BAT030's. Start scripts and host files are compared with what was linted, on the first node alone.

    Evidence: deepspeedai/DeepSpeed#1603, deepspeedai/DeepSpeed#4370, NVIDIA/Megatron-LM#35.
    """
    yield from _preamble(job, fleet, facts, "the job's files")
    have = _comparable(facts)
    wrong = False
    for item in _wanted(job):
        for verdict in _judge_file(job, fleet, item, _by_file(item, have)):
            wrong = True
            yield verdict
    if have and not wrong:
        yield passed(f"the job's files on {len(have)} nodes")


def _judge_file(job: Job, fleet: Fleet, item: _Wanted, held: Mapping[str, Copy]) -> Iterator[Verdict]:
    there = {node: copy for node, copy in held.items() if copy.sha256}
    if not there:
        return
    absent = {node: copy for node, copy in held.items() if node not in there}
    if absent and item.everywhere:
        yield _absent(job, item, absent, there)
    digests = split({node: copy.sha256 for node, copy in there.items()})
    assert digests is not None
    if digests.odd and not item.starting and not item.read_on_each:
        return
    if digests.odd and not item.starting:
        if not any(_SIZES.search(name.rpartition(".")[2]) for name in differing_settings(held, starting=False)):
            yield _different(job, item, held, digests)
    elif not digests.odd or item.starting:
        node = fleet.nodes[0].name if item.starting else next(iter(there))
        if node in there and item.file.sha256 and there[node].sha256 != item.file.sha256:
            yield _not_the_linted(item, node, there[node], len(there))


def _absent(job: Job, item: _Wanted, absent: Mapping[str, Copy], there: Mapping[str, Copy]) -> Verdict:
    node, copy = next(iter(absent.items()))
    place = next(iter(there.values())).path
    why = "is missing" if copy.problem == "missing" else f"cannot be read ({copy.problem})"
    return failed(
        f"{item.name} on {fold(absent)}",
        f"{item.name} {why} on {fold(absent)}, and is at {place} on {fold(there, 4)}",
        at=Evidence("the node's own copy", copy.problem, place, f"ls -l {place}", node),
        also=[launch for launch in job.launches if launch.program == item.file.path][:1],
        nodes=tuple(absent),
        remedy=f"Copy {item.name} to {place} on {fold(absent)}, or mount the directory there.",
    )


def _different(job: Job, item: _Wanted, held: Mapping[str, Copy], digests: Split[str]) -> Verdict:
    node, _ = digests.first_odd
    settings = differing_settings(held, starting=False)
    what = "; ".join(f"{name} is {who.spoken}" for name, who in list(settings.items())[:4])
    mine, theirs = held[node], held[digests.agreeing[0]]
    sizes = f"{mine.size_bytes} bytes on {node}, {theirs.size_bytes} on {digests.agreeing[0]}"
    return failed(
        f"{item.name} on {fold(digests.odd)}",
        f"{item.name} on {fold(digests.odd)} is another one than on {fold(digests.agreeing, 4)}: {what or sizes}",
        at=Evidence("the node's own copy", mine.sha256[:12], theirs.sha256[:12], f"sha256sum {mine.path}", node),
        also=[launch for launch in job.launches if launch.program == item.file.path][:1],
        nodes=tuple(digests.odd),
        remedy=f"Copy {item.name} from {digests.agreeing[0]} to {fold(digests.odd)} again.",
    )


def _not_the_linted(item: _Wanted, node: str, copy: Copy, count: int) -> Verdict:
    where = node if item.starting or count == 1 else f"all {count} nodes"
    return failed(
        f"{item.name}: linted",
        f"{item.name} on {where} is not the file that was linted here ({item.file.path})",
        at=Evidence("the node's own copy", copy.sha256[:12], item.file.sha256[:12], f"sha256sum {copy.path}", node),
        nodes=(node,),
        remedy=f"Copy {item.file.path} to the nodes, or lint the file that they have.",
        severity=Severity.WARNING,
    )


@check(
    "CPY002",
    "code-differs",
    plan=_plan,
    probes=(copies,),
    cost=_COST,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("deepspeedai/DeepSpeed#4370", "NVIDIA/nccl#1328"),
)
def code_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The code beside the training script is the same on every node.

    What it checks: hashes of the source files below the ranks' working directory, and the commit that is checked out.

    Why it matters: a module that the training script imports decides as much as the script itself, and a stale one on
    one node is found last.

    Example: model/attention.py on node3 is the one of last week.

    Fix: synchronise the working directory.

    Known limits: at most 1500 files; hidden folders, installed packages and what programs write are left out. A home
    directory is not walked.

    Evidence: deepspeedai/DeepSpeed#4370, NVIDIA/nccl#1328.
    """
    yield from _preamble(job, fleet, facts, "code")
    have = _comparable(facts)
    if not have:
        return
    cut = {node: value.cut for node, value in have.items() if value.cut}
    for reason in dict.fromkeys(cut.values()):
        yield unknown(f"code on {fold(node for node, why in cut.items() if why == reason)}", reason)
    walked = {node: value for node, value in have.items() if value.code_hash}
    # Files of the job itself are CPY001's.
    named = {item.name for item in _wanted(job)}
    commits = split({node: value.commit[:12] for node, value in walked.items() if value.commit})
    alike = len({value.code_hash for value in walked.values()}) < 2
    listed = {n: {k: v for k, v in c.code.items() if k not in named} for n, c in walked.items() if not alike}
    if alike:
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
            f"the code below {directory} on {fold(odd)} differs from that on {fold(agreeing, 4)}"
            + (f": {fold(files, 6)}" if files else f" ({walked[node].code_files} files)"),
            at=Evidence("code", walked[node].code_hash, walked[agreeing[0]].code_hash, f"ls -lR {directory}", node),
            nodes=tuple(odd),
            remedy=f"Synchronise {directory} on {fold(odd)} with {agreeing[0]}.",
        )
    elif commits is not None and commits.odd:
        node, commit = commits.first_odd
        directory = walked[node].directory
        yield failed(
            f"commit on {fold(commits.odd)}",
            f"another commit is checked out in {directory}: {commits.spoken}",
            at=Evidence("code", commit, commits.common, f"git -C {directory} log -1", node),
            nodes=tuple(commits.odd),
            remedy=f"Check out {commits.common} on {fold(commits.odd)}.",
            severity=Severity.INFO,
        )
    elif walked:
        yield passed(f"code on {len(walked)} nodes")
