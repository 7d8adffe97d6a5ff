"""Checks that the job's data is on every node, with equal content, and has enough shards for its ranks."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from preflight._util.sequences import grouped
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.plans import Plan, facts_about, size, split, workers_of_rank, world_of
from preflight_checks.probes.folders import PathState, Sample, has_braces, path_state
from preflight_checks.probes.limits import SHARED
from preflight_checks.requirements import fold, largest_value, nodes_share_machine

#: Prefixes of data that is not on a node: object and web addresses, and commands that webdataset reads from.
_REMOTE_PREFIXES = re.compile(r"^(?:[A-Za-z][A-Za-z0-9+.-]*://|pipe:|s3:|gs:|hdfs:)")
#: Prefixes of paths on a node; a published model is named `owner/name`.
_LOCAL_PREFIXES = re.compile(r"^(?:/|\./|\.\./|~/)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A path that the job reads, with its claims. `same_for_all`: whether it is for all ranks, not a node's own
    share.
    """

    path: str
    claims: tuple[Claim, ...]
    same_for_all: bool = False


def is_node_path(text: str) -> bool:
    """Return whether a string may be a path on a node: neither a remote address nor a placeholder."""
    return bool(text) and not _REMOTE_PREFIXES.match(text) and ("{" not in text or has_braces(text))


def wanted_paths(job: Job) -> tuple[Wanted, ...]:
    """Return the known paths on the nodes to examine, with data first."""
    claims_by_path: dict[str, list[Claim]] = {}
    for quantity in ("data_path", "input_file", "model_name"):
        for claim in job.about(quantity):
            for value in claim.alternatives:
                if not isinstance(value, str) or not is_node_path(value):
                    continue
                if quantity != "model_name" or _LOCAL_PREFIXES.match(value):
                    claims_by_path.setdefault(value, []).append(claim)
    return tuple(
        Wanted(path, tuple(claims), all(claim.quantity != "data_path" for claim in claims))
        for path, claims in claims_by_path.items()
    )


class Located(Protocol):
    """A path on the nodes, and the claims that name it."""

    @property
    def path(self) -> str:
        """The path."""

    @property
    def claims(self) -> tuple[Claim, ...]:
        """The claims."""


def for_each_path(
    probe: Callable[..., object],
    paths: Callable[[Job], Iterable[Located]],
    *,
    consent: str = "",
    required: bool = True,
    **params: object,
) -> Plan:
    """Return a plan that examines every path on every node, in separate requests, because one of them may hang."""

    def plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
        for item in paths(job):
            for node in fleet.reached:
                yield Request(
                    probe_name(probe),
                    node.name,
                    {"path": item.path, **params},
                    context=True,
                    because=item.claims,
                    required=required,
                    consent=consent,
                )

    return Plan((probe,), plan)


plan_paths = for_each_path(path_state, wanted_paths)


_WORDS = {
    "missing": "does not exist",
    "denied": "may not be read",
    "dangling": "is a dangling symbolic link",
    "stale": "is on a mount with a stale file handle",
    "other": "cannot be accessed",
}


@check("DAT011", "data-path-missing", plan=plan_paths, severity=Severity.ERROR)
def data_path_missing(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every data path of the job exists, is readable, and is of the same kind on every node.

    What it checks: each known data path, from the ranks' working directory, in the job context.

    Why it matters: the node without the data fails after the others have joined, and they wait for it; or it builds
    its own index, and ranks read different samples.

    Example: /data/train is mounted on three nodes; on node3 the mount failed at boot.

    Fix: mount or copy the data there.

    Known limits: paths that are known only at run time are not checked, and neither is the content.
    """
    wanted = wanted_paths(job)
    if not wanted:
        yield not_applicable("data paths", "the job's files name no data path")
    for item in wanted:
        observed, missing = facts_about(facts, path_state, path=item.path)
        yield from unknown_states(item.path, missing, required=True)
        yield from _judge_existence(item, observed)


def unknown_states(path: str, missing: Mapping[str, Unavailable], *, required: bool = False) -> Iterator[Verdict]:
    """Yield one `unknown` for each reason why the state of a path is missing on some nodes, with their names."""
    for reason, nodes in grouped((fact.reason, node) for node, fact in missing.items()).items():
        entered = all(missing[node].kind != "context" for node in nodes)
        yield unknown(f"{path} on {fold(nodes)}", reason, nodes=nodes, required=required and entered)


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
            certain=not doubtful,
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
            certain=False,
        )
    elif present and not absent:
        yield passed(f"{item.path} on {len(present)} nodes")


@check("DAT012", "shard-list-differs", plan=plan_paths, severity=Severity.ERROR)
def shard_list_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node sees the same data files, with the same sizes, and can read them all.

    What it checks: names and sizes of the files of each data path, compared between nodes.

    Why it matters: a rank with fewer files runs fewer steps, and the others wait for it forever, or ranks silently
    train on different data.

    Example: part-00017 is missing on node3 and truncated on node1.

    Fix: copy the shard again.

    Known limits: DAT013 compares contents; only the first 50000 files are compared, and none if listing takes more than
    2 s. Nodes whose lists have little in common are assumed to have their own shards, with a warning.
    """
    wanted = list(wanted_paths(job))
    if not wanted:
        yield not_applicable("data files", "the job's files name no data path")
    for item in wanted:
        observed = {
            node: state
            for node, state in facts_about(facts, path_state, path=item.path)[0].items()
            if not state.problem and state.kind
        }
        if not observed:
            yield unknown(f"files of {item.path}", "it was not found on any node (see DAT011)")
            continue
        hurried = [node for node, state in observed.items() if state.hurried]
        if hurried:
            yield unknown(f"files of {item.path} on {fold(hurried)}", "there are too many to list in 2 s")
        wrong = list(_judge_shards(item, observed))
        yield from wrong
        if not wrong and len(hurried) < len(observed):
            yield passed(f"files of {item.path} on {len(observed)} nodes")


def _comparable_file_system(state: PathState) -> tuple[str, str]:
    """Return what must be equal on all nodes, without the kind of a local disk and the name of a server."""
    return (state.file_system, state.source.rpartition(":")[2]) if state.file_system in SHARED else ("", "")


def _describe(state: PathState) -> str:
    """Return `lustre (/scratch)` or `ext4`."""
    export = _comparable_file_system(state)[1]
    return f"{state.file_system} ({export})" if export else state.file_system


def _judge_shards(item: Wanted, observed: dict[str, PathState]) -> Iterator[Verdict]:
    unreadable = {node: state for node, state in observed.items() if state.unreadable}
    missing = grouped((tuple(state.absent), node) for node, state in observed.items() if state.absent)
    for names, nodes in missing.items():
        many = len(names) > 1
        yield failed(
            f"{item.path}: named files missing",
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
            remedy=f"Fix the links and permissions under {item.path} on {fold(unreadable)}.",
        )
    empty = [
        node
        for node, state in observed.items()
        if state.kind == "directory" and not state.listed and not state.unreadable
    ]
    if empty and len(empty) < len(observed):
        yield failed(
            f"{item.path}: empty",
            f"{item.path} is empty on {fold(empty)}, but has files on the other nodes: a mount may be missing",
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
        verdict = _difference_finding(item, node, filled[node], digests.agreeing, reference)
        if verdict is not None:
            yield verdict


def _difference_finding(
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
        remedy=f"Copy {fold([*absent, *resized], 4) or 'the data'} to {node} again."
        if is_similar
        else f"If every node should have all of {item.path}, copy it to {node}; separate shards per node are fine.",
        certain=is_similar,
    )


def _sizes(state: PathState) -> dict[str, int]:
    if state.kind == "file":
        return {state.resolved.rpartition("/")[2]: state.size_bytes}
    return {entry.name: entry.size_bytes for entry in state.entries}


@check("DAT013", "data-content-differs", plan=plan_paths, severity=Severity.ERROR)
def data_content_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Data files with the same name and size have the same content on every node.

    What it checks: digests of a few files of each path, chosen by the hashes of their names so that every node reads
    the same ones. Files up to 1 MiB are read completely; of larger files, the head, the middle and the tail are read.

    Why it matters: with a shard that was copied while it was being written, an index from another version, or another
    tokenizer, a rank trains on different samples, or on shapes that no collective can reduce, and the file size does
    not show this.

    Example: train.idx of node3 was built a week earlier from other documents of the same number.

    Fix: copy the file again from a node with the right content.

    Known limits: differences outside the sampled parts are not seen. If all files of a node differ but no size does,
    they may be its own shards: a warning. Shared file systems are not read.
    """
    wanted = wanted_paths(job)
    if not wanted or len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable("data contents", "the job's files name no data path, or the nodes are one machine")
        return
    for item in wanted:
        states = facts_about(facts, path_state, path=item.path)[0]
        observed = {node: {sample.name: sample for sample in state.samples} for node, state in states.items()}
        observed = {node: samples for node, samples in observed.items() if samples}
        cut = {node: state.sample_problem for node, state in states.items() if state.sample_problem}
        for problem in dict.fromkeys(cut.values()):
            yield unknown(f"contents of {item.path} on {fold(n for n in cut if cut[n] == problem)}", problem)
        if len(observed) < 2:
            yield unknown(
                f"contents of {item.path}", "they could be read on fewer than two nodes, or are on a file server"
            )
            continue
        odd = _odd_files(observed)
        shared = Counter(name for samples in observed.values() for name in samples)
        yield from (_content_difference_finding(item, node, names, observed, shared) for node, names in odd.items())
        if not odd:
            yield passed(f"contents of {item.path} on {len(observed)} nodes")


def _odd_files(observed: dict[str, dict[str, Sample]]) -> dict[str, list[str]]:
    """Return the files of each node whose size is that of most nodes but whose content differs."""
    odd: dict[str, list[str]] = {}
    for name in sorted({name for samples in observed.values() for name in samples}):
        seen = {node: samples[name] for node, samples in observed.items() if name in samples}
        sizes = split({node: sample.size_bytes for node, sample in seen.items()})
        if sizes is None:
            continue
        digests = split({node: seen[node].digest for node in sizes.agreeing})
        for node in digests.odd if digests is not None else ():
            odd.setdefault(node, []).append(name)
    return odd


def _content_difference_finding(
    item: Wanted, node: str, names: list[str], observed: dict[str, dict[str, Sample]], shared: Counter[str]
) -> Verdict:
    mine = observed[node]
    compared = [name for name in mine if shared[name] > 1]
    own = not item.same_for_all and len(names) > 1 and len(names) == len(compared)
    other = next(n for n, samples in observed.items() if n != node and names[0] in samples)
    example = mine[names[0]]
    many = len(names) > 1
    what = "all files that were read" if own else fold(names, 4)
    return failed(
        f"{item.path}: content on {node}",
        f"{what} of {item.path} on {node} {'differ' if many else 'differs'} from the other nodes in content, "
        "although not in size",
        at=Evidence(
            f"{'content' if example.whole else 'head, middle and tail'} of {names[0]}",
            example.digest,
            observed[other][names[0]].digest,
            f"sha256sum {item.path}",
            node,
        ),
        also=item.claims,
        remedy=f"If every node should have the same data, copy it to {node}; separate shards per node are fine."
        if own
        else f"Copy {fold(names, 4)} of {item.path} to {node} again, from a node with the right content ({other}).",
        certain=not own,
    )


#: Files that readers assign as a whole: a file is read by one rank.
_WHOLE_FILES = (".tar", ".tar.gz", ".tgz")
#: A rank with this many times the bytes of another runs as many times the steps, or the other repeats data.
SKEW = 2.0
#: Nodes with their own shards finish an epoch unevenly above this difference.
NODE_SKEW = 1.25
#: Shards must be at least this share of all files, which include lists, indexes and licenses.
_MIN_SHARD_SHARE = 0.5


@check("DAT014", "too-few-data-files", plan=plan_paths, severity=Severity.ERROR)
def too_few_data_files(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every rank gets a data file, and no rank gets much more data than another.

    What it checks: if whole files are assigned (webdataset tar files, a file list that the script divides among
    trainers), their number on each node compared with the ranks and loader workers; the most and the fewest bytes per
    rank; and, if nodes have their own files, the bytes per node.

    Why it matters: a rank without a file ends its epoch immediately, and the others wait for it in the next collective.

    Example: 6 tar files for 8 ranks; node3 has 20 shards of its own, but the others have 24.

    Fix: more and smaller files, or a reader that repeats or splits them.

    Known limits: only Paddle's data sets are known to divide a list, so only there are too few files an error; tar
    files may be sampled with replacement, so too few are a warning. Files are assumed to be assigned in the order of
    their names.
    """
    wanted = [item for item in wanted_paths(job) if not item.same_for_all]
    divided = [claim for claim in job.about("dataset_files_shared") if claim.value == Known(True)]
    world, claims = largest_value(job, "ps_workers") or world_of(job, fleet)
    if not wanted or world < 2 or _draws_with_replacement(job):
        yield not_applicable(
            "data files for ranks",
            "the job's files name no data path, one rank reads all of the data, or shards are drawn with replacement",
        )
        return
    for item in wanted:
        states = facts_about(facts, path_state, path=item.path)[0]
        observed = {node: state for node, state in states.items() if not state.problem}
        observed = {node: state for node, state in observed.items() if not state.hurried}
        whole = {node: state for node, state in observed.items() if divided or _are_complete(state)}
        if not observed:
            yield unknown(f"data files of {item.path}", "its files could not be listed on any node (see DAT011)")
            continue
        own = _own_bytes(observed) if not nodes_share_machine(fleet) else {}
        found = [
            *_too_few_findings(item, whole, world, claims, divided, workers_of_rank(job)[0]),
            *_uneven_node_findings(item, own),
        ]
        if not found and not own:
            found.extend(_uneven_rank_findings(item, whole, world, claims))
        yield from found
        if not found:
            yield passed(f"data files of {item.path} on {len(observed)} nodes")


def _draws_with_replacement(job: Job) -> bool:
    """Return whether a launch draws shards with replacement."""
    words = [word.lower() for launch in job.launches for word in launch.arguments if word is not None]
    return any("resampl" in word for word in words)


def _are_complete(state: PathState) -> bool:
    """Return whether most of the files are read by one rank each."""
    if state.kind not in ("directory", "pattern", "list") or not state.entries:
        return False
    tars = sum(entry.name.endswith(_WHOLE_FILES) for entry in state.entries)
    return tars >= max(1.0, _MIN_SHARD_SHARE * len(state.entries))


def _shards(state: PathState) -> dict[str, int]:
    """Return the files assigned to ranks, by name: the tar files if there are any, otherwise all except the list
    itself.
    """
    named = {entry.name: entry.size_bytes for entry in state.entries}
    tars = {name: size_bytes for name, size_bytes in named.items() if name.endswith(_WHOLE_FILES)}
    return tars or {name: size_bytes for name, size_bytes in named.items() if not name.endswith(".list")}


def _too_few_findings(
    item: Wanted,
    whole: Mapping[str, PathState],
    world: int,
    claims: tuple[Claim, ...],
    divided: list[Claim],
    workers: int,
) -> Iterator[Verdict]:
    counts = {node: len(_shards(state)) for node, state in whole.items() if state.listed == len(state.entries)}
    for needed, what in ((world, f"{world} ranks"), (world * workers, f"{world} ranks with {workers} loader workers")):
        short = {node: count for node, count in counts.items() if 0 < count < needed}
        if not short:
            continue
        node = min(short, key=lambda name: short[name])
        certain = bool(divided) and needed == world
        yield failed(
            f"{item.path}: too few",
            f"{item.path} has {short[node]} data files on {fold(short)}, fewer than {what}: some get none",
            at=Evidence("data files", str(short[node]), f"at least {needed}", f"ls {item.path} | wc -l", node),
            also=(*item.claims, *claims, *divided[:1]),
            nodes=tuple(short),
            remedy=f"Split the data into at least {needed} files, or start fewer ranks and loader workers.",
            severity=None if certain else Severity.WARNING if needed == world else Severity.INFO,
            confidence=None if certain else Confidence.MEDIUM,
        )
        return


def _uneven_rank_findings(
    item: Wanted, whole: Mapping[str, PathState], world: int, claims: tuple[Claim, ...]
) -> Iterator[Verdict]:
    for node, state in whole.items():
        shards = sorted(_shards(state).items())
        if len(shards) < world or state.listed != len(state.entries):
            continue
        shares = [sum(size_bytes for _name, size_bytes in shards[rank::world]) for rank in range(world)]
        if max(shares) <= SKEW * min(shares):
            continue
        rich, poor = shares.index(max(shares)), shares.index(min(shares))
        yield failed(
            f"{item.path}: skew",
            f"rank {rich} reads {size(max(shares))} of {item.path}, but rank {poor} only {size(min(shares))}: rank "
            f"{poor} ends its epoch much earlier",
            at=Evidence("bytes per rank", f"{size(min(shares))} to {size(max(shares))}", "about the same", "", node),
            also=(*item.claims, *claims),
            nodes=tuple(whole),
            remedy="Split the data into files of equal size, or make the reader stop all ranks at the same step.",
            certain=False,
        )
        return


def _own_bytes(observed: Mapping[str, PathState]) -> dict[str, int]:
    """Return the bytes on each node if the nodes have their own files; empty if all nodes have the same files."""
    names = {node: {entry.name for entry in state.entries} for node, state in observed.items() if state.entries}
    if len(names) < 2:
        return {}
    first, *others = names.values()
    if any(len(first & other) * 2 >= min(len(first), len(other)) for other in others):
        return {}
    return {node: observed[node].size_bytes for node in names}


def _uneven_node_findings(item: Wanted, shown: Mapping[str, int]) -> Iterator[Verdict]:
    if not shown or max(shown.values()) <= NODE_SKEW * min(shown.values()):
        return
    poor = min(shown, key=lambda name: shown[name])
    rich = max(shown, key=lambda name: shown[name])
    yield failed(
        f"{item.path}: nodes",
        f"nodes have different files in {item.path}: {size(shown[poor])} on {poor}, but {size(shown[rich])} on {rich}",
        at=Evidence("bytes per node", size(shown[poor]), size(shown[rich]), f"du -sh {item.path}", poor),
        also=item.claims,
        remedy="Distribute the files evenly, or make the reader stop all ranks at the same step.",
        certain=False,
    )
