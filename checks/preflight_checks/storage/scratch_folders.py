"""Checks of folders for temporary files and caches, and of where the job writes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from preflight._util.sequences import grouped
from preflight.analysis.model_size import is_megatron, model_parameters, stated_shape, uses_less_memory
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Scope
from preflight.model.recording import Facts, Fleet
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed
from preflight_checks.plans import (
    MIB,
    facts_about,
    has_launches,
    missing_facts,
    on_every_node,
    only_if,
    size,
    split,
    warning_check,
)
from preflight_checks.probes.folders import FolderState, Scratch, can_hold_files, folder_state, hub_model, scratch
from preflight_checks.probes.limits import SHARED
from preflight_checks.requirements import fold, gpu_claims, known_int, scopes
from preflight_checks.storage.paths import for_each_path, is_node_path

#: Bytes of a parameter in a checkpoint: its 16-bit weight, and with Adam in mixed precision the 32-bit master weight,
#: momentum and variance (Rajbhandari et al., ZeRO, arXiv 1910.02054, section 3.1).
WEIGHT, STATES = 2, 12
#: Hugging Face's trainer without DeepSpeed keeps the two moments in the weights' own format, at least 16 bits each.
MOMENTS = 4
#: Options that leave parts out of a checkpoint.
_WEIGHTS_ONLY = ("--no-save-optim", "--save_only_model", "--save-only-model")
#: Launchers whose checkpoint size is known from the model's shape: by default they save mixed precision with Adam.
_SHAPES = ("arguments", "gpt-neox")


@dataclass(frozen=True, slots=True)
class Destination:
    """A folder for checkpoints, with the claims that name it. `sharded`: whether every rank writes its own part
    there.
    """

    path: str
    scope: Scope
    claims: tuple[Claim, ...]
    sharded: tuple[Claim, ...] = ()


def destinations(job: Job) -> tuple[Destination, ...]:
    """Return the folders that the job's launches write checkpoints to, without duplicates."""
    found: dict[str, Destination] = {}
    for scope in scopes(job):
        for claim in job.setting("checkpoint_path", scope):
            for path in claim.alternatives:
                if isinstance(path, str) and is_node_path(path):
                    found.setdefault(path, Destination(path, scope, (claim,), _sharding(job, scope)))
    return tuple(found.values())


def _sharding(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """Return the claims that make every rank write its own part: ZeRO, a distributed optimizer, sharded FSDP."""
    claims: list[Claim] = []
    if (known_int(job, "zero_stage", scope) or 0) >= 1:
        claims.extend(job.setting("zero_stage", scope))
    for quantity, wanted in (
        ("distributed_optimizer", (True,)),
        ("fsdp_state_dict_type", ("SHARDED_STATE_DICT", "LOCAL_STATE_DICT")),
    ):
        found = job.setting(quantity, scope)
        claims.extend(claim for claim in found if isinstance(claim.value, Known) and claim.value.value in wanted)
    return tuple(claims)


plan_destinations = for_each_path(folder_state, destinations, quota=True)


def is_shared(state: FolderState) -> bool:
    """Return whether other nodes see the files that one node writes to the folder."""
    return state.file_system in SHARED


@dataclass(frozen=True, slots=True)
class CheckpointSize:
    """The minimum size of one checkpoint, how many are kept (None if unknown), and the claims for both."""

    each_bytes: int
    kept_count: int | None
    parameters: int
    claims: tuple[Claim, ...]
    states: bool


def checkpoint_size(job: Job, scope: Scope) -> CheckpointSize | None:
    """Return the minimum size of a checkpoint, by the model's shape or name; None if neither is certain."""
    launch = next((launch for launch in job.launches if launch.scope == scope), None)
    sized = _parameters(job, scope, launch)
    if sized is None:
        return None
    parameters, claims, per_state = sized
    if uses_less_memory(launch):
        # An adapter may be all that is saved.
        return None
    weights_only = _has_option(launch, _WEIGHTS_ONLY)
    each = parameters * (WEIGHT + (0 if weights_only else per_state))
    kept, more = _kept_checkpoints(job, scope)
    return CheckpointSize(each, kept, parameters, (*claims, *more), not weights_only)


def _parameters(job: Job, scope: Scope, launch: Launch | None) -> tuple[int, tuple[Claim, ...], int] | None:
    for source in _SHAPES:
        if source == "arguments" and (launch is None or not is_megatron(launch)):
            continue
        shape = stated_shape(job, scope, source)
        if shape is not None:
            return shape.parameters, shape.claims[:3], STATES
    named = model_parameters(job, scope)
    if named is None or launch is None:
        return None
    return named[0], (named[1],), STATES if job.setting("zero_stage", scope) else MOMENTS


def _has_option(launch: Launch | None, options: tuple[str, ...]) -> bool:
    words = launch.arguments if launch is not None else ()
    return any(word is not None and word.partition("=")[0] in options for word in words)


def _kept_checkpoints(job: Job, scope: Scope) -> tuple[int | None, tuple[Claim, ...]]:
    """Return the number of checkpoints that exist at the same time; a new one is written before the oldest is
    deleted.
    """
    kept = known_int(job, "checkpoints_kept", scope)
    if kept is not None and kept > 0:
        return kept + 1, job.setting("checkpoints_kept", scope)
    steps, interval = known_int(job, "train_steps", scope), known_int(job, "save_interval", scope)
    if steps and interval and steps >= interval:
        return steps // interval, (*job.setting("train_steps", scope), *job.setting("save_interval", scope))
    return None, ()


#: Temporary files of compilers, logs and sockets need more free space than this.
MIN_FREE_BYTES = 100 * MIB
#: `meta-llama/Llama-2-7b-hf`, and neither a path nor an address.
_HUB_MODEL = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$")
_WORDS = {
    "home": "the home directory",
    "triton": "Triton's cache",
    "extensions": "torch's folder for compiled extensions",
}


@check(
    "DSK001",
    "temporary-folder-unusable",
    plan=on_every_node(scratch, params={"what": "temporary"}, when=has_launches, context=True),
    severity=Severity.ERROR,
)
@only_if(has_launches, "temporary files", "the job's files start no processes on the nodes")
def temporary_folder(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node has a writable folder for temporary files.

    What it checks: the folder that TMPDIR, TEMP or TMP names inside the job context, or else /tmp, must exist, be
    writable and not full. If it is unusable, the other folders that Python tries are checked; if none is usable, the
    finding is an error. Less than 100 MiB, and with GPUs a noexec mount, are warnings.

    Why it matters: torch cannot be imported without one ("No usable temporary directory found"); torchrun keeps its
    logs there, and compiled kernels are loaded from there.

    Example: /tmp of node4 was filled by core dumps.

    Fix: remove leftovers of earlier runs from it, or set TMPDIR to a folder with space.

    Known limits: the required space depends on what is compiled and logged.
    """
    observed, missing = facts_about(facts, scratch, what="temporary")
    yield from missing_facts(facts, scratch, "folders for temporary files") if missing else ()
    compiles = bool(gpu_claims(job))
    groups = grouped(
        ((fault, not can_hold_files(value.folder) and not value.instead), node)
        for node, value in observed.items()
        if (fault := _temporary_fault(value, compiles=compiles))
    )
    for (fault, certain), nodes in groups.items():
        path = observed[nodes[0]].folder.resolved
        yield failed(
            f"temporary files: {fault}",
            f"temporary files: {fault} on {fold(nodes)}"
            + (", and no other folder that Python tries is usable" if certain else ""),
            at=Evidence(
                "folder for temporary files", fault, "free space for files", f"df -h {path}; df -i {path}", nodes[0]
            ),
            nodes=tuple(nodes),
            remedy=f"Remove old files from {path} on {fold(nodes)}, or set TMPDIR to a folder with free space.",
            certain=certain,
        )
    if observed and not groups:
        yield passed(f"temporary files on {len(observed)} nodes")


def _temporary_fault(value: Scratch, *, compiles: bool) -> str:
    fault = _folder_fault(value)
    state = value.folder
    if fault:
        return fault
    if state.free_bytes is not None and state.total_bytes and state.free_bytes < MIN_FREE_BYTES:
        return f"{state.resolved} has less than {size(MIN_FREE_BYTES)} left"
    if state.no_programs and compiles:
        return f"{state.resolved} is mounted noexec, but compiled kernels are loaded from it"
    return ""


def _folder_fault(value: Scratch) -> str:
    """Return a description of why writing to the folder fails; empty if no reason is known."""
    state = value.folder
    named = state.resolved + (f" (from {value.variable})" if value.variable else "")
    if state.problem:
        return f"{named}: {state.detail or state.problem}"
    if not state.exists and (value.what in ("temporary", "home") or not state.writable):
        return f"{named} does not exist" + ("" if state.writable else f" and cannot be created in {state.nearest}")
    if state.read_only:
        return f"{named} is mounted read-only"
    if not state.writable:
        return f"{named} is not writable for the job's user"
    if state.total_bytes and (state.free_bytes or 0) < MIB:
        return f"{named} is full"
    return f"{named} has no inodes left" if state.inodes_free == 0 else ""


def _plan_home(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for node in fleet.reached:
        for what in _kinds(job):
            yield Request(probe_name(scratch), node.name, {"what": what}, context=True)


def _kinds(job: Job) -> tuple[str, ...]:
    """Return the kinds of folders that this job's libraries write to; compilers write only if there are GPUs."""
    if not job.launches:
        return ()
    return ("home", "triton", "extensions") if gpu_claims(job) else ("home",)


@warning_check("DSK002", "cache-folder-unusable", plan=_plan_home, probes=(scratch,))
def cache_folder(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The home directory and compiler caches are writable, and nodes do not share one cache.

    What it checks: HOME inside the job context; with GPUs, also the caches of Triton (TRITON_CACHE_DIR) and torch
    (TORCH_EXTENSIONS_DIR). A missing, read-only or full folder is a warning; a folder on a shared file system is
    informational.

    Why it matters: the first step compiles kernels but cannot store them. In a common cache on NFS, the ranks of
    different nodes replace each other's files: "Stale file handle" ends one rank, and the others wait until they time
    out.

    Example: HOME is /nonexistent, because the container runs under a user that its image does not know.

    Fix: `export HOME=...`; `export TRITON_CACHE_DIR=/tmp/triton-$USER-$SLURM_JOB_ID`.

    Known limits: whether the job compiles anything is unknown.
    """
    kinds = _kinds(job)
    if not kinds:
        yield not_applicable("caches", "the job's files start no processes on the nodes")
        return
    found = {what: facts_about(facts, scratch, what=what) for what in kinds}
    yield from missing_facts(facts, scratch, "caches") if any(missing for _, missing in found.values()) else ()
    for what, (observed, _) in found.items():
        faults = grouped((fault, node) for node, value in observed.items() if (fault := _folder_fault(value)))
        for fault, nodes in faults.items():
            yield failed(
                f"{what}: {fault}",
                f"{_WORDS[what]}: {fault} on {fold(nodes)}",
                at=Evidence(
                    _WORDS[what], fault, "a writable folder", f"df -h {observed[nodes[0]].folder.nearest}", nodes[0]
                ),
                nodes=tuple(nodes),
                remedy=f"Set {_variable(what)} to a folder with free space that the job's user may write on "
                f"{fold(nodes)}.",
            )
        shared = [node for node, value in observed.items() if what == "triton" and is_shared(value.folder)]
        if len(shared) > 1 and not faults:
            state = observed[shared[0]].folder
            yield failed(
                f"{what}: shared",
                f"{_WORDS[what]} is on {state.file_system} ({state.resolved}), where ranks of all nodes write at the "
                "same time",
                at=Evidence(
                    _WORDS[what],
                    state.file_system,
                    "a local disk on each node",
                    f"findmnt -T {state.nearest}",
                    shared[0],
                ),
                nodes=tuple(shared),
                remedy="Put `export TRITON_CACHE_DIR=/tmp/triton-$USER-$SLURM_JOB_ID` in the job script.",
                severity=Severity.INFO,
            )
        if observed and not faults and len(shared) < 2:
            yield passed(f"{_WORDS[what]} on {len(observed)} nodes")


def _variable(kind: str) -> str:
    return {"home": "HOME", "triton": "TRITON_CACHE_DIR"}.get(kind, "TORCH_EXTENSIONS_DIR")


def _models(job: Job) -> dict[str, tuple[Claim, ...]]:
    named = ((name, claim) for claim in job.about("model_name") for name in claim.alternatives)
    found = grouped((name, claim) for name, claim in named if isinstance(name, str) and _HUB_MODEL.match(name))
    return {name: tuple(claims) for name, claims in found.items()}


def _plan_models(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    for model, claims in _models(job).items():
        for node in fleet.reached:
            yield Request(probe_name(hub_model), node.name, {"model": model}, context=True, because=claims)


@check("DSK003", "offline-model-missing", plan=_plan_models, probes=(hub_model,), severity=Severity.ERROR)
def offline_model(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """In offline mode, the model that the job names is in the cache of every node.

    What it checks: with HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE set inside the job context, whether the cache has a
    snapshot of each model named `owner/name`; in any case, whether all nodes have the same revision.

    Why it matters: the ranks of the node without it stop with "cannot find the requested files in the local cache", and
    the others wait for them. Another revision is another model, or another tokenizer.

    Example: the model was downloaded on the login node to a cache that the compute nodes do not share.

    Fix: `huggingface-cli download owner/name` with HF_HOME on a file system that all nodes share.

    Known limits: whether a snapshot has all of its files is unknown; DAT011 checks a path that is given instead of a
    name.
    """
    models = _models(job)
    if not models:
        yield not_applicable("models", "the job's files name no model from the Hugging Face Hub")
        return
    yield from missing_facts(facts, hub_model, "models")
    for model, claims in models.items():
        found = facts_about(facts, hub_model, model=model)[0]
        observed = {node: value for node, value in found.items() if not value.local}
        missing = [node for node, value in observed.items() if value.offline and not value.revisions]
        if missing:
            value = observed[missing[0]]
            yield failed(
                f"{model}: missing",
                f"{model} is not in the cache on {fold(missing)}, and {value.variable} forbids downloading it",
                at=Evidence("model", f"no snapshot in {value.folder}", "a snapshot", f"ls {value.folder}", missing[0]),
                also=claims,
                nodes=tuple(missing),
                remedy=f"Run `huggingface-cli download {model}` with the job's HF_HOME on {fold(missing)}.",
            )
        revisions = split({node: value.main for node, value in observed.items() if value.main and value.revisions})
        if revisions is not None and revisions.odd:
            node, revision = revisions.first_odd
            yield failed(
                f"{model}: revision",
                f"{fold(revisions.odd)} would load a different revision of {model} from {fold(revisions.agreeing, 4)}",
                at=Evidence("revision", revision, revisions.common, f"cat {observed[node].folder}/refs/main", node),
                also=claims,
                nodes=tuple(revisions.odd),
                remedy=f"Name the revision in the job, or download {model} again on {fold(revisions.odd)}.",
                certain=False,
            )
        elif observed and not missing:
            yield passed(f"{model} on {len(observed)} nodes")
