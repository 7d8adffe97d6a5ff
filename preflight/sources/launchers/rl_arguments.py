"""Claims from the arguments of programs that start ranks over Ray and take no configuration: OpenRLHF and slime.

Sources: openrlhf/cli/train_ppo_ray.py (OpenRLHF 0.4 to 0.10; `--actor_num_nodes`, since 0.10 `--actor.num_nodes`) and
slime/utils/arguments.py (slime 0.2). Both sum the GPUs of their groups, unless the groups share them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from preflight.model.job import Claim, Known, Plain, Strength, Value, as_int, lift
from preflight.sources.base import LaunchLine, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import ScannedLine, Table, scan, table


@dataclass(frozen=True, slots=True)
class _Group:
    """Ranks or engines of one role: nodes times GPUs per node, with the program's defaults."""

    role: str
    nodes: str
    gpus: str


@dataclass(frozen=True, slots=True)
class ArgumentFramework:
    """One framework that is configured by arguments.

    Args:
        programs: regular expression of its modules and scripts, with dots for slashes.
        table: its options.
        needs: options that identify the framework; without them a program of that name is a different one.
        groups: the roles, the trained one first.
        numbers: quantity by option.
        defaults: the values of missing options.
        own: modules of the framework's own program, whose options are judged one by one.
    """

    name: str
    programs: str
    table: Table
    needs: tuple[str, ...]
    groups: tuple[_Group, ...]
    numbers: dict[str, str]
    switches: dict[str, str]
    defaults: dict[str, int]
    own: tuple[str, ...] = ()


def _spellings(*names: str) -> str:
    """Each name as `--a_b`, `--a-b`; a dot in it is the newer spelling `--a.b`."""
    found = []
    for name in names:
        flat = name.replace(".", "_")
        found += [f"--{flat}", f"--{flat.replace('_', '-')}", *([f"--{name}"] if "." in name else [])]
    return " ".join(dict.fromkeys(found))


_ROLES = ("actor", "ref", "critic", "reward")
OPEN_RLHF = ArgumentFramework(
    "openrlhf",
    r"openrlhf\.cli\.train_ppo_ray|(?:.*\.)?train_ppo_ray\w*",
    table(
        {
            **{f"{role}_num_nodes": _spellings(f"{role}.num_nodes") for role in _ROLES},
            **{f"{role}_num_gpus_per_node": _spellings(f"{role}.num_gpus_per_node") for role in _ROLES},
            "vllm_num_engines": _spellings("vllm.num_engines"),
            "vllm_tensor_parallel_size": _spellings("vllm.tensor_parallel_size"),
            "ds_tensor_parallel_size": _spellings("ds.tensor_parallel_size"),
            "ring_attn_size": _spellings("ds.ring_attn_size", "ring_attn_size"),
            "train_batch_size": _spellings("train.batch_size", "train_batch_size"),
            "micro_train_batch_size": _spellings("train.micro_batch_size", "micro_train_batch_size"),
            "rollout_batch_size": _spellings("rollout.batch_size"),
            "micro_rollout_batch_size": _spellings("rollout.micro_batch_size", "micro_rollout_batch_size"),
            "n_samples_per_prompt": _spellings("rollout.n_samples_per_prompt", "n_samples_per_prompt"),
        },
        {
            "colocate_all": _spellings("train.colocate_all", "colocate_all_models"),
            "colocate_actor_ref": _spellings("train.colocate_actor_ref", "colocate_actor_ref"),
            "async": _spellings("train.async_enable", "async_train"),
        },
        abbreviations=False,
        interleaved=True,
    ),
    (),
    tuple(_Group(role, f"{role}_num_nodes", f"{role}_num_gpus_per_node") for role in _ROLES),
    {
        "vllm_num_engines": "rollout_engines",
        "vllm_tensor_parallel_size": "rollout_tensor_parallel_size",
        "ds_tensor_parallel_size": "tensor_parallel_size",
        "ring_attn_size": "context_parallel_size",
        "train_batch_size": "train_batch_size",
        "micro_train_batch_size": "micro_batch_size_per_gpu",
        "rollout_batch_size": "prompts_per_step",
        "micro_rollout_batch_size": "score_micro_batch_size_per_gpu",
        "n_samples_per_prompt": "responses_per_prompt",
    },
    {"colocate_all": "colocated"},
    {"actor_num_nodes": 1, "actor_num_gpus_per_node": 8},
    ("openrlhf.cli.train_ppo_ray",),
)
SLIME = ArgumentFramework(
    "slime",
    r"(?:.*\.)?train(?:_async)?|slime\.\S*",
    table(
        {
            "actor_num_nodes": "--actor-num-nodes",
            "actor_num_gpus_per_node": "--actor-num-gpus-per-node",
            "rollout_num_gpus": "--rollout-num-gpus",
            "rollout_num_gpus_per_engine": "--rollout-num-gpus-per-engine",
            "rollout_batch_size": "--rollout-batch-size",
            "n_samples_per_prompt": "--n-samples-per-prompt",
        },
        {"colocate": "--colocate"},
        abbreviations=False,
        interleaved=True,
    ),
    ("actor_num_nodes", "actor_num_gpus_per_node"),
    (_Group("actor", "actor_num_nodes", "actor_num_gpus_per_node"),),
    {
        "rollout_num_gpus": "rollout_gpus",
        "rollout_num_gpus_per_engine": "rollout_tensor_parallel_size",
        "rollout_batch_size": "prompts_per_step",
        "n_samples_per_prompt": "responses_per_prompt",
    },
    {"colocate": "colocated"},
    {"actor_num_nodes": 1, "actor_num_gpus_per_node": 8},
)
ARGUMENT_FRAMEWORKS = (OPEN_RLHF, SLIME)


def argument_framework(program: str, words: Sequence[Word]) -> ArgumentFramework | None:
    """The framework whose program this is; None for any other."""
    name = program.removesuffix(".py").strip("./").replace("/", ".")
    for framework in ARGUMENT_FRAMEWORKS:
        if re.compile(framework.programs, re.DOTALL).fullmatch(name):
            scanned = scan(words, framework.table)
            if not framework.needs or any(scanned.last(need) is not None for need in framework.needs):
                return framework
    return None


def rl_claims(framework: ArgumentFramework, line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """The claims of the arguments of such a program, in the scope of the launch; groups of GPUs in the scopes of roles.

    Args:
        framework: the framework of the program.
        line: the launch line.
        words: the arguments; the first word is the program.
    """
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words[1:], framework.table)
    builder.add(
        "training_framework", Known(framework.name), words[0].span, words[0].spelling, strength=Strength.DEFAULT
    )
    for option, quantity in framework.numbers.items():
        builder.add_setting(quantity, scanned.last(option), as_int)
    for option, quantity in framework.switches.items():
        # In asynchronous training the groups share no GPUs, whatever the other options are.
        if scanned.last("async") is None:
            builder.add_setting(quantity, scanned.last(option))
    for group in framework.groups:
        _state_group(builder, framework, group, scanned, words[0])
    return tuple(builder.claims)


def _state_group(
    builder: ClaimBuilder, framework: ArgumentFramework, group: _Group, scanned: ScannedLine, word: Word
) -> None:
    """State a role's nodes and GPUs; those of the trained role are the launch's own."""
    is_first = group is framework.groups[0]
    scope = builder.scope if is_first else replace(builder.scope, role=group.role)
    sides = list(_sides(builder, framework, group, scanned, word))
    if len(sides) < 2:
        return
    claims: list[Claim] = []
    for quantity, value, span_of, spelling, strength in sides:
        claims.append(builder.add(quantity, value, span_of.span, spelling, strength=strength, scope=scope))
    world = lift(_product, claims[0].value, claims[1].value)
    spelling = f"{claims[0].spelling} x {claims[1].spelling}"
    builder.add(
        "world_size",
        world,
        claims[1].span,
        spelling,
        strength=max(claim.strength for claim in claims),
        scope=scope,
        because=tuple(claims),
    )


def _sides(
    builder: ClaimBuilder, framework: ArgumentFramework, group: _Group, scanned: ScannedLine, word: Word
) -> Iterator[tuple[str, Value, Word, str, Strength]]:
    for quantity, option in (("nodes", group.nodes), ("processes_per_node", group.gpus)):
        given = scanned.last(option)
        if given is not None:
            place = replace(word, span=given.span)
            yield quantity, as_int(given.value), place, given.spelling, Strength.FLAG
        elif option in framework.defaults and not scanned.incomplete:
            shown = f"{word.spelling} (without --{option})"
            yield quantity, Known(framework.defaults[option]), word, shown, Strength.DEFAULT


def _product(nodes: Plain, gpus: Plain) -> Plain:
    if not isinstance(nodes, int) or not isinstance(gpus, int):
        raise ValueError("no numbers")
    return nodes * gpus
