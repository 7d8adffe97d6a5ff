"""Launch scripts that come with Paddle models: `python finetune_launch.py --node_ips ... --node_id 0 train.py`.

Source: the argument groups of finetune_launch.py, pretrain_launch.py and lanch.py in PaddlePaddle/ERNIE, tags 1.0 to
2.3. They set PADDLE_TRAINER_ID from `--node_id` and start the ranks of one node as Paddle's own launcher does, so their
launches have the launcher `paddle`.
"""

from __future__ import annotations

from preflight.model.job import Relation, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder, as_strings, count_of, first_of, option_setting
from preflight.sources.launchers.option_parser import known_prefix, scan, table
from preflight.sources.launchers.paddle import device_count, state_address
from preflight.sources.launchers.started_program import read_program

_OPTIONS = table(
    {
        "node_ips": "--node_ips --cluster_node_ips",
        "node_id": "--node_id",
        "print_config": "--print_config",
        "current_node_ip": "--current_node_ip --node_ip",
        "split_log_path": "--split_log_path",
        "log_prefix": "--log_prefix",
        "nproc_per_node": "--nproc_per_node",
        "selected_gpus": "--selected_gpus",
        "started_port": "--started_port",
    },
    {"help": "-h --help"},
)
#: Options that only such a script has; one of them distinguishes it from a training script.
_OWN_OPTIONS = ("--node_ips", "--cluster_node_ips")


class PaddleWrapperReader:
    """Reads the command line of such a script."""

    name: str = "paddle"
    names: tuple[str, ...] = ("finetune_launch.py", "pretrain_launch.py", "lanch.py")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, processes per node, the node rank, and the program."""
        scanned = scan(line.words[1:], _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(line, self.name, scanned.rest, tree)
        ips = option_setting(scanned.last("node_ips"))
        builder.add_setting("hosts", ips, as_strings)
        builder.add_setting("nodes", ips, lambda value: count_of(as_strings(value)), relation=Relation.REQUIRES)
        builder.add_setting("master_addr", ips, lambda value: lift(first_of, as_strings(value)))
        rank = option_setting(scanned.last("node_id"))
        builder.add_setting("node_rank", rank, as_int)
        state_address(builder, option_setting(scanned.last("current_node_ip")), ips, numbered=rank is not None)
        builder.add_setting("master_port", option_setting(scanned.last("started_port")), as_int)
        processes = option_setting(scanned.last("nproc_per_node"))
        if processes is not None:
            builder.add_setting("processes_per_node", processes, as_int)
        else:
            builder.add_setting("processes_per_node", option_setting(scanned.last("selected_gpus")), device_count)
        return Reading(
            claims=(*builder.claims, *program.claims),
            launches=(program.launch,),
            references=program.references,
        )


def is_wrapper(words: tuple[Word, ...]) -> bool:
    """Whether a script, whatever its name, is called with the options of such a launcher followed by another script."""
    texts = [known_prefix(word) for word in words[1:40]]
    own = next((index for index, text in enumerate(texts) if text.partition("=")[0] in _OWN_OPTIONS), None)
    return own is not None and any(text.endswith(".py") for text in texts[own + 1 :])
