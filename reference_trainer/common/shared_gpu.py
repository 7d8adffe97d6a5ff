"""The environment for several NCCL ranks on one GPU, for tests and benchmarks.

NCCL up to 2.29 rejects two ranks of one node on one device ("Duplicate GPU detected"). It identifies a node by a hash
of host name and boot id, unless NCCL_HOSTID is set (src/misc/utils.cc): with a different value on each rank, every rank
counts as a separate node, and all traffic goes over sockets. From 2.30 on NCCL_MULTI_RANK_GPU_ENABLE=1 allows it
(NCCL's documentation of environment variables, experimental). The ranks' kernels must be on the GPU at the same time,
so each gets few blocks and no NVLink SHARP, which fails there. Either way, the times say nothing about a network.
"""

from __future__ import annotations

from typing import Dict, Sequence

#: From this version on NCCL accepts several ranks on one GPU if configured.
SUPPORTS_SHARING = (2, 30)
#: Blocks of each rank's kernels: all of them must fit at the same time.
MAX_BLOCKS = 2


def environment(rank: int, ranks_on_gpu: int, nccl: Sequence[int]) -> Dict[str, str]:
    """The variables for one rank; none if the rank has the GPU to itself.

    Args:
        nccl: NCCL's version as `torch.cuda.nccl.version()` gives it, such as (2, 27, 5).
    """
    if ranks_on_gpu < 2:
        return {}
    common = {
        "NCCL_SOCKET_IFNAME": "lo",
        "NCCL_IB_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MAX_CTAS": str(MAX_BLOCKS),
    }
    if tuple(nccl[:2]) >= SUPPORTS_SHARING:
        return {**common, "NCCL_MULTI_RANK_GPU_ENABLE": "1"}
    return {**common, "NCCL_HOSTID": "preflight-%d" % rank}
