"""Launch scripts that come with models of Paddle: `python finetune_launch.py --node_ips ... --node_id 0 train.py`.

Source: the argument groups of finetune_launch.py, pretrain_launch.py and lanch.py in PaddlePaddle/ERNIE, tags
1.0 to 2.3. They set PADDLE_TRAINER_ID from `--node_id` and start the ranks of one node, as Paddle's own launcher
does, and so their launches count as that one's.
"""

from __future__ import annotations

from preflight.job import Relation, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree, Word
from preflight.sources.launchers.options import head, scan, table
from preflight.sources.launchers.paddle import device_count, state_address
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_strings, count_of, first_of, said

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
#: Options that only such a script takes; one of them tells it from a training script.
_OWN = ("--node_ips", "--cluster_node_ips")


class PaddleWrapperReader:
    """Reads the line of such a script."""

    name: str = "paddle"
    names: tuple[str, ...] = ("finetune_launch.py", "pretrain_launch.py", "lanch.py")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, processes of a node, the node's rank, and the program."""
        scanned = scan(line.words[1:], _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        stating = Stating(self.name, line.scope, line.command.condition)
        program = started(line, self.name, scanned.rest, tree)
        ips = said(scanned.last("node_ips"))
        stating.given("hosts", ips, as_strings)
        stating.given("nodes", ips, lambda value: count_of(as_strings(value)), relation=Relation.REQUIRES)
        stating.given("master_addr", ips, lambda value: lift(first_of, as_strings(value)))
        rank = said(scanned.last("node_id"))
        stating.given("node_rank", rank, as_int)
        state_address(stating, said(scanned.last("current_node_ip")), ips, numbered=rank is not None)
        stating.given("master_port", said(scanned.last("started_port")), as_int)
        processes = said(scanned.last("nproc_per_node"))
        if processes is not None:
            stating.given("processes_per_node", processes, as_int)
        else:
            stating.given("processes_per_node", said(scanned.last("selected_gpus")), device_count)
        return Reading(
            claims=(*stating.claims, *program.claims),
            launches=(program.launch,),
            references=program.references,
        )


def is_wrapper(words: tuple[Word, ...]) -> bool:
    """Whether a script's own options are those of such a launcher, whatever its name; a script stands behind them."""
    texts = [head(word) for word in words[1:40]]
    own = next((index for index, text in enumerate(texts) if text.partition("=")[0] in _OWN), None)
    return own is not None and any(text.endswith(".py") for text in texts[own + 1 :])
