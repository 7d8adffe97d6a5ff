"""Checks that there are enough data files for all ranks, of about equal size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import size, workers_of_rank, world_of
from preflight_checks.plans import facts_about
from preflight_checks.probes.paths import PathState, path_state
from preflight_checks.requirements import fold, largest, nodes_share_machine
from preflight_checks.storage.paths import Wanted, plan_paths, wanted_paths

#: Files that readers assign as a whole: a file is read by one rank.
_WHOLE_FILES = (".tar", ".tar.gz", ".tgz")
#: A rank with this many times the bytes of another runs as many times the steps, or the other repeats data.
SKEW = 2.0
#: Nodes with their own shards finish an epoch unevenly above this difference.
NODE_SKEW = 1.25
#: Shards must be at least this share of all files, which include lists, indexes and licenses.
_MIN_SHARD_SHARE = 0.5


@check(
    "DAT014",
    "too-few-data-files",
    plan=plan_paths,
    cost="nothing beyond what DAT012 lists",
    severity=Severity.ERROR,
    evidence=("PaddlePaddle/Paddle#18956", "PaddlePaddle/Paddle#18641", "webdataset/webdataset#188"),
)
def too_few_data_files(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every rank gets a data file, and no rank gets much more data than another.

    What it checks: if files are assigned as a whole (tar files of webdataset, a file list that the script divides over
    trainers), their number on each node compared with the ranks and loader workers; the most and the least bytes of a
    rank; and, if nodes have their own files, the bytes of each node.

    Why it matters: a rank without a file ends its epoch at once, and the others wait for it in the next collective.

    Example: 6 tar files for 8 ranks; node3 was given 20 shards of its own where the others have 24.

    Fix: more and smaller files, or a reader that repeats or splits them.

    Known limits: only Paddle's data sets are known to divide a list, where too few files are an error; tar files may
    be sampled with replacement, so too few are a warning. Files are assumed to be assigned in the order of their
    names.
    """
    wanted = [item for item in wanted_paths(job) if not item.same_for_all]
    divided = [claim for claim in job.about("dataset_files_shared") if claim.value == Known(True)]
    world, claims = largest(job, "ps_workers") or world_of(job, fleet)
    if not wanted or world < 2 or _draws_with_replacement(job):
        yield not_applicable("data files for ranks", "the files name no data path, or one rank reads all of it")
        return
    for item in wanted:
        states = facts_about(facts, path_state, path=item.path)[0]
        observed = {node: state for node, state in states.items() if not state.problem}
        observed = {node: state for node, state in observed.items() if not state.hurried}
        whole = {node: state for node, state in observed.items() if divided or _are_complete(state)}
        if not observed:
            yield unknown(f"data files of {item.path}", "its files could be listed on no node (see DAT011)")
            continue
        own = _own_bytes(observed) if not nodes_share_machine(fleet) else {}
        found = [*_too_few(item, whole, world, claims, divided, workers_of_rank(job)[0]), *_uneven_nodes(item, own)]
        if not found and not own:
            found.extend(_uneven_ranks(item, whole, world, claims))
        yield from found
        if not found:
            yield passed(f"data files of {item.path} on {len(observed)} nodes")


def _draws_with_replacement(job: Job) -> bool:
    """Whether a launch draws shards with replacement."""
    words = [word.lower() for launch in job.launches for word in launch.arguments if word is not None]
    return any("resampl" in word for word in words)


def _are_complete(state: PathState) -> bool:
    """Whether most of the files are read by one rank each."""
    if state.kind not in ("directory", "pattern", "list") or not state.entries:
        return False
    tars = sum(entry.name.endswith(_WHOLE_FILES) for entry in state.entries)
    return tars >= max(1.0, _MIN_SHARD_SHARE * len(state.entries))


def _shards(state: PathState) -> dict[str, int]:
    """The files that are assigned to ranks, by name: tar files if there are any, otherwise all files except the list
    itself.
    """
    named = {entry.name: entry.size_bytes for entry in state.entries}
    tars = {name: size_bytes for name, size_bytes in named.items() if name.endswith(_WHOLE_FILES)}
    return tars or {name: size_bytes for name, size_bytes in named.items() if not name.endswith(".list")}


def _too_few(
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
            f"{item.path} holds {short[node]} data files on {fold(short)}, fewer than {what}: some get none",
            at=Evidence("data files", str(short[node]), f"at least {needed}", f"ls {item.path} | wc -l", node),
            also=(*item.claims, *claims, *divided[:1]),
            nodes=tuple(short),
            remedy=f"Split the data into at least {needed} files, or start fewer ranks and loader workers.",
            severity=None if certain else Severity.WARNING if needed == world else Severity.INFO,
            confidence=None if certain else Confidence.MEDIUM,
        )
        return


def _uneven_ranks(
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
            f"of {item.path}, rank {rich} gets {size(max(shares))} and rank {poor} {size(min(shares))}: the epoch "
            "ends much earlier for one of them",
            at=Evidence("bytes of a rank", f"{size(min(shares))} to {size(max(shares))}", "about the same", "", node),
            also=(*item.claims, *claims),
            nodes=tuple(whole),
            remedy="Split the data into files of equal size, or make the reader stop all ranks together.",
            certain=False,
        )
        return


def _own_bytes(observed: Mapping[str, PathState]) -> dict[str, int]:
    """Bytes on each node, if the nodes have their own files; empty if they have the same files."""
    names = {node: {entry.name for entry in state.entries} for node, state in observed.items() if state.entries}
    if len(names) < 2:
        return {}
    first, *others = names.values()
    if any(len(first & other) * 2 >= min(len(first), len(other)) for other in others):
        return {}
    return {node: observed[node].size_bytes for node in names}


def _uneven_nodes(item: Wanted, own: Mapping[str, int]) -> Iterator[Verdict]:
    if not own or max(own.values()) <= NODE_SKEW * min(own.values()):
        return
    poor = min(own, key=lambda name: own[name])
    rich = max(own, key=lambda name: own[name])
    yield failed(
        f"{item.path}: nodes",
        f"nodes have their own files below {item.path}: {size(own[poor])} on {poor} and {size(own[rich])} on {rich}",
        at=Evidence("bytes of a node", size(own[poor]), size(own[rich]), f"du -sh {item.path}", poor),
        also=item.claims,
        remedy="Distribute the files evenly, or make the reader stop all ranks together.",
        certain=False,
    )
