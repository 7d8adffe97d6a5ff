"""Fleet: its calls, strategy and data sets, parallel degrees, and the update mode of parameter servers."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Scope, Unresolved
from preflight.model.job.claim import job_value
from preflight.model.job.value import Symbol, numbers, symbols_in, texts
from preflight.plugins.authoring import Verdict, failed, make_fix, passed, replace_text, rule, undecided, unknown
from preflight.plugins.claim_text import joined, placed, quoted
from preflight.plugins.questions import SubjectQuestion, claims_about, each_claim, subjects, subjects_with
from preflight_rules.launches import ranks_started, started_files


def distinct_claims(job: Job, quantity: str) -> Iterator[tuple[str, Scope, Claim]]:
    """Return the subject, scope and claim of each claim about a quantity, one for each location."""
    return ((subject, scope, claim) for subject, scope, _, claim in each_claim(job, quantity))


def is_started_manually(job: Job) -> bool:
    """Return whether plain python starts a process of the job, without Paddle's launcher."""
    return any(launch.launcher == "python" for launch in job.launches)


def _is_collective(job: Job, scope: Scope) -> bool | None:
    """Return whether the job is collective; None if unknown."""
    values = {value for claim in job.about("ps_mode", scope) for value in claim.alternatives}
    if values == {False}:
        return True
    return False if values == {True} else None


@rule(
    "PDL003",
    "fleet-optimizer-stays-local",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script starts fleet and calls minimize",
)
def fleet_optimizer_stays_local(job: Job) -> Iterator[Verdict]:
    """A script initializes fleet but minimizes with an optimizer that is not distributed.

    What it checks: A static-graph script that calls `fleet.init` and an optimizer's `minimize` also calls
    `fleet.distributed_optimizer`.

    Why it matters: Without it, no gradients are exchanged: every rank silently trains its own model on its share of the
    data.

    Example: `fleet.init(is_collective=True)` and `paddle.optimizer.SGD(0.1).minimize(loss)`.

    Fix: `optimizer = fleet.distributed_optimizer(optimizer, strategy)` before `minimize`.

    Known limits: Only optimizers and calls in one script are seen.
    """
    for subject, scope, calls in distinct_claims(job, "fleet_calls"):
        names = {str(name) for value in calls.alternatives if isinstance(value, tuple) for name in value}
        optimizers = [
            c for c in job.about("optimizer", scope) if c.span.path == calls.span.path and texts(c.value) != ("",)
        ]
        if "init" not in names or not optimizers:
            continue
        if names & {"distributed_optimizer", "DistributedOptimizer", "distributed_model", "minimize", "util"}:
            yield passed(subject)
        else:
            yield undecided(subject, (optimizers[0],)) or failed(
                subject,
                f"{quoted(optimizers[0])} is minimized without fleet.distributed_optimizer, although {placed(calls)} "
                "starts fleet: no gradients are exchanged.",
                at=optimizers[0],
                also=((calls, "starts fleet"),),
                remedy="Wrap it: `optimizer = fleet.distributed_optimizer(optimizer)`.",
            )


#: Calls that belong together, and the effect if the second is missing.
_CALL_PAIRS = (
    ("init_server", "run_server", "the server returns at once, and the trainers find no server"),
    ("init_server", "init_worker", "the trainers neither fetch the initial parameters nor start their communicator"),
    ("init_worker", "stop_worker", "the servers wait forever and occupy their hosts after training has ended"),
)


@rule(
    "PDL005",
    "fleet-role-not-seen-through",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script runs fleet servers or trainers",
)
def fleet_role_not_seen_through(job: Job) -> Iterator[Verdict]:
    """A parameter-server script lacks a call that its servers or trainers need.

    What it checks: A script that calls one of init_server, run_server, init_worker and stop_worker also calls the one
    that must follow or precede it.

    Why it matters: Without run_server, no process serves; without init_worker, trainers start with different
    parameters; without stop_worker, the servers never end.

    Example: `fleet.init_server()` without `fleet.run_server()`.

    Fix: Servers: `init_server()`, `run_server()`. Trainers: `init_worker()`, training, `stop_worker()`.

    Known limits: A script that only prints its program, or only infers, may leave out some calls. A missing stop_worker
    is only a hint unless the processes are started manually.
    """
    for subject, _, calls in distinct_claims(job, "fleet_calls"):
        names = {str(name) for value in calls.alternatives if isinstance(value, tuple) for name in value}
        if not names & {"init_server", "run_server", "init_worker"} or not names & {"init", "is_server", "is_worker"}:
            continue
        # A script without calls for workers leaves training to another program.
        workers = names & {"is_worker", "init_worker", "stop_worker", "is_first_worker", "train_from_dataset"}
        missing_pair = next(
            (
                pair
                for pair in _CALL_PAIRS
                if pair[0] in names and pair[1] not in names and (workers or pair[1] != "init_worker")
            ),
            None,
        )
        if missing_pair is None:
            yield passed(subject)
        else:
            yield undecided(subject, (calls,)) or failed(
                subject,
                f"{quoted(calls)}: the script calls fleet.{missing_pair[0]} but never fleet.{missing_pair[1]}: "
                f"{missing_pair[2]}.",
                at=calls,
                remedy=f"Call fleet.{missing_pair[1]}() as well.",
                # Paddle's own launcher ends the servers after all trainers.
                severity=None if missing_pair[1] != "stop_worker" or is_started_manually(job) else Severity.INFO,
            )


#: Methods of Fleet that need its role maker, which only `fleet.init` creates.
_ROLE_METHODS = frozenset(
    (
        *("distributed_model", "distributed_optimizer", "worker_num", "worker_index", "server_num"),
        *("is_server", "is_worker", "is_first_worker", "init_server", "run_server", "init_worker"),
    )
)
#: With more files than this, another file may call `fleet.init`.
_MAX_FILES = 6


@rule(
    "PDL016",
    "fleet-never-initialised",
    severity=Severity.ERROR,
    applies_to="paddlepaddle",
    otherwise="no script uses Fleet",
)
def fleet_never_initialised(job: Job) -> Iterator[Verdict]:
    """A script uses Fleet but never calls fleet.init.

    What it checks: A script that is started and calls methods of Fleet that need the role of the process
    (distributed_model, distributed_optimizer, is_server, worker_index ...) calls `fleet.init`, itself or in its own
    module.

    Why it matters: Only `fleet.init` creates the role maker that these methods use. Without it they stop with
    AttributeError on None.

    Example: `model = fleet.distributed_model(model)` without `fleet.init(is_collective=True)`.

    Fix: Collective training: `fleet.init(is_collective=True)`; parameter servers: `fleet.init()`.

    Known limits: Another file of the job, or a library that the script imports, may make the call; then the result is
    unknown.
    """
    for subject, scope, calls in distinct_claims(job, "fleet_calls"):
        names = {str(name) for value in calls.alternatives if isinstance(value, tuple) for name in value}
        role_methods = sorted(names & _ROLE_METHODS)
        if not role_methods:
            continue
        if "init" in names or job.about("parallel_environment", scope):
            yield passed(subject)
        elif calls.condition or calls.span.path not in started_files(job) or len(job.files) > _MAX_FILES:
            yield unknown(subject, f"another file may call fleet.init before {quoted(calls)}", at=calls)
        elif job.about("fleet_libraries", scope):
            library_values = job.about("fleet_libraries", scope)[0].alternatives
            libraries = joined(name for value in library_values if isinstance(value, tuple) for name in value)
            yield unknown(subject, f"{libraries} may call fleet.init before {quoted(calls)}", at=calls)
        else:
            is_collective = bool(names & {"distributed_model"})
            yield failed(
                subject,
                f"{quoted(calls)}: the script calls fleet.{role_methods[0]} but never fleet.init, so Fleet does not "
                "know its role and stops.",
                at=calls,
                remedy="Call it first: `fleet.init(is_collective=True)`"
                + ("." if is_collective else ", or `fleet.init()` with parameter servers."),
            )


#: The optimizers that each switch of the strategy supports; Fleet ignores the switch for any other.
_OPTIMIZERS_BY_SWITCH = {
    "dgc": ("Momentum",),
    "lars": ("Momentum",),
    "lamb": ("Adam",),
    "localsgd": ("SGD", "Momentum"),
    "adaptive_localsgd": ("SGD", "Momentum"),
}
#: Switches of collective training, without effect for parameter servers.
_COLLECTIVE_ONLY = (*_OPTIMIZERS_BY_SWITCH, "sharding", "gradient_merge", "recompute", "fp16_allreduce")


@rule(
    "PDL007",
    "fleet-switch-without-effect",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no strategy has a switch that depends on the optimizer",
)
def fleet_switch_without_effect(job: Job) -> Iterator[Verdict]:
    """Fleet silently ignores a switch of DistributedStrategy.

    What it checks: `dgc` and `lars` are used with a Momentum optimizer, `lamb` with Adam, `localsgd` with SGD or
    Momentum, and no switch of collective training is set in a parameter-server job.

    Why it matters: Fleet ignores a switch that does not fit, at most with a log line: the run trains without the
    planned compression, scaling or sharding.

    Example: `strategy.dgc = True` and `paddle.optimizer.Adam(...)`.

    Fix: Use the optimizer that the switch needs, or remove the switch.

    Known limits: Static graph only; the optimizer is known if the script itself creates it and calls minimize.
    """
    for subject, scope, switch in distinct_claims(job, "fleet_switch"):
        name = (texts(switch.value) or ("",))[0]
        optimizers = [c for c in job.about("optimizer", scope) if texts(c.value) != ("",)]
        collective = _is_collective(job, scope)
        if name not in _COLLECTIVE_ONLY:
            continue
        suitable = _OPTIMIZERS_BY_SWITCH.get(name, ())
        optimizer_names = {text for claim in optimizers for text in texts(claim.value)}
        if switch.condition or (collective is None and not (suitable and optimizer_names)):
            yield unknown(subject, f"{quoted(switch)}: the optimizer is unknown", at=switch)
        elif collective is False:
            mode = next(c for c in job.about("ps_mode", scope) if True in c.alternatives)
            yield failed(
                subject,
                f"{quoted(switch)} is for collective training and has no effect with the parameter servers of"
                f" {placed(mode)}.",
                at=switch,
                also=((mode, "parameter servers"),),
                remedy="Remove it, or call `fleet.init(is_collective=True)`.",
            )
        elif suitable and optimizer_names and not optimizer_names & set(suitable):
            yield failed(
                subject,
                f"{quoted(switch)} works only with {' or '.join(suitable)}; Fleet ignores it for"
                f" {placed(optimizers[0])}.",
                at=switch,
                also=((optimizers[0], "the optimizer"),),
                remedy=f"Use {suitable[0]}, or remove `{name}`.",
            )
        else:
            yield passed(subject)


@rule(
    "PDL010",
    "stream-dataset-cannot-shuffle",
    severity=Severity.ERROR,
    otherwise="no Paddle dataset is shuffled",
    passes_with=("dataset_files_shared",),
    each=claims_about("stream_dataset_shuffled"),
)
def stream_dataset_cannot_shuffle(question: SubjectQuestion) -> Verdict | None:
    """A script shuffles a QueueDataset, which cannot shuffle.

    What it checks: local_shuffle and global_shuffle are not called on a QueueDataset, which `create_dataset()` creates
    by default.

    Why it matters: A QueueDataset streams its files and holds no samples. The call raises NotImplementedError, on every
    trainer, after the servers have started.

    Example: `dataset = fluid.DatasetFactory().create_dataset()` and `dataset.local_shuffle()`.

    Fix: Use InMemoryDataset and load_into_memory, or shuffle the files beforehand.

    Known limits: Only a data set that the script creates itself is known.
    """
    (claim,) = question.claims
    return failed(
        question.subject,
        f"{quoted(claim)} is called on a QueueDataset, which cannot shuffle: it raises NotImplementedError.",
        at=claim,
        remedy='Create an InMemoryDataset (`create_dataset("InMemoryDataset")`) and call load_into_memory() first.',
    )


@rule(
    "PDL011",
    "every-trainer-reads-all-files",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    otherwise="no script that several trainers run lists files",
)
def every_trainer_reads_all_files(job: Job) -> Iterator[Verdict]:
    """Each trainer of a parameter-server job is given the whole list of files.

    What it checks: A script that passes a folder's files to `set_filelist` divides them: by fleet.util.get_file_shard,
    split_files, or the trainer's index.

    Why it matters: Every trainer then trains on every sample: with N trainers an epoch takes N times as long, and the
    model sees each sample N times.

    Example: `dataset.set_filelist(os.listdir("data"))`.

    Fix: `dataset.set_filelist(fleet.util.get_file_shard(files))`.

    Known limits: If each host has its own files the script is correct, so this is only a hint.
    """
    for subject, scope, claim in distinct_claims(job, "dataset_files_shared"):
        servers = job.about("ps_mode", scope) or job.about("fleet_calls", scope)
        if not servers:
            continue
        if claim.alternatives == (True,):
            yield passed(subject)
        elif _is_collective(job, scope) is None and not job.about("fleet_calls", scope):
            yield unknown(subject, f"{quoted(claim)}: the number of trainers that read the list is not given", at=claim)
        else:
            yield failed(
                subject,
                f"{quoted(claim)} is the same list for every trainer and is not divided among them.",
                at=claim,
                also=((servers[0], "several trainers"),),
                remedy="Divide it: `fleet.util.get_file_shard(files)`."
                if claim.span.path.endswith(".py")
                else "Set it to True.",
            )


_DEGREE_QUANTITIES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size", "sharding_degree")


@rule(
    "PDL006",
    "fleet-degrees-differ-from-world",
    severity=Severity.ERROR,
    otherwise="no launch starts a script with hybrid_configs",
)
def fleet_degrees_differ_from_world(job: Job) -> Iterator[Verdict]:
    """The parallel degrees of hybrid_configs do not multiply to the number of ranks.

    What it checks: dp_degree x mp_degree x pp_degree x sharding_degree x sep_degree of a DistributedStrategy is the
    world size. Without dp_degree, Fleet uses ranks / (mp_degree x pp_degree), regardless of the other degrees.

    Why it matters: Fleet compares the product with the world size at startup and stops every rank with an assertion
    that only prints the numbers.

    Example: `--gpus=0,1,2,3` with `hybrid_configs = {"dp_degree": 2, "mp_degree": 4, "pp_degree": 1}`.

    Fix: Change a degree, or start as many ranks as the product of the degrees.

    Known limits: Degrees that come from arguments are unknown.
    """
    for subject, scope, hybrid in distinct_claims(job, "fleet_hybrid"):
        world, rank_claims = ranks_started(job, scope)
        if not rank_claims or _is_heterogeneous(job, scope):
            continue
        degrees = [c for name in _DEGREE_NAMES for c in job.about(f"setting.paddle.hybrid_configs.{name}", scope)]
        undecided_verdict = undecided(subject, (hybrid, *degrees, *rank_claims))
        ranks = numbers(world)
        if undecided_verdict is not None or not ranks:
            yield undecided_verdict or unknown(subject, "the number of ranks is known only at run time", at=hybrid)
            continue
        degree_numbers = {c.quantity.rpartition(".")[2]: number for c in degrees for number in numbers(c.value)}
        products = [_degree_product(degree_numbers, count) for count in ranks]
        if any(product == count for product, count in zip(products, ranks, strict=True)):
            yield passed(subject)
            continue
        factor_claims = [
            claim for claim in degrees if degree_numbers.get(claim.quantity.rpartition(".")[2], 1) != 1
        ] or degrees
        default_text = (
            f" (and a dp_degree of {_data_parallel_degree(degree_numbers, ranks[0])}, which Fleet adds)"
            if _lacks_data_parallel(degree_numbers)
            else ""
        )
        yield failed(
            subject,
            f"{' x '.join(quoted(claim) for claim in factor_claims)}{default_text} makes {products[0]} ranks, but "
            f"{' and '.join(placed(claim) for claim in rank_claims)} "
            f"{'starts' if len(rank_claims) == 1 else 'start'} {ranks[0]}.",
            at=hybrid,
            also=(
                *((claim, "ranks started") for claim in rank_claims),
                *((claim, "degree") for claim in degrees if claim.span.line != hybrid.span.line),
            ),
            remedy=f"Choose degrees whose product is {ranks[0]}"
            + (
                ", and set dp_degree: without it, Fleet divides the ranks by mp_degree x pp_degree only."
                if default_text
                else ", or remove dp_degree."
            ),
        )


#: The factors of the number of ranks (topology.py, _check_valid_topo).
_DEGREE_NAMES = ("dp_degree", "mp_degree", "pp_degree", "sharding_degree", "sep_degree")


def _is_heterogeneous(job: Job, scope: Scope) -> bool:
    """Return whether Fleet skips the groups of hybrid parallelism."""
    return any(True in claim.alternatives for claim in job.about("setting.paddle.heter_ccl_mode", scope))


def _lacks_data_parallel(degrees: dict[str, int]) -> bool:
    return degrees.get("dp_degree", -1) < 0


def _data_parallel_degree(degrees: dict[str, int], ranks: int) -> int:
    """Return the dp_degree that Fleet uses (fleet.py, _init_hybrid_parallel_env)."""
    if not _lacks_data_parallel(degrees):
        return max(degrees["dp_degree"], 1)
    return max(ranks // (max(degrees.get("mp_degree", 1), 1) * max(degrees.get("pp_degree", 1), 1)), 1)


def _degree_product(degrees: dict[str, int], ranks: int) -> int:
    """Return the product of the degrees. A sharding_degree of 0 counts as 0, any other degree below 1 as 1."""
    return (
        _data_parallel_degree(degrees, ranks)
        * max(degrees.get("mp_degree", 1), 1)
        * max(degrees.get("pp_degree", 1), 1)
        * max(degrees.get("sep_degree", 1), 1)
        * degrees.get("sharding_degree", 1)
    )


@rule(
    "PDL014",
    "trainer-degrees-do-not-divide-ranks",
    severity=Severity.ERROR,
    otherwise="no launch sets parallel degrees for PaddleNLP's trainer",
)
def trainer_degrees_do_not_divide_ranks(job: Job) -> Iterator[Verdict]:
    """The parallel degrees of PaddleNLP's trainer do not divide the ranks that are started.

    What it checks: tensor_parallel_degree x pipeline_parallel_degree x sep_parallel_degree x sharding_parallel_degree
    divides the number of ranks of a launch.

    Why it matters: An assertion fails in every rank once all of them have started: in the trainer, or in Fleet when it
    builds its groups.

    Example: `--gpus 0,1,2,3` with `--tensor_parallel_degree 2 --pipeline_parallel_degree 4`.

    Fix: Choose degrees whose product divides the ranks, or start a multiple of it.

    Known limits: The library chooses a degree of -1, which counts as 1 here. If the launch has one node, and more nodes
    could complete the ranks, the finding is a warning: recipes are published this way.
    """
    for launch in job.launches:
        claims = [
            c
            for name in _DEGREE_QUANTITIES
            for c in job.setting(name, launch.scope)
            if "_parallel_degree" in c.spelling
        ]
        world, rank_claims = ranks_started(job, launch.scope)
        if not claims or not rank_claims or launch.launcher != "paddle":
            continue
        known_claims = [claim for claim in claims if Symbol.LIBRARY_DEFAULT not in symbols_in(claim.value)]
        undecided_verdict = undecided(launch.id, (*known_claims, *rank_claims), launch)
        ranks = numbers(world)
        if undecided_verdict is not None or not ranks:
            yield undecided_verdict or unknown(launch.id, "the number of ranks is known only at run time", at=launch)
            continue
        product = math.prod(max((1, *numbers(claim.value))) for claim in known_claims)
        if all(count % product for count in ranks):
            yield failed(
                launch.id,
                f"{' x '.join(quoted(claim) for claim in known_claims)} makes {product} ranks, which does not divide "
                f"the {ranks[0]} that {' and '.join(placed(claim) for claim in rank_claims)} "
                f"{'starts' if len(rank_claims) == 1 else 'start'}.",
                at=known_claims[0],
                also=tuple((claim, "ranks started") for claim in rank_claims),
                remedy=f"Choose degrees whose product divides {ranks[0]}, or start a multiple of {product} ranks.",
                severity=Severity.WARNING if product % ranks[0] == 0 else None,
            )
        else:
            yield passed(launch.id)


# The update mode of parameter servers, synchronous or asynchronous, and PaddleRec's configuration: runners and modes.


def _mode_claims(job: Job, scope: Scope) -> tuple[Claim, ...]:
    """Return the strongest claims about the update mode: defaults only if no file sets the mode."""
    claims = job.about("ps_update_mode", scope)
    highest = max((claim.strength for claim in claims), default=None)
    return tuple(claim for claim in claims if claim.strength is highest)


@rule(
    "SGD001",
    "synchronous-steps-of-unequal-trainers",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two trainers set their visible GPUs",
)
def synchronous_steps_of_unequal_trainers(job: Job) -> Iterator[Verdict]:
    """Trainers with different numbers of GPUs update synchronously.

    What it checks: If servers update synchronously, all trainers of the job see the same number of GPUs.

    Why it matters: Each step lasts as long as that of the slowest trainer. One trainer with half the GPUs halves the
    speed of all.

    Example: `sync_mode=True`, one trainer with `CUDA_VISIBLE_DEVICES=0,1,2,3`, another with `CUDA_VISIBLE_DEVICES=0`.

    Fix: Give the trainers equal resources, or update asynchronously.

    Known limits: The files do not show the GPU models of the hosts.
    """
    trainers = [
        launch
        for launch in job.launches
        if {text for c in job.setting("ps_role", launch.scope) for text in texts(c.value)} == {"TRAINER"}
    ]
    for program in dict.fromkeys(launch.program for launch in trainers):
        group = [launch for launch in trainers if launch.program == program]
        modes = _mode_claims(job, group[0].scope)
        visible_claims = [(launch, job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)) for launch in group]
        if len(group) < 2 or not modes or not all(claims for _, claims in visible_claims):
            continue
        if undecided_verdict := undecided(
            group[0].id, (*modes, *(c for _, claims in visible_claims for c in claims)), group[0]
        ):
            yield undecided_verdict
            continue
        if {text for claim in modes for text in texts(claim.value)} != {"sync"}:
            yield passed(group[0].id)
            continue
        counts = [(claims[0], _device_count(claims[0])) for _, claims in visible_claims]
        least, most = min(counts, key=lambda pair: pair[1]), max(counts, key=lambda pair: pair[1])
        if least[1] == most[1]:
            yield passed(group[0].id)
        else:
            yield failed(
                group[0].id,
                f"{quoted(least[0])} gives one trainer {least[1]} GPUs, {placed(most[0])} gives another {most[1]}, "
                f"and {placed(modes[0])} updates synchronously: all wait for the trainer with fewer.",
                at=least[0],
                also=((most[0], "more GPUs"), (modes[0], "synchronous")),
                remedy="Give the trainers the same number of GPUs, or update asynchronously.",
            )


def _device_count(claim: Claim) -> int:
    text = (texts(claim.value) or ("",))[0]
    return len([part for part in text.split(",") if part.strip()])


#: Modes of special servers, which update asynchronously.
_MODE_ALIASES = {"gpubox": "async", "heter": "async"}


@rule(
    "SGD002", "update-mode-said-twice", severity=Severity.INFO, otherwise="no configuration sets the update mode twice"
)
def update_mode_said_twice(job: Job) -> Iterator[Verdict]:
    """Two places in one configuration set different update modes.

    What it checks: The update modes that one file gives (`sync_mode`, `strategy`, `distribute_strategy`) agree.

    Why it matters: Only runner.sync_mode is read: a change of the other key has no effect.

    Example: `runner.sync_mode: async` and `hyper_parameters.optimizer.strategy: sync`.

    Fix: Write the same mode in both places, or only one.

    Known limits: Modes in different files are not compared.
    """
    seen_paths: set[str] = set()
    for subject, scope, _ in subjects(job):
        by_file: dict[str, list[Claim]] = {}
        for claim in job.about("ps_update_mode", scope):
            if claim.source == "paddlerec":
                by_file.setdefault(claim.span.path, []).append(claim)
        for path, claims in by_file.items():
            if len(claims) < 2 or path in seen_paths:
                continue
            seen_paths.add(path)
            verdict = undecided(subject, claims)
            modes = [tuple(_MODE_ALIASES.get(text, text) for text in texts(claim.value)) for claim in claims]
            if verdict is None and len(set(modes)) > 1:
                other = next(claim for claim, mode in zip(claims, modes, strict=True) if mode != modes[0])
                verdict = failed(
                    subject,
                    f"{quoted(other)} has no effect, because {placed(claims[0])} sets the update mode.",
                    at=other,
                    also=((claims[0], "the effective mode"),),
                    remedy="Set the same mode in both places.",
                )
            yield verdict or passed(subject)


@rule(
    "SGD003",
    "asynchronous-updates-without-servers",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no script sets a_sync",
    profile="pedantic",
)
def asynchronous_updates_without_servers(job: Job) -> Iterator[Verdict]:
    """A collective job requests asynchronous updates.

    What it checks: A script that initializes fleet as collective does not set `strategy.a_sync = True`, and a
    transpiler in nccl2 mode is not given `sync_mode=False`.

    Why it matters: Only parameter servers update asynchronously. A collective job ignores the switch: every step waits
    for the slowest rank, which asynchronous updates would avoid.

    Example: `fleet.init(is_collective=True)` and `strategy.a_sync = True`.

    Fix: Remove `a_sync`, or start parameter servers.

    Known limits: A script that decides between the two at run time is not judged.
    """
    for subject, _, claim in distinct_claims(job, "nccl2_update_mode"):
        if isinstance(claim.value, Unresolved):
            yield unknown(subject, f"{quoted(claim)} is unknown: {claim.value.why}", at=claim)
        elif texts(claim.value) == ("async",):
            yield failed(
                subject,
                f"{quoted(claim)} has no effect in nccl2 mode ({placed(claim.because[0])}): every step waits for all"
                " trainers.",
                at=claim,
                also=((claim.because[0], "nccl2 mode"),),
                remedy="Remove it, or use pserver mode, which updates asynchronously.",
            )
        else:
            yield passed(subject)
    for subject, scope, claim in distinct_claims(job, "ps_update_mode"):
        if not claim.span.path.endswith(".py") or "a_sync" not in claim.spelling:
            continue
        modes = job.about("ps_mode", scope)
        undecided_verdict = undecided(subject, (claim, *modes))
        is_asynchronous = bool(texts(claim.value)) and "sync" not in texts(claim.value)
        if undecided_verdict is not None or not modes:
            yield undecided_verdict or unknown(
                subject, f"{quoted(claim)}: the files do not show whether there are servers", at=claim
            )
        elif is_asynchronous and all(mode.alternatives == (False,) for mode in modes):
            yield failed(
                subject,
                f"{quoted(claim)} has no effect in the collective job of {placed(modes[0])}: every step waits for all"
                " ranks.",
                at=claim,
                also=((modes[0], "collective"),),
                remedy="Remove it, or start parameter servers.",
            )
        else:
            yield passed(subject)


@rule("SGD004", "geo-steps-set-back", severity=Severity.WARNING, otherwise="no script sets k_steps")
def geo_steps_set_back(job: Job) -> Iterator[Verdict]:
    """`k_steps` is set before `a_sync`, which resets it to 0.

    What it checks: `strategy.a_sync_configs = {"k_steps": n}` comes after `strategy.a_sync = ...`.

    Why it matters: Setting `a_sync` replaces the configuration by `{"k_steps": 0}`. The job trains asynchronously with
    an exchange at every step instead of Geo-SGD's one in n: many times the traffic, and a different algorithm.

    Example: `strategy.a_sync_configs = {"k_steps": 100}` and then `strategy.a_sync = True`.

    Fix: Set `a_sync` first.

    Known limits: Only assignments in the same function are compared.
    """
    lost_configs = list(distinct_claims(job, "a_sync_configs_lost"))
    for subject, _, claim in lost_configs:
        reset = claim.because[0]
        yield failed(
            subject,
            f"{quoted(claim)} is lost: {placed(reset)} resets k_steps to 0 afterwards.",
            at=claim,
            also=((reset, "sets k_steps to 0"),),
            remedy="Assign a_sync_configs after a_sync.",
        )
    if not lost_configs:
        yield from _geo_steps_verdicts(job)


def _geo_steps_verdicts(job: Job) -> Iterator[Verdict]:
    """Yield passed for each number of Geo-SGD's steps, or unknown if the number or the mode is unresolved."""
    for subject, scope, claim in distinct_claims(job, "geo_steps"):
        modes = job.about("setting.paddle.a_sync", scope)
        yield undecided(subject, (claim, *modes)) or passed(subject)


@rule(
    "SGD005",
    "asynchronous-with-one-trainer",
    severity=Severity.INFO,
    otherwise="no file gives both the number of trainers and the update mode",
    profile="pedantic",
    each=subjects_with(lambda job, scope: job.value_claims("ps_workers", scope), _mode_claims),
)
def asynchronous_with_one_trainer(question: SubjectQuestion) -> Verdict | None:
    """Servers update asynchronously for a single trainer.

    What it checks: A job with asynchronous or geo updates has two trainers or more.

    Why it matters: A single trainer does not wait for others anyway: the servers only add transfers to local training.

    Example: `fleetrun --server_num=1 --worker_num=1 train.py` with `a_sync = True`.

    Fix: Train without servers, or start more trainers.

    Known limits: A single trainer may be a trial run, so this is a hint only.
    """
    counts, modes = question.of
    mode_names = {text for claim in modes for text in texts(claim.value)}
    if not mode_names or not mode_names <= {"async", "half-async", "geo"} or set(numbers(job_value(counts))) != {1}:
        return None
    return failed(
        question.subject,
        f"{quoted(counts[0])}: there is one trainer, but {placed(modes[0])} requests {joined(sorted(mode_names))}"
        " updates.",
        at=counts[0],
        also=((modes[0], "asynchronous"),),
        remedy="Start more trainers, or train without servers.",
    )


@rule(
    "SGD006",
    "geo-steps-in-synchronous-mode",
    severity=Severity.ERROR,
    profile="default",
    otherwise="no script sets k_steps",
)
def geo_steps_in_synchronous_mode(job: Job) -> Iterator[Verdict]:
    """`k_steps` is above 0 while `a_sync` is False.

    What it checks: If a script sets `strategy.a_sync = False`, `k_steps` of `a_sync_configs` is 0.

    Why it matters: Fleet knows three modes: synchronous without steps, asynchronous without steps, and Geo-SGD with
    both. For the fourth combination `minimize` raises "k_steps must be invalid value" on every server and trainer.

    Example: `strategy.a_sync = False` and `strategy.a_sync_configs = {"k_steps": 100}`.

    Fix: `strategy.a_sync = True` for Geo-SGD, or no `k_steps`.

    Known limits: Only a script that runs with parameter servers is reported, and only assignments in the same function
    are compared.
    """
    refusals = list(distinct_claims(job, "geo_steps_refused"))
    for subject, _, claim in refusals:
        switch = claim.because[0]
        yield failed(
            subject,
            f"{quoted(claim)} needs `a_sync`, but {placed(switch)} disables it: Fleet stops in every process.",
            at=claim,
            also=((switch, "synchronous"),),
            remedy="Set a_sync to True for Geo-SGD, or remove k_steps.",
        )
    if not refusals:
        yield from _geo_steps_verdicts(job)


_MODES = ("sync", "async", "half-async", "geo", "heter", "gpubox")


@rule(
    "REC001",
    "update-mode-unknown",
    severity=Severity.ERROR,
    fix="unsafe",
    otherwise="no PaddleRec configuration sets an update mode",
    each=claims_about("ps_update_mode", where=lambda claim: claim.source == "paddlerec"),
)
def update_mode_unknown(question: SubjectQuestion) -> Verdict | None:
    """A PaddleRec configuration requests an update mode that PaddleRec does not have.

    What it checks: `runner.sync_mode`, `distribute_strategy` and the optimizer's `strategy` are sync, async,
    half_async, geo, heter or gpubox.

    Why it matters: The trainer stops when it builds its strategy, on every host, after the servers have started.

    Example: `sync_mode: "asycn"`.

    Fix: Write the mode that the finding names.

    Known limits: Which modes a model supports is unknown.
    """
    (claim,) = question.claims
    modes = texts(claim.value)
    if modes and not set(modes) & set(_MODES):
        similar = difflib.get_close_matches(modes[0], _MODES, 1, 0.6)
        return failed(
            question.subject,
            f"{quoted(claim)}: PaddleRec accepts only {', '.join(_MODES).replace('half-async', 'half_async')}.",
            at=claim,
            remedy=f"Write {similar[0].replace('-', '_')}." if similar else "Write one of them.",
            fix=make_fix(f"write {similar[0]}", replace_text(claim, modes[0], similar[0].replace("-", "_")), safe=False)
            if similar
            else None,
        )
    return None


@rule(
    "REC002",
    "runner-named-nowhere",
    severity=Severity.ERROR,
    applies_to="PaddleRec 1.8",
    otherwise="no PaddleRec configuration names its runners",
    each=claims_about("runner_mode", beside=("runner_names",)),
)
def runner_named_nowhere(question: SubjectQuestion) -> Verdict | None:
    """`mode` names a runner that the configuration does not have.

    What it checks: Every name in `mode` is the name of an entry of `runner`.

    Why it matters: PaddleRec finds no runner with that name and stops, on every host of the cluster.

    Example: `mode: [cluster_runner]` where `runner` only has `train_runner`.

    Fix: Correct the name in `mode`, or add the runner.

    Known limits: Names that a template fills in are unknown.
    """
    (mode,), runners = question.of
    names = {str(name) for value in runners[0].alternatives if isinstance(value, tuple) for name in value}
    mode_names = [str(name) for value in mode.alternatives if isinstance(value, tuple) for name in value]
    missing_name = next((name for name in mode_names if name not in names), None)
    if missing_name is None:
        return None
    return failed(
        question.subject,
        f"{quoted(mode)} names {missing_name}, but the runners are {', '.join(sorted(names))}.",
        at=mode,
        also=((runners[0], "the runners"),),
        remedy="Name one of the runners in `mode`.",
    )


@rule(
    "REC003",
    "runner-trains-locally",
    severity=Severity.WARNING,
    applies_to="PaddleRec 1.8",
    otherwise="no PaddleRec 1.8 runner is selected",
    each=claims_about("runner_class"),
)
def runner_trains_locally(question: SubjectQuestion) -> Verdict | None:
    """A runner has settings for distributed training but trains locally.

    What it checks: A runner with `fleet_mode` or `distribute_strategy` that `mode` selects has `class: cluster_train`.

    Why it matters: Any other class trains on one machine and reads neither setting: on a cluster every host trains its
    own model.

    Example: `class: train` with `fleet_mode: ps`.

    Fix: Write `class: cluster_train`.

    Known limits: A runner that `mode` does not name is not judged.
    """
    (runner_class,) = question.claims
    settings = question.of.job.about("runner_not_distributed", question.of.scope)
    misplaced = [claim for claim in settings if claim.span.path == runner_class.span.path]
    if misplaced and texts(runner_class.value) == ("train",):
        return failed(
            question.subject,
            f"{quoted(misplaced[0])} is for cluster training, but the runner is {placed(runner_class)}, which trains "
            "on one machine and ignores it.",
            at=runner_class,
            also=((misplaced[0], "not read"),),
            remedy="Write `class: cluster_train`.",
        )
    return None
