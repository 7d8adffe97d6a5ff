"""The launch scripts of MXNet and DGL, both called `tools/launch.py`: they start workers and servers on the hosts of a
file, over ssh.

Sources: tools/launch.py of apache/mxnet (011f1bbf, which BytePS 0.1 uses as well) and of dmlc/dgl (2.4). MXNet's takes
its own options before the program. DGL's takes them anywhere; the command that each trainer runs is one quoted word.
"""

from __future__ import annotations

from preflight.model.job import Known
from preflight.model.job.value import SETTING_PREFIX
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.claim_builder import ClaimBuilder, state_launcher
from preflight.sources.launchers.option_parser import declared_table, file_references, scan
from preflight.sources.launchers.script_arguments import read_program

_MXNET = declared_table("mxnet-launch")
_DGL = declared_table("dgl-launch")


def read_server_launcher(line: LaunchLine, tree: Tree) -> Reading:
    """Read the line of either script: its options as settings, the file of hosts, and the program that follows.

    A script of the same name without these options is another program.
    """
    of_dgl = scan(line.words[1:], _DGL)
    if any(of_dgl.last(name) is not None for name in ("part_config", "ip_config", "num_trainers")):
        builder = ClaimBuilder("dgl_launch", line.scope, line.command.condition)
        state_launcher(builder, "dgl_launch", line.words[0], of_dgl)
        for word in of_dgl.rest[:1]:
            count = Known(len(of_dgl.rest))
            builder.add(f"{SETTING_PREFIX}dgl_launch.words", count, word)
        return read_program(line, "dgl_launch", (), tree).reading(builder.claims)
    of_mxnet = scan(line.words[1:], _MXNET)
    if of_mxnet.last("num_workers") is None:
        return Reading()
    builder = ClaimBuilder("mxnet_launch", line.scope, line.command.condition)
    state_launcher(builder, "mxnet_launch", line.words[0], of_mxnet)
    program = read_program(line, "mxnet_launch", of_mxnet.rest, tree, python=False)
    return program.reading(builder.claims, file_references(of_mxnet.last("hostfile"), "hostfile", line, tree))
