"""Rings and pairs in which every rank waits to send before any receives, or the other way round.

Sources: MPI 4.1, 3.5 (a standard send may wait for its receive); torch/distributed/distributed_c10d.py of 2.13 and
paddle/distributed/communication/send.py of 3.3, whose sends wait for the receiver.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.module import Module, argument, last, value_of
from preflight.sources.python.outline import dotted, end_of
from preflight.sources.python.rank_conditions import RankSet, is_rank, ranks_of

_LIBRARIES = ("torch.distributed.", "paddle.distributed.")
#: Sends and receives of MPI that do not return before the other side is there, if what is sent is large, or always.
_MPI_SENDS, _MPI_RECEIVES = ("Send", "Ssend", "ssend"), ("Recv", "recv")
#: Calls with which a rank sends and receives at the same time.
_AT_ONCE = re.compile(r"\b[iI]?(?:[iI]send|[iI]recv|[sS]endrecv\w*|batch_isend_irecv|Bsend|bsend|P2POp)\(")


def exchanges(module: Module) -> Iterator[Claim]:
    """The first pair of a send and a receive that every rank makes in the same order."""
    sends = [call for call in module.named("send", *_MPI_SENDS) if _is_for_all(module, call, "dest", "dst")]
    receives = [call for call in module.named(*_MPI_RECEIVES) if _is_for_all(module, call, "source", "src")]
    for send in sends:
        for receive in receives:
            if _owner(module, send) != _owner(module, receive):
                continue
            first, second = sorted((send, receive), key=lambda call: call.lineno)
            if not _follows(module, first, second):
                continue
            name = last(module.called(send))
            if first is receive:
                yield module.feature("received_before_sent", receive, send)
            elif name != "send" or _owner(module, send) in _LIBRARIES:
                yield module.feature(
                    "sent_large_before_received" if name == "Send" else "sent_before_received", send, receive
                )
            else:
                continue
            return


def _owner(module: Module, call: ast.Call) -> str:
    """The library, or the communicator, through which ranks exchange."""
    name = module.called(call)
    library = next((each for each in _LIBRARIES if name.startswith(each)), "")
    return library or (dotted(call.func.value) if isinstance(call.func, ast.Attribute) else "")


def _is_for_all(module: Module, call: ast.Call, *names: str) -> bool:
    """Whether every rank makes a call, and each with another rank: `(rank + 1) % size`, `rank ^ 1`."""
    owner = _owner(module, call)
    known = owner in _LIBRARIES or ("mpi4py" in module.file.text or re.search(r"comm", owner, re.IGNORECASE))
    given = next((found for name in names if (found := argument(call, name, 1)) is not None), None)
    peer = module.definition(value_of(given)) if given is not None else None
    if not known or not isinstance(peer, ast.BinOp) or ranks_of(module).inside(call).who is not RankSet.ALL:
        return False
    parts = (peer.left, peer.right)
    if isinstance(peer.op, ast.BitXor):
        return any(_is_rank(module, part) for part in parts)
    around = module.definition(peer.left) if isinstance(peer.op, ast.Mod) else peer
    shifted = isinstance(around, ast.BinOp) and isinstance(around.op, (ast.Add, ast.Sub))
    if not shifted or not isinstance(around, ast.BinOp):
        return False
    # `size - 1 - rank` and `1 - rank` are other ranks without a remainder, too.
    sides = [around] if around is not peer else [around.right]
    mirrored = around is not peer or isinstance(around.op, ast.Sub)
    terms = [node for side in sides for node in ast.walk(side) if isinstance(node, (ast.Name, ast.Attribute, ast.Call))]
    return mirrored and any(_is_rank(module, term) for term in terms)


def _is_rank(module: Module, expression: ast.expr) -> bool:
    meant = module.definition(expression)
    owned = module.outline.assigned_once(meant) or meant
    return any(is_rank(module, each) for each in (expression, meant, owned)) and "local" not in end_of(expression)


def _follows(module: Module, first: ast.Call, second: ast.Call) -> bool:
    """Whether two calls are statements of one block, with nothing between that sends and receives at once."""
    one, other = _statement(module, first), _statement(module, second)
    if one is None or other is None:
        return False
    following = module.outline.following(one)
    index = next((number for number, each in enumerate(following) if each is other), None)
    between = " ".join(module.source(each) for each in following[:index]) if index is not None else ""
    return index is not None and _AT_ONCE.search(between) is None and _AT_ONCE.search(_above(module, one)) is None


def _statement(module: Module, call: ast.Call) -> ast.stmt | None:
    parent = module.parent(call)
    if isinstance(parent, ast.Call) and end_of(parent.func) == "wait":
        parent = module.parent(parent)
    return parent if isinstance(parent, (ast.Expr, ast.Assign)) else None


def _above(module: Module, statement: ast.stmt) -> str:
    """The text of the block before a statement, in which a receive may have been posted."""
    before, texts = module.outline.before(statement), []
    while before is not None:
        texts.append(module.source(before))
        before = module.outline.before(before)
    return " ".join(texts)
