"""Fleet: what a script calls of it, and what its strategy says."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Confidence, Severity
from preflight_rules.reading import placed, quoted, subjects, texts

_STRATEGY = "https://github.com/PaddlePaddle/Paddle/tree/v2.6.2/python/paddle/distributed/fleet"


def once(job: Job, quantity: str) -> Iterator[tuple[str, Scope, Claim]]:
    """Every claim about a quantity with a launch it holds in, each place once."""
    seen: set[tuple[str, int, int]] = set()
    for subject, scope, _ in subjects(job):
        for claim in job.about(quantity, scope):
            key = (claim.span.path, claim.span.line, claim.span.column)
            if key not in seen:
                seen.add(key)
                yield subject, scope, claim


def started_by_hand(job: Job) -> bool:
    """Whether something other than Paddle's launcher starts servers and trainers."""
    return any(launch.launcher == "python" for launch in job.launches)


def _collective(job: Job, scope: Scope) -> bool | None:
    """Whether the job is collective; None where that is not known."""
    found = {value for claim in job.about("ps_mode", scope) for value in claim.alternatives}
    if found == {False}:
        return True
    return False if found == {True} else None


@rule(
    "PDL003",
    "fleet-optimizer-stays-local",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(f"{_STRATEGY}/fleet.py", "PaddlePaddle/Paddle#18533"),
)
def fleet_optimizer_stays_local(job: Job) -> Iterator[Verdict]:
    """A script initialises fleet and then minimizes with an optimizer that knows nothing of it.

    What it checks:
        A static-graph script that calls `fleet.init` and an optimizer's `minimize` also calls
        `fleet.distributed_optimizer`.

    Why it matters:
        Without it no gradient is exchanged: every rank trains a model of its own on its share of the data, and
        nothing says so.

    Example:
        `fleet.init(is_collective=True)` and `paddle.optimizer.SGD(0.1).minimize(loss)`.

    Fix:
        `optimizer = fleet.distributed_optimizer(optimizer, strategy)` before `minimize`.

    Known limits:
        Only optimizers and calls of one script are seen.

    Evidence:
        paddle/distributed/fleet/fleet.py of 2.6.2; PaddlePaddle/Paddle#18533.
    """
    met = False
    for subject, scope, calls in once(job, "fleet_calls"):
        names = {str(name) for value in calls.alternatives if isinstance(value, tuple) for name in value}
        here = [c for c in job.about("optimizer", scope) if c.span.path == calls.span.path and texts(c.value) != ("",)]
        if "init" not in names or not here:
            continue
        met = True
        if names & {"distributed_optimizer", "DistributedOptimizer", "distributed_model", "minimize", "util"}:
            yield passed(subject)
        elif here[0].condition:
            yield unknown(subject, f"{quoted(here[0])} holds under `{here[0].condition}`", at=here[0])
        else:
            yield failed(
                subject,
                f"{quoted(here[0])} is minimized without fleet.distributed_optimizer, although {placed(calls)} starts"
                " fleet: no gradient is exchanged.",
                at=here[0],
                also=((calls, "starts fleet"),),
                remedy="Wrap it: `optimizer = fleet.distributed_optimizer(optimizer)`.",
            )
    if not met:
        yield not_applicable(job.name, "no script starts fleet and minimizes")


#: What a script that calls the first has to call too, and what happens otherwise.
_LIFE = (
    ("init_server", "run_server", "the server returns at once, and the trainers find nobody"),
    ("init_server", "init_worker", "trainers never fetch the first parameters nor start their communicator"),
    ("init_worker", "stop_worker", "the servers wait for ever, and keep their hosts, when training has ended"),
)


@rule(
    "PDL005",
    "fleet-role-not-seen-through",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(f"{_STRATEGY}/fleet.py", "PaddlePaddle/Paddle#17985", "PaddlePaddle/Paddle#8662"),
)
def fleet_role_not_seen_through(job: Job) -> Iterator[Verdict]:
    """A parameter-server script leaves out a step in the life of its servers or trainers.

    What it checks:
        A script that calls one of init_server, run_server, init_worker and stop_worker calls the one that has to
        follow or precede it.

    Why it matters:
        Without run_server nobody serves; without init_worker trainers start with parameters of their own; without
        stop_worker the servers never end.

    Example:
        `fleet.init_server()` without `fleet.run_server()`.

    Fix:
        Servers: `init_server()`, `run_server()`. Trainers: `init_worker()`, training, `stop_worker()`.

    Known limits:
        Calls in another file are not seen; a script that only prints its program, or infers, may leave out some. A
        missing stop_worker is a hint only where nothing says that the processes are started by hand.

    Evidence:
        paddle/distributed/fleet/fleet.py of 2.6.2; PaddlePaddle/Paddle#17985 and #8662.
    """
    met = False
    for subject, _, calls in once(job, "fleet_calls"):
        names = {str(name) for value in calls.alternatives if isinstance(value, tuple) for name in value}
        if not names & {"init_server", "run_server", "init_worker"} or not names & {"init", "is_server", "is_worker"}:
            continue
        met = True
        # Who never asks for workers hands training to something else that starts them.
        workers = names & {"is_worker", "init_worker", "stop_worker", "is_first_worker"}
        missing = next(
            (
                step
                for step in _LIFE
                if step[0] in names and step[1] not in names and (workers or step[1] != "init_worker")
            ),
            None,
        )
        if missing is None:
            yield passed(subject)
        elif calls.condition:
            yield unknown(subject, f"{quoted(calls)} holds under `{calls.condition}`", at=calls)
        else:
            yield failed(
                subject,
                f"{quoted(calls)}: the script calls fleet.{missing[0]} and never fleet.{missing[1]}; {missing[2]}.",
                at=calls,
                remedy=f"Call fleet.{missing[1]}() as well.",
                # Paddle's own launcher ends the servers when all trainers have ended.
                severity=None if missing[1] != "stop_worker" or started_by_hand(job) else Severity.INFO,
            )
    if not met:
        yield not_applicable(job.name, "no script runs servers or trainers of fleet")


#: The inner optimizers that a switch of the strategy works with; for any other Fleet drops it.
_WORKS_WITH = {
    "dgc": ("Momentum",),
    "lars": ("Momentum",),
    "lamb": ("Adam",),
    "localsgd": ("SGD", "Momentum"),
    "adaptive_localsgd": ("SGD", "Momentum"),
}
#: Switches of collective training; servers know none of them.
_COLLECTIVE_ONLY = (*_WORKS_WITH, "sharding", "gradient_merge", "recompute", "fp16_allreduce")


@rule(
    "PDL007",
    "fleet-switch-without-effect",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(f"{_STRATEGY}/meta_optimizers",),
)
def fleet_switch_without_effect(job: Job) -> Iterator[Verdict]:
    """A switch of DistributedStrategy that Fleet drops without stopping.

    What it checks:
        `dgc` and `lars` go with a Momentum optimizer, `lamb` with Adam, `localsgd` with SGD or Momentum; and none of
        the switches of collective training is set in a parameter-server job.

    Why it matters:
        Fleet leaves a switch out that does not fit, with a line in the log at most: the run trains without the
        compression, scaling or sharding it was planned with.

    Example:
        `strategy.dgc = True` and `paddle.optimizer.Adam(...)`.

    Fix:
        Take the optimizer that the switch needs, or leave the switch out.

    Known limits:
        Static graph only; the optimizer is known where the script itself makes it and calls minimize.

    Evidence:
        paddle/distributed/fleet/meta_optimizers of 2.6.2 (`_can_apply`).
    """
    met = False
    for subject, scope, switch in once(job, "fleet_switch"):
        name = (texts(switch.value) or ("",))[0]
        optimizers = [c for c in job.about("optimizer", scope) if texts(c.value) != ("",)]
        collective = _collective(job, scope)
        if name not in _COLLECTIVE_ONLY:
            continue
        met = True
        fitting = _WORKS_WITH.get(name, ())
        made = {text for claim in optimizers for text in texts(claim.value)}
        if switch.condition or (collective is None and not (fitting and made)):
            yield unknown(subject, f"{quoted(switch)}: nothing says what it works on", at=switch)
        elif collective is False:
            reason = next(c for c in job.about("ps_mode", scope) if True in c.alternatives)
            yield failed(
                subject,
                f"{quoted(switch)} is for collective training and has no effect with the parameter servers of"
                f" {placed(reason)}.",
                at=switch,
                also=((reason, "parameter servers"),),
                remedy="Leave it out, or call `fleet.init(is_collective=True)`.",
            )
        elif fitting and made and not made & set(fitting):
            yield failed(
                subject,
                f"{quoted(switch)} works with {' or '.join(fitting)} only; for {placed(optimizers[0])} Fleet drops it.",
                at=switch,
                also=((optimizers[0], "the optimizer"),),
                remedy=f"Use {fitting[0]}, or leave `{name}` out.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no strategy is switched to anything that depends on the optimizer")


@rule(
    "PDL010",
    "stream-dataset-cannot-shuffle",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://github.com/PaddlePaddle/Paddle/blob/v1.8.5/python/paddle/fluid/dataset.py",),
)
def stream_dataset_cannot_shuffle(job: Job) -> Iterator[Verdict]:
    """A QueueDataset is told to shuffle.

    What it checks:
        local_shuffle and global_shuffle are not called on a QueueDataset, which `create_dataset()` makes when no
        class is named.

    Why it matters:
        A QueueDataset streams its files and holds no samples. The call raises NotImplementedError, on every trainer,
        after the servers have started.

    Example:
        `dataset = fluid.DatasetFactory().create_dataset()` and `dataset.local_shuffle()`.

    Fix:
        Use InMemoryDataset and load_into_memory, or shuffle the files beforehand.

    Known limits:
        Only a data set that the script makes itself is known.

    Evidence:
        fluid/dataset.py of 1.8.5 (QueueDataset).
    """
    met = False
    for subject, _, claim in once(job, "stream_dataset_shuffled"):
        met = True
        if claim.condition:
            yield unknown(subject, f"{quoted(claim)} holds under `{claim.condition}`", at=claim)
            continue
        yield failed(
            subject,
            f"{quoted(claim)} is called on a QueueDataset, which cannot shuffle: it raises NotImplementedError.",
            at=claim,
            remedy='Make an InMemoryDataset (`create_dataset("InMemoryDataset")`) and load_into_memory() first.',
        )
    if not met:
        made = any(True for _ in once(job, "dataset_files_shared"))
        yield passed(job.name) if made else not_applicable(job.name, "no data set of Paddle is shuffled")


@rule(
    "PDL011",
    "every-trainer-reads-all-files",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    evidence=("PaddlePaddle/Paddle#18956", "PaddlePaddle/Paddle#18641"),
)
def every_trainer_reads_all_files(job: Job) -> Iterator[Verdict]:
    """Each trainer of a parameter-server job is given the whole list of files.

    What it checks:
        A script that passes a folder's files to `set_filelist` divides them: by fleet.util.get_file_shard,
        split_files, or the trainer's index.

    Why it matters:
        Every trainer then trains on every sample: an epoch costs as many times more as there are trainers, and the
        model sees each sample as often.

    Example:
        `dataset.set_filelist(os.listdir("data"))`.

    Fix:
        `dataset.set_filelist(fleet.util.get_file_shard(files))`.

    Known limits:
        Where each host holds files of its own, the script is right as it is; this is a hint only.

    Evidence:
        PaddlePaddle/Paddle#18956, PaddlePaddle/Paddle#18641.
    """
    met = False
    for subject, scope, claim in once(job, "dataset_files_shared"):
        servers = job.about("ps_mode", scope) or job.about("fleet_calls", scope)
        if not servers:
            continue
        met = True
        if claim.alternatives == (True,):
            yield passed(subject)
        elif _collective(job, scope) is None and not job.about("fleet_calls", scope):
            yield unknown(subject, f"{quoted(claim)}: nothing says how many trainers read it", at=claim)
        else:
            yield failed(
                subject,
                f"{quoted(claim)} is the same list for every trainer, and nothing divides it.",
                at=claim,
                also=((servers[0], "several trainers"),),
                remedy="Divide it: `fleet.util.get_file_shard(files)`."
                if claim.span.path.endswith(".py")
                else "Set it to True.",
            )
    if not met:
        yield not_applicable(job.name, "no script of several trainers lists files")
