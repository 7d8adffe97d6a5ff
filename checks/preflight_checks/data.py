"""Whether the job's data is there, and the same, on every node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import fold
from preflight_checks.majority import split
from preflight_checks.probes.paths import PathState, path_state


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A path the job reads, and who says so."""

    path: str
    claims: tuple[Claim, ...]


def _wanted(job: Job) -> tuple[_Wanted, ...]:
    """The data paths to look at: known ones that name files of the nodes (no URL, no brace pattern)."""
    found: dict[str, list[Claim]] = {}
    for claim in job.about("data_path"):
        for value in claim.alternatives:
            if isinstance(value, str) and value and "://" not in value and "{" not in value:
                found.setdefault(value, []).append(claim)
    return tuple(_Wanted(path, tuple(claims)) for path, claims in found.items())


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for item in _wanted(job):
        for node in fleet.reached:
            params = {"path": item.path}
            yield Request(probe_name(path_state), node.name, params, context=True, because=item.claims, required=True)


def _states(facts: Facts, path: str) -> tuple[dict[str, PathState], dict[str, Unavailable]]:
    have: dict[str, PathState] = {}
    missing: dict[str, Unavailable] = {}
    for seen in facts.each(path_state):
        if seen.request.params.get("path") != path:
            continue
        if isinstance(seen.fact, Unavailable):
            missing[seen.node] = seen.fact
        else:
            have[seen.node] = seen.fact.value
    return have, missing


_WORDS = {
    "missing": "does not exist",
    "denied": "may not be read",
    "dangling": "is a link to nothing",
    "other": "cannot be looked at",
}


@check(
    "DAT011",
    "data-path-missing",
    plan=_plan,
    severity=Severity.ERROR,
    evidence=("NVIDIA/Megatron-LM#1355", "NVIDIA/Megatron-LM#907", "hiyouga/LlamaFactory#3065"),
)
def data_path_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every data path of the job exists, readable and of one kind, on every node.

    What it checks: each known data path, from the ranks' working directory, in the job context.

    Why it matters: the node without the data fails after the others have joined, and they wait for it; or it
    builds an index of its own, and ranks read different samples.

    Example: /data/train is mounted on three nodes; on node3 the mount failed at boot.

    Fix: mount or copy the data there.

    Known limits: paths that only run time knows are not looked at; existing is not proof of intact content.

    Evidence: NVIDIA/Megatron-LM#1355, NVIDIA/Megatron-LM#907, hiyouga/LlamaFactory#3065.
    """
    wanted = _wanted(job)
    if not wanted:
        yield not_applicable("data paths", "the files spell no data path")
    for item in wanted:
        have, missing = _states(facts, item.path)
        for reason in dict.fromkeys(fact.reason for fact in missing.values()):
            nodes = [node for node, fact in missing.items() if fact.reason == reason]
            required = all(missing[node].kind != "context" for node in nodes)
            yield unknown(f"{item.path} on {fold(nodes)}", reason, required=required)
        yield from _judge_existence(item, have)


def _judge_existence(item: _Wanted, have: dict[str, PathState]) -> Iterator[Verdict]:
    absent = {node: state for node, state in have.items() if state.problem}
    present = {node: state for node, state in have.items() if not state.problem}
    for problem in sorted({state.problem for state in absent.values()}):
        group = {node: state for node, state in absent.items() if state.problem == problem}
        node, state = next(iter(group.items()))
        # A relative name that exists nowhere may be the name of a data set on some hub.
        doubtful = not present and not item.path.startswith(("/", "./", "../", "~", "$"))
        where = "any node" if not present and len(group) == len(have) > 1 else fold(group)
        yield failed(
            f"{item.path}: {problem}",
            f"{item.path} {_WORDS.get(problem, problem)} on {where}"
            + (f", but is there on {fold(present, 4)}" if present else "")
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
    systems = split({node: state.file_system for node, state in present.items() if state.file_system})
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
        node, system = next(iter(systems.odd.items()))
        yield failed(
            f"{item.path}: file system",
            f"{item.path} lies on {system} on {fold(systems.odd)}, but on {systems.common} on "
            f"{fold(systems.agreeing, 4)}: a mount may be missing",
            at=Evidence("data path", system, systems.common, f"findmnt -T {present[node].resolved}", node),
            also=item.claims,
            nodes=tuple(systems.odd),
            remedy=f"See whether {item.path} is mounted on {fold(systems.odd)}.",
            severity=Severity.WARNING,
            confidence=Confidence.MEDIUM,
        )
    elif present and not absent:
        yield passed(f"{item.path} on {len(present)} nodes")


@check(
    "DAT012",
    "shard-list-differs",
    plan=_plan,
    severity=Severity.ERROR,
    evidence=("NVIDIA/Megatron-LM#1355", "EleutherAI/gpt-neox#919", "PaddlePaddle/Paddle#18956"),
)
def shard_list_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node sees the same data files, with the same sizes, and can read them all.

    What it checks: names and sizes of the files of each data path, compared between nodes.

    Why it matters: a rank with fewer files runs fewer steps and the others wait for it for ever, or ranks train
    on different data without a word.

    Example: part-00017 is missing on node3 and truncated on node1.

    Fix: copy the shard again.

    Known limits: contents are not compared, only names and sizes; above 50000 files the rest is left out. Nodes
    whose lists have little in common are taken to hold shards of their own, with a warning.

    Evidence: NVIDIA/Megatron-LM#1355, EleutherAI/gpt-neox#919, PaddlePaddle/Paddle#18956.
    """
    wanted = list(_wanted(job))
    if not wanted:
        yield not_applicable("data files", "the files spell no data path")
    for item in wanted:
        have = {node: state for node, state in _states(facts, item.path)[0].items() if not state.problem and state.kind}
        if not have:
            yield unknown(f"files of {item.path}", "it was seen on no node (see DAT011)")
            continue
        wrong = list(_judge_shards(item, have))
        yield from wrong
        if not wrong:
            yield passed(f"files of {item.path} on {len(have)} nodes")


def _judge_shards(item: _Wanted, have: dict[str, PathState]) -> Iterator[Verdict]:
    unreadable = {node: state for node, state in have.items() if state.unreadable}
    if unreadable:
        node, state = next(iter(unreadable.items()))
        yield failed(
            f"{item.path}: unreadable files",
            f"{fold(state.unreadable, 4)} of {item.path} cannot be read on {fold(unreadable)}",
            at=Evidence("data files", fold(state.unreadable, 4), "readable files", f"ls -l {state.resolved}", node),
            also=item.claims,
            nodes=tuple(unreadable),
            remedy=f"Mend the links and permissions below {item.path} on {fold(unreadable)}.",
        )
    empty = [
        node for node, state in have.items() if state.kind == "directory" and not state.listed and not state.unreadable
    ]
    if empty and len(empty) < len(have):
        yield failed(
            f"{item.path}: empty",
            f"{item.path} is empty on {fold(empty)}, and holds files on the other nodes: a mount may be missing",
            at=Evidence("data files", "no files", "the shards", f"ls {item.path}", empty[0]),
            also=item.claims,
            nodes=empty,
            remedy=f"Mount or copy the data on {fold(empty)}.",
        )
    filled = {node: state for node, state in have.items() if node not in empty}
    digests = split({node: state.digest for node, state in filled.items()})
    if digests is None or not digests.odd:
        return
    reference = filled[digests.agreeing[0]]
    for node in digests.odd:
        yield _difference(item, node, filled[node], digests.agreeing, reference)


def _difference(item: _Wanted, node: str, state: PathState, agreeing: tuple[str, ...], reference: PathState) -> Verdict:
    mine = _sizes(state)
    theirs = _sizes(reference)
    absent = sorted(theirs.keys() - mine.keys() - set(state.unreadable))
    surplus = sorted(mine.keys() - theirs.keys())
    resized = sorted(name for name in mine.keys() & theirs.keys() if mine[name] != theirs[name])
    alike = len(mine.keys() & theirs.keys()) * 2 >= max(1, len(theirs))
    parts = []
    if absent:
        parts.append(f"{fold(absent, 4)} {'is' if len(absent) == 1 else 'are'} missing")
    if resized:
        sizes = fold((f"{name} ({mine[name]} instead of {theirs[name]} bytes)" for name in resized), 3)
        parts.append(f"{sizes} {'differs' if len(resized) == 1 else 'differ'}")
    if surplus:
        parts.append(f"{fold(surplus, 4)} {'is' if len(surplus) == 1 else 'are'} only there")
    what = "; ".join(parts) or f"{state.listed} files against {reference.listed}"
    return failed(
        f"{item.path}: {node}",
        f"the files of {item.path} on {node} differ from those on {fold(agreeing, 4)}: {what}",
        at=Evidence("data files", what, f"the files of {agreeing[0]}", f"ls -l {state.resolved}", node),
        also=item.claims,
        nodes=(node,),
        remedy=f"Copy {fold([*absent, *resized], 4) or 'the data'} to {node} again."
        if alike
        else f"If every node is to hold all of {item.path}, copy it to {node}; own shards per node are fine.",
        severity=None if alike else Severity.WARNING,
        confidence=None if alike else Confidence.MEDIUM,
    )


def _sizes(state: PathState) -> dict[str, int]:
    if state.kind == "file":
        return {state.resolved.rpartition("/")[2]: state.size_bytes}
    return {entry.name: entry.size_bytes for entry in state.entries}
