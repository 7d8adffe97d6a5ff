"""Checks that the job's data exists and is the same on every node."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.probes.mounts import SHARED
from preflight_checks.probes.paths import PathState, path_state
from preflight_checks.requirements.hosts import fold
from preflight_checks.storage.paths import Wanted, plan_paths, states_of, wanted_paths

_WORDS = {
    "missing": "does not exist",
    "denied": "may not be read",
    "dangling": "is a dangling link",
    "stale": "is on a mount with a stale file handle",
    "other": "cannot be accessed",
}


@check(
    "DAT011",
    "data-path-missing",
    plan=plan_paths,
    probes=(path_state,),
    cost="lists the data path in the job context, without reading files",
    severity=Severity.ERROR,
    evidence=("NVIDIA/Megatron-LM#1355", "NVIDIA/Megatron-LM#907", "hiyouga/LlamaFactory#3065"),
)
def data_path_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every data path of the job exists, readable and of one kind, on every node.

    What it checks: each known data path, from the ranks' working directory, in the job context.

    Why it matters: the node without the data fails after the others have joined, and they wait for it; or it builds
    its own index, and ranks read different samples.

    Example: /data/train is mounted on three nodes; on node3 the mount failed at boot.

    Fix: mount or copy the data there.

    Known limits: paths that are only known at run time are not checked, nor is the content.
    """
    wanted = wanted_paths(job)
    if not wanted:
        yield not_applicable("data paths", "the files name no data path")
    for item in wanted:
        observed, missing = states_of(facts, item.path)
        for reason in dict.fromkeys(fact.reason for fact in missing.values()):
            nodes = [node for node, fact in missing.items() if fact.reason == reason]
            required = all(missing[node].kind != "context" for node in nodes)
            yield unknown(f"{item.path} on {fold(nodes)}", reason, nodes=nodes, required=required)
        yield from _judge_existence(item, observed)


def _judge_existence(item: Wanted, observed: dict[str, PathState]) -> Iterator[Verdict]:
    absent = {node: state for node, state in observed.items() if state.problem}
    present = {node: state for node, state in observed.items() if not state.problem}
    for problem in sorted({state.problem for state in absent.values()}):
        group = {node: state for node, state in absent.items() if state.problem == problem}
        node, state = next(iter(group.items()))
        # A relative name that exists nowhere may be a data set on a hub.
        doubtful = not present and not item.path.startswith(("/", "./", "../", "~", "$"))
        where = "any node" if not present and len(group) == len(observed) > 1 else fold(group)
        yield failed(
            f"{item.path}: {problem}",
            f"{item.path} {_WORDS.get(problem, problem)} on {where}"
            + (f", but exists on {fold(present, 4)}" if present else "")
            + (f" ({state.resolved}: {state.detail})" if state.detail else ""),
            at=Evidence(
                "data path",
                f"{state.resolved}: {state.detail or problem}",
                "the data",
                f"ls -ld {state.resolved}",
                node,
            ),
            also=item.claims,
            nodes=tuple(group),
            remedy=f"Mount or copy {item.path} on {fold(group)}, with read permission for the job's user.",
            severity=Severity.WARNING if doubtful else None,
            confidence=Confidence.MEDIUM if doubtful else None,
        )
    kinds = split({node: state.kind for node, state in present.items()})
    systems = split({node: _comparable_file_system(state) for node, state in present.items() if state.file_system})
    if kinds is not None and kinds.odd:
        node, kind = next(iter(kinds.odd.items()))
        yield failed(
            f"{item.path}: kind",
            f"{item.path} is a {kind} on {fold(kinds.odd)}, but a {kinds.common} on {fold(kinds.agreeing, 4)}",
            at=Evidence("data path", kind, kinds.common, f"ls -ld {present[node].resolved}", node),
            also=item.claims,
            nodes=tuple(kinds.odd),
            remedy=f"Make {item.path} the same on every node.",
        )
    elif systems is not None and systems.odd:
        node = next(iter(systems.odd))
        system, usual = _describe(present[node]), _describe(present[systems.agreeing[0]])
        yield failed(
            f"{item.path}: file system",
            f"{item.path} is on {system} on {fold(systems.odd)}, but on {usual} on "
            f"{fold(systems.agreeing, 4)}: a mount may be missing",
            at=Evidence("data path", system, usual, f"findmnt -T {present[node].resolved}", node),
            also=item.claims,
            nodes=tuple(systems.odd),
            remedy=f"Check whether {item.path} is mounted on {fold(systems.odd)}.",
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    elif present and not absent:
        yield passed(f"{item.path} on {len(present)} nodes")


@check(
    "DAT012",
    "shard-list-differs",
    plan=plan_paths,
    probes=(path_state,),
    cost="lists the data path in the job context, without reading files",
    severity=Severity.ERROR,
    evidence=("NVIDIA/Megatron-LM#1355", "EleutherAI/gpt-neox#919", "PaddlePaddle/Paddle#18956"),
)
def shard_list_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node sees the same data files, with the same sizes, and can read them all.

    What it checks: names and sizes of the files of each data path, compared between nodes.

    Why it matters: a rank with fewer files runs fewer steps and the others wait for it forever, or ranks silently
    train on different data.

    Example: part-00017 is missing on node3 and truncated on node1.

    Fix: copy the shard again.

    Known limits: contents are compared by DAT013; only the first 50000 files are compared, and none if listing takes
    more than 2 s. Nodes whose lists have little in common are assumed to hold their own shards, with a warning.
    """
    wanted = list(wanted_paths(job))
    if not wanted:
        yield not_applicable("data files", "the files name no data path")
    for item in wanted:
        observed = {
            node: state for node, state in states_of(facts, item.path)[0].items() if not state.problem and state.kind
        }
        if not observed:
            yield unknown(f"files of {item.path}", "it was found on no node (see DAT011)")
            continue
        hurried = [node for node, state in observed.items() if state.hurried]
        if hurried:
            yield unknown(f"files of {item.path} on {fold(hurried)}", "there are more than can be listed in 2 s")
        wrong = list(_judge_shards(item, observed))
        yield from wrong
        if not wrong and len(hurried) < len(observed):
            yield passed(f"files of {item.path} on {len(observed)} nodes")


def _comparable_file_system(state: PathState) -> tuple[str, str]:
    """The part of a file system that must agree; the kind of local disk and the server's name do not matter."""
    return (state.file_system, state.source.rpartition(":")[2]) if state.file_system in SHARED else ("", "")


def _describe(state: PathState) -> str:
    """`lustre (/scratch)`, `ext4`."""
    export = _comparable_file_system(state)[1]
    return f"{state.file_system} ({export})" if export else state.file_system


def _judge_shards(item: Wanted, observed: dict[str, PathState]) -> Iterator[Verdict]:
    unreadable = {node: state for node, state in observed.items() if state.unreadable}
    missing: dict[tuple[str, ...], list[str]] = {}
    for node, state in observed.items():
        if state.absent:
            missing.setdefault(tuple(state.absent), []).append(node)
    for names, nodes in missing.items():
        many = len(names) > 1
        yield failed(
            f"{item.path}: named files absent",
            f"{item.path} names {fold(names, 4)}, which {'do' if many else 'does'} not exist on {fold(nodes)}",
            at=Evidence("data files", f"without {fold(names, 4)}", "every named file", f"ls {names[0]}", nodes[0]),
            also=item.claims,
            nodes=tuple(nodes),
            remedy=f"Copy {fold(names, 4)} to {fold(nodes)}, or remove {'them' if many else 'it'} from {item.path}.",
        )
    if unreadable:
        node, state = next(iter(unreadable.items()))
        yield failed(
            f"{item.path}: unreadable files",
            f"{fold(state.unreadable, 4)} of {item.path} cannot be read on {fold(unreadable)}",
            at=Evidence("data files", fold(state.unreadable, 4), "readable files", f"ls -l {state.resolved}", node),
            also=item.claims,
            nodes=tuple(unreadable),
            remedy=f"Fix the links and permissions below {item.path} on {fold(unreadable)}.",
        )
    empty = [
        node
        for node, state in observed.items()
        if state.kind == "directory" and not state.listed and not state.unreadable
    ]
    if empty and len(empty) < len(observed):
        yield failed(
            f"{item.path}: empty",
            f"{item.path} is empty on {fold(empty)}, and holds files on the other nodes: a mount may be missing",
            at=Evidence("data files", "no files", "the shards", f"ls {item.path}", empty[0]),
            also=item.claims,
            nodes=empty,
            remedy=f"Mount or copy the data on {fold(empty)}.",
        )
    missing_nodes = {node for nodes in missing.values() for node in nodes}
    filled = {
        n: state for n, state in observed.items() if n not in empty and n not in missing_nodes and not state.hurried
    }
    digests = split({node: state.digest for node, state in filled.items()})
    if digests is None or not digests.odd:
        return
    reference = filled[digests.agreeing[0]]
    for node in digests.odd:
        verdict = _difference(item, node, filled[node], digests.agreeing, reference)
        if verdict is not None:
            yield verdict


def _difference(
    item: Wanted, node: str, state: PathState, agreeing: tuple[str, ...], reference: PathState
) -> Verdict | None:
    mine = _sizes(state)
    theirs = _sizes(reference)
    absent = sorted(theirs.keys() - mine.keys() - set(state.unreadable))
    surplus = sorted(mine.keys() - theirs.keys())
    resized = sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])
    is_similar = len(mine.keys() & theirs.keys()) * 2 >= max(1, len(theirs))
    parts = []
    if absent:
        parts.append(f"{fold(absent, 4)} {'is' if len(absent) == 1 else 'are'} missing")
    if resized:
        sizes = fold((f"{name} ({mine[name]} instead of {theirs[name]} bytes)" for name in resized), 3)
        parts.append(f"{sizes} {'differs' if len(resized) == 1 else 'differ'}")
    if surplus:
        parts.append(f"{fold(surplus, 4)} {'is' if len(surplus) == 1 else 'are'} only there")
    if not parts and state.unreadable:
        # Only unreadable files are missing, and those are reported already.
        return None
    what = "; ".join(parts) or f"{state.listed} files against {reference.listed}"
    return failed(
        f"{item.path}: {node}",
        f"the files of {item.path} on {node} differ from those on {fold(agreeing, 4)}: {what}",
        at=Evidence("data files", what, f"the files of {agreeing[0]}", f"ls -l {state.resolved}", node),
        also=item.claims,
        nodes=(node,),
        remedy=f"Copy {fold([*absent, *resized], 4) or 'the data'} to {node} again."
        if is_similar
        else f"If every node should hold all of {item.path}, copy it to {node}; separate shards per node are fine.",
        severity=None if is_similar else Severity.WARNING,
        confidence=None if is_similar else Confidence.MEDIUM,
    )


def _sizes(state: PathState) -> dict[str, int]:
    if state.kind == "file":
        return {state.resolved.rpartition("/")[2]: state.size_bytes}
    return {entry.name: entry.size_bytes for entry in state.entries}
