"""Preflight's own rules: each judges a job from its claims alone.

`PACK` only names them; nothing is imported before the catalog asks, so a run that selects nothing costs nothing.
"""

PACK: tuple[str, ...] = (
    "preflight_rules.inputs:input_unreadable",
    "preflight_rules.inputs:input_malformed",
    "preflight_rules.world:launch_size_disagreement",
    "preflight_rules.world:launch_size_exceeds_bound",
    "preflight_rules.slurm:launcher_started_more_than_once_per_node",
    "preflight_rules.slurm:one_task_for_several_gpus",
    "preflight_rules.slurm:multi_node_launcher_on_first_node_only",
    "preflight_rules.rendezvous:rendezvous_on_loopback",
    "preflight_rules.rendezvous:rendezvous_address_differs_per_node",
    "preflight_rules.rendezvous:node_rank_same_on_every_node",
    "preflight_rules.siblings:rendezvous_differs_between_launches",
    "preflight_rules.siblings:node_rank_twice_or_missing",
    "preflight_rules.conflicts:standalone_on_several_nodes",
    "preflight_rules.conflicts:rendezvous_argument_ignored",
)
