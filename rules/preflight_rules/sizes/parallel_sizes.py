"""Parallel sizes against the shape of the model and of the nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from preflight.job import Claim, Job, Launch, Scope
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Severity
from preflight_rules.reading import job_value, numbers, placed, quoted, subjects, undecided

#: Whose sizes are held against each other: within one command line, or one configuration.
_SOURCES = ("arguments", "gpt-neox", "lightning")
_MEGATRON = frozenset(
    ("--num-layers", "--hidden-size", "--num-attention-heads", "--seq-length", "--tensor-model-parallel-size")
)
#: Of these, one of each kind tells as much.
_SPLITS = frozenset(("--tensor-model-parallel-size", "--pipeline-model-parallel-size"))
_BATCHES = frozenset(("--micro-batch-size", "--global-batch-size"))
#: With one of these the layers are handed out otherwise than evenly.
_UNEVEN = (
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--num-layers-in-first-pipeline-stage",
    "--num-layers-in-last-pipeline-stage",
    "--account-for-embedding-in-pipeline-split",
    "--account-for-loss-in-pipeline-split",
    "--pipeline-model-parallel-layout",
    "--pipeline-model-parallel-split-rank",
    "--encoder-num-layers",
    "--use-legacy-models",
    "--yaml-cfg",
    "--custom-pipeline-layers",
    # DeepSpeed's pipeline engine weighs layers itself.
    "--deepspeed",
    "--deepspeed_config",
    "--pp-partition-method",
)
#: What makes a place one that gives a shape.
_SHAPE = ("num_layers", "hidden_size", "attention_heads", "tensor_parallel_size")


def is_megatron(launch: Launch) -> bool:
    """Whether a command line has several of Megatron-LM's own options; one alone may be anybody's."""
    found = {word.partition("=")[0] for word in launch.arguments if word is not None}
    return len(found & _MEGATRON) >= 2 or bool(found & _SPLITS and found & _BATCHES)


@dataclass(frozen=True, slots=True)
class Setup:
    """One place that gives a model's shape: a Megatron launch, or a gpt-neox configuration."""

    job: Job
    subject: str
    scope: Scope
    launch: Launch | None
    source: str

    def claims(self, quantity: str) -> tuple[Claim, ...]:
        """What this place says of a quantity."""
        return tuple(c for c in self.job.setting(quantity, self.scope) if c.source == self.source)

    def number(self, quantity: str) -> int | None:
        """The one value it gives; None where it gives none, several, or an unresolved one."""
        found = self.claims(quantity)
        values = numbers(job_value(found)) if found else ()
        return values[0] if len(values) == 1 and values[0] > 0 else None

    def has(self, *options: str) -> bool:
        """Whether the command line has one of these options."""
        words = self.launch.arguments if self.launch is not None else ()
        return any(word is not None and word.partition("=")[0] in options for word in words)

    @property
    def hidden(self) -> bool:
        """Whether an unresolved argument may hold further options."""
        words = self.launch.arguments if self.launch is not None else ()
        return any(
            word is None and (before is None or not before.startswith("--") or "=" in before)
            for before, word in zip(("", *words), words, strict=False)
        )


def setups(job: Job) -> Iterator[Setup]:
    """Every place that gives a model's shape."""
    seen: set[tuple[str, int]] = set()
    named = [name for name in _SHAPE if job.about(name)]
    for subject, scope, launch in subjects(job) if named else ():
        for source in _SOURCES:
            setup = Setup(job, subject, scope, launch, source)
            shape = next((found for name in named if (found := setup.claims(name))), ())
            if not shape or (source == "arguments" and (launch is None or not is_megatron(launch))):
                continue
            key = (shape[0].span.path, shape[0].span.line)
            if source == "arguments" or key not in seen:
                seen.add(key)
                yield setup


@dataclass(frozen=True, slots=True)
class Demand:
    """`whole` must be a multiple of `part`; `applies` says where."""

    whole: str
    part: str
    why: str
    error: bool
    applies: Callable[[Setup], bool] = lambda setup: True


_DEMANDS = (
    Demand("hidden_size", "attention_heads", "each head gets an equal part of the width", error=True,
           applies=lambda s: s.source == "arguments" and not s.has("--kv-channels")),
    Demand("attention_heads", "tensor_parallel_size", "each rank holds as many heads", error=True),
    Demand("ffn_hidden_size", "tensor_parallel_size", "each rank holds an equal part of the feed-forward width",
           error=True),
    Demand("query_groups", "tensor_parallel_size", "each rank holds as many groups", error=False,
           applies=lambda s: (s.number("query_groups") or 0) >= (s.number("tensor_parallel_size") or 1)),
    Demand("attention_heads", "query_groups", "each group has as many heads", error=True),
    Demand("num_experts", "expert_parallel_size", "each rank holds as many experts", error=True),
    Demand("num_layers", "pipeline_parallel_size", "each stage holds as many layers", error=True,
           applies=lambda s: s.source == "arguments" and not s.has(*_UNEVEN)),
    Demand("sequence_length", "context_parallel_size", "each rank holds an equal part of the sequence", error=True),
)  # fmt: skip


@rule(
    "PAR010",
    "model-not-divisible-by-parallel-size",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/arguments.py",
        "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/core/utils.py",
        "https://github.com/EleutherAI/gpt-neox/blob/main/megatron/neox_arguments/arguments.py",
    ),
)
def model_not_divisible_by_parallel_size(job: Job) -> Iterator[Verdict]:
    """A size of the model cannot be cut into as many parts as there are ranks for it.

    What it checks:
        For Megatron-LM and the configurations of gpt-neox and NeMo: heads, feed-forward width and query groups by
        tensor parallel size, layers by pipeline stages, experts by expert parallel size, sequence by context parallel
        size, width by heads, heads by query groups.

    Why it matters:
        Each rank must hold an equal part; Megatron-LM asserts it in every rank once all have started.

    Example:
        `--num-attention-heads 12 --tensor-model-parallel-size 8`.

    Fix:
        Choose a parallel size that divides the number.

    Known limits:
        Layers that are handed out unevenly on purpose, and gpt-neox's own partition of layers, are let be.

    Evidence:
        Megatron-LM, validate_args and core/utils.py (divide); gpt-neox, neox_arguments.
    """
    met = False
    for setup in setups(job):
        for demand in _DEMANDS:
            whole, part = setup.claims(demand.whole), setup.claims(demand.part)
            if not whole or not part or not demand.applies(setup):
                continue
            met = True
            open_end = undecided(setup.subject, (*whole, *part), setup.launch)
            wholes, parts = numbers(job_value(whole)), numbers(job_value(part))
            if open_end is not None:
                yield open_end
            elif wholes and parts and min((*wholes, *parts)) > 0 and all(w % p for w in wholes for p in parts):
                yield failed(
                    setup.subject,
                    f"{quoted(whole[0])} is no multiple of {placed(part[0])}, and {demand.why}.",
                    at=whole[0],
                    also=((part[0], "divides it"),),
                    remedy=f"Choose a number that divides {wholes[0]}, or another multiple of {parts[0]}.",
                    # NeMo's files are templates, whose numbers are overridden on the command line.
                    severity=None if demand.error and setup.source != "lightning" else Severity.WARNING,
                )
            else:
                yield passed(setup.subject)
    if not met:
        yield not_applicable(job.name, "no sizes of a model stand beside parallel sizes")


@rule(
    "PAR011",
    "tensor-parallel-across-nodes",
    severity=Severity.WARNING,
    evidence=(
        "https://docs.nvidia.com/megatron-core/developer-guide/latest/user-guide/features/tensor_parallel.html",
        "https://arxiv.org/abs/2104.04473",
    ),
)
def tensor_parallel_across_nodes(job: Job) -> Iterator[Verdict]:
    """The ranks that share one layer do not fit on one node.

    What it checks:
        For Megatron-LM's options, that the tensor parallel size is at most the ranks of a node.

    Why it matters:
        Tensor parallelism exchanges activations twice in every layer and waits for them. Over the network between
        nodes that is several times slower than over NVLink; a pipeline sends far less.

    Example:
        `--nproc_per_node=8` with `--tensor-model-parallel-size 16`.

    Fix:
        A tensor parallel size of at most the GPUs of a node, and more pipeline stages.

    Known limits:
        Machines whose NVLink spans nodes (NVL72) are right as they are.

    Evidence:
        Megatron-Core's guide; Narayanan et al., arXiv 2104.04473, section 3.2 (takeaway 1).
    """
    met = False
    for setup in setups(job):
        tensor = setup.claims("tensor_parallel_size")
        each = job.setting("processes_per_node", setup.scope)
        nodes = job.requiring("nodes", setup.scope) or job.setting("nodes", setup.scope)
        if not tensor or not each or setup.launch is None:
            continue
        met = True
        open_end = undecided(setup.subject, (*tensor, *each), setup.launch)
        sizes, ranks = numbers(job_value(tensor)), numbers(job_value(each))
        if open_end is not None:
            yield open_end
        elif sizes and ranks and min(sizes) > max(ranks) and max(numbers(job_value(nodes)) or (2,)) > 1:
            yield failed(
                setup.subject,
                f"{quoted(tensor[0])} spreads each layer over {min(sizes)} ranks, but {placed(each[0])} starts"
                f" {max(ranks)} on a node: every layer then waits for the network twice.",
                at=tensor[0],
                also=((each[0], "ranks of a node"),),
                remedy=f"Take at most {max(ranks)}, and more pipeline stages.",
            )
        else:
            yield passed(setup.subject)
    if not met:
        yield not_applicable(job.name, "no launch gives a tensor parallel size and the ranks of a node")


@rule(
    "PAR012",
    "connections-not-limited-to-one",
    severity=Severity.WARNING,
    evidence=(
        "https://github.com/NVIDIA/Megatron-LM/blob/core_r0.12.0/megatron/training/arguments.py",
        "NVIDIA/Megatron-LM#533",
    ),
)
def connections_not_limited_to_one(job: Job) -> Iterator[Verdict]:
    """Megatron-LM is to overlap tensor-parallel communication, and CUDA_DEVICE_MAX_CONNECTIONS is not 1.

    What it checks:
        A launch with a tensor parallel size above 1 and `--sequence-parallel` sets CUDA_DEVICE_MAX_CONNECTIONS, and
        sets it to 1.

    Why it matters:
        Megatron-LM asserts it at start on GPUs before Blackwell: only one connection makes kernels start in the
        order in which communication and computation overlap.

    Example:
        `export CUDA_DEVICE_MAX_CONNECTIONS=8` with `--tensor-model-parallel-size 4 --sequence-parallel`.

    Fix:
        `export CUDA_DEVICE_MAX_CONNECTIONS=1`.

    Known limits:
        Left out it may come from the container image; it is information then. Fully sharded training wants another
        value and is let be.

    Evidence:
        Megatron-LM, validate_args; NVIDIA/Megatron-LM#533.
    """
    met = False
    for setup in setups(job):
        tensor, split = setup.claims("tensor_parallel_size"), setup.claims("sequence_parallel")
        if not tensor or not split or setup.launch is None:
            continue
        if setup.has("--use-torch-fsdp2", "--use-megatron-fsdp", "--use-custom-fsdp"):
            continue
        met = True
        connections = job.setting("env.CUDA_DEVICE_MAX_CONNECTIONS", setup.scope)
        open_end = undecided(setup.subject, (*tensor, *connections), setup.launch)
        if open_end is not None:
            yield open_end
            continue
        values = numbers(job_value(connections)) if connections else ()
        if max(numbers(job_value(tensor)) or (1,)) <= 1 or (values and set(values) == {1}):
            yield passed(setup.subject)
            continue
        shown = f"{quoted(connections[0])} sets it otherwise" if connections else "nothing here sets it"
        yield failed(
            setup.subject,
            f"{quoted(tensor[0])} with {quoted(split[0])} needs CUDA_DEVICE_MAX_CONNECTIONS=1, and {shown}.",
            at=connections[0] if connections else tensor[0],
            also=((split[0], "needs it"),),
            remedy="Put `export CUDA_DEVICE_MAX_CONNECTIONS=1` before the launch.",
            severity=None if connections else Severity.INFO,
        )
    if not met:
        yield not_applicable(job.name, "no launch overlaps tensor-parallel communication")
