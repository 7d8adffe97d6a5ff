"""Checks that files of the same name and size have the same content on every node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.probes.content import Sample
from preflight_checks.probes.paths import path_state
from preflight_checks.requirements.hosts import fold, nodes_share_machine
from preflight_checks.storage.paths import Wanted, plan_paths, states_of, wanted_paths


@check(
    "DAT013",
    "data-content-differs",
    plan=plan_paths,
    probes=(path_state,),
    cost="reads at most 8 files of each path (1 MiB whole, else head, middle and tail of 64 KiB), at most 1.5 s; "
    "nothing on a shared file system",
    severity=Severity.ERROR,
    evidence=("NVIDIA/Megatron-LM#907", "EleutherAI/gpt-neox#1127", "NVIDIA/Megatron-LM#35"),
)
def data_content_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Data files with the same name and size have the same content on every node.

    What it checks: digests of a few files of each path, chosen by the hashes of their names so that every node reads
    the same ones. Files up to 1 MiB are read whole, of larger ones the head, the middle and the tail.

    Why it matters: a shard that was copied while it was written, an index built by another version, or another
    tokenizer trains on different samples, or on shapes that no collective can reduce, and the file size does not show
    it.

    Example: train.idx of node3 was built a week earlier from other documents of the same number.

    Fix: copy the file again from a node that has the right one.

    Known limits: differences outside the sampled pieces are not seen. If all files of a node differ but no size does,
    they may be its own shards: a warning. Shared file systems are not read.
    """
    wanted = wanted_paths(job)
    if not wanted or len(fleet.nodes) < 2 or nodes_share_machine(fleet):
        yield not_applicable("contents of data", "the files name no data path, or the nodes are one machine")
        return
    for item in wanted:
        states = states_of(facts, item.path)[0]
        observed = {node: {sample.name: sample for sample in state.samples} for node, state in states.items()}
        observed = {node: samples for node, samples in observed.items() if samples}
        cut = {node: state.sample_problem for node, state in states.items() if state.sample_problem}
        for problem in dict.fromkeys(cut.values()):
            yield unknown(f"contents of {item.path} on {fold(n for n in cut if cut[n] == problem)}", problem)
        if len(observed) < 2:
            yield unknown(f"contents of {item.path}", "they could be read on fewer than two nodes, or are on a server")
            continue
        odd = _odd_files(observed)
        shared = Counter(name for samples in observed.values() for name in samples)
        yield from (_differs(item, node, names, observed, shared) for node, names in odd.items())
        if not odd:
            yield passed(f"contents of {item.path} on {len(observed)} nodes")


def _odd_files(observed: dict[str, dict[str, Sample]]) -> dict[str, list[str]]:
    """The files of each node whose size is that of most nodes but whose content differs."""
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


def _differs(
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
        f"{what} of {item.path} on {node} {'differ' if many else 'differs'} from the other nodes in content, but not "
        "in size",
        at=Evidence(
            f"{'content' if example.whole else 'head, middle and tail'} of {names[0]}",
            example.digest,
            observed[other][names[0]].digest,
            f"sha256sum {item.path}",
            node,
        ),
        also=item.claims,
        nodes=(node,),
        remedy=f"If every node should hold the same data, copy it to {node}; separate shards per node are fine."
        if own
        else f"Copy {fold(names, 4)} of {item.path} to {node} again, from a node that has the right one ({other}).",
        severity=Severity.WARNING if own else None,
        confidence=Confidence.MEDIUM if own else None,
    )
