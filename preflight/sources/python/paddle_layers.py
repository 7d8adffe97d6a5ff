"""Claims about the parameters of a Paddle program: embedding tables, fully connected layers, the optimizer.

Only literal sizes are claimed; the names of layers are those of fluid.layers, paddle.static.nn and paddle.nn.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight._util.budget import note_skipped
from preflight.model.job import Claim, Known, Unresolved, Value, alternatives, lift
from preflight.model.job.value import Plain
from preflight.sources.python.module import Module, argument, is_none, last, value_of

_FLUID = ("fluid.", "paddle.")
#: Layers with parameters whose shape is not followed; with one of them the list of parameters is incomplete.
_UNFOLLOWED_LAYERS = frozenset(
    (
        "conv2d",
        "conv3d",
        "conv2d_transpose",
        "batch_norm",
        "layer_norm",
        "lstm",
        "dynamic_lstm",
        "dynamic_gru",
        "dynamic_lstmp",
        "gru_unit",
        "lstm_unit",
        "sequence_conv",
        "linear_chain_crf",
        "nce",
        "hsigmoid",
        "row_conv",
        "prelu",
        "spectral_norm",
        "bilinear_tensor_product",
    )
)
_SIZED = frozenset(("embedding", "sparse_embedding", "fc", "create_parameter", *_UNFOLLOWED_LAYERS))
#: Layers of one script that are read; code written by hand has fewer.
_MAX_LAYERS = 1000
#: Layers that keep the last dimension of their first argument.
_KEEPING = frozenset(("relu", "tanh", "sigmoid", "dropout", "softmax", "sequence_pool", "mean_pool", "reshape_like"))


def claims(module: Module) -> Iterator[Claim]:
    """All claims about tables, layers and optimizers."""
    optimizers = {
        id(owner)
        for call in module.calls
        if last(module.called(call)) in ("minimize", ".minimize") and isinstance(call.func, ast.Attribute)
        for owner in (module.definition(call.func.value),)
    }
    layers = 0
    for call in module.calls:
        name = module.called(call)
        short = last(name)
        layers += name.startswith(_FLUID) and short in _SIZED
        if layers > _MAX_LAYERS:
            note_skipped(f"only the first {_MAX_LAYERS} layers were read")
            return
        if short in ("embedding", "sparse_embedding") and name.startswith(_FLUID):
            yield from _embedding(module, call, short)
        elif short == "fc" and name.startswith(_FLUID):
            yield from _fully_connected(module, call)
        elif (
            short == "create_parameter" and name.startswith(_FLUID) and (size := argument(call, "shape", 0)) is not None
        ):
            value = lift(_shape, module.fold(value_of(size)))
            yield module.claim("parameter_shape", value, call.func, spelling=module.text(call.func), source="paddle")
        elif short in _UNFOLLOWED_LAYERS and name.startswith(_FLUID):
            unknown = Unresolved(f"{module.text(call.func)}: its sizes are not followed")
            yield module.claim("parameter_shape", unknown, call.func, source="paddle")
        elif id(call) in optimizers and ".optimizer." in f".{name}":
            class_name = short.removesuffix("Optimizer")
            yield module.claim("optimizer", class_name, call.func, spelling=module.text(call.func), source="paddle")


def _embedding(module: Module, call: ast.Call, short: str) -> Iterator[Claim]:
    size = argument(call, "size", 1)
    if size is None:
        return
    table = module.claim("embedding_shape", lift(_shape, module.fold(value_of(size))), size, source="paddle")
    yield table
    sparse = argument(call, "is_sparse", 2)
    if short == "sparse_embedding":
        yield module.claim("embedding_sparse", True, call.func, source="paddle", because=(table,))
        yield module.claim("served_table", module.text(call.func), call.func, source="paddle", because=(table,))
    elif sparse is not None:
        yield module.claim("embedding_sparse", module.fold(value_of(sparse)), sparse, source="paddle", because=(table,))
    distributed = argument(call, "is_distributed", 3)
    if distributed is not None:
        value = module.fold(value_of(distributed))
        yield module.claim("embedding_distributed", value, distributed, source="paddle", because=(table,))
        if value == Known(True):
            written = module.text(distributed)
            yield module.claim("served_table", written, distributed, source="paddle", because=(table,))
    given = argument(call, "param_attr", 5)
    if given is not None:
        yield module.claim("embedding_parameter", _parameter(module, given), given, source="paddle", because=(table,))


def _parameter(module: Module, given: ast.keyword | ast.expr) -> Value:
    """The name in `fluid.ParamAttr(name="emb")`, `{"name": "emb"}` or `"emb"`."""
    expression = module.definition(value_of(given))
    if isinstance(expression, ast.Call) and last(module.called(expression)) == "ParamAttr":
        name = argument(expression, "name", 0)
        if name is None or is_none(value_of(name)):
            return Known("")
        return module.fold(value_of(name))
    return module.fold(expression)


def _shape(item: Plain) -> Plain:
    if not isinstance(item, tuple) or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in item):
        raise TypeError("sizes must be whole numbers")
    return item


def _fully_connected(module: Module, call: ast.Call) -> Iterator[Claim]:
    size, source = argument(call, "size", 1), argument(call, "input", 0) or argument(call, "x", 0)
    if size is None or source is None:
        return
    width = module.fold(value_of(size))
    shape = lift(_weight, _last_dimension(module, value_of(source)), width)
    yield module.claim("parameter_shape", shape, call.func, spelling=module.text(call.func), source="paddle")
    bias = argument(call, "bias_attr")
    if bias is None or module.fold(value_of(bias)) != Known(False):
        yield module.claim("parameter_shape", lift(_vector, width), size, source="paddle")


def _weight(rows: Plain, columns: Plain) -> Plain:
    return _shape((_number(rows), _number(columns)))


def _vector(size: Plain) -> Plain:
    return _shape((_number(size),))


def _number(item: Plain) -> int:
    if not isinstance(item, int):
        raise TypeError("sizes must be whole numbers")
    return item


def _last_dimension(module: Module, expression: ast.expr, depth: int = 0) -> Value:
    """The last dimension of a layer's output, if it, or a layer before it, has it as a literal."""
    made = module.definition(expression)
    unknown = Unresolved(f"{module.text(expression)}: its sizes are not followed")
    if not isinstance(made, ast.Call) or depth > 40:
        return unknown
    short = last(module.called(made))
    if short in ("fc", "embedding", "sparse_embedding"):
        size = argument(made, "size", 1)
        return lift(_final, module.fold(value_of(size))) if size is not None else unknown
    if short == "data":
        shape = argument(made, "shape", 1)
        return lift(_final, module.fold(value_of(shape))) if shape is not None else unknown
    if short in _KEEPING and made.args:
        return _last_dimension(module, made.args[0], depth + 1)
    if short in _KEEPING and (given := argument(made, "input") or argument(made, "x")) is not None:
        return _last_dimension(module, value_of(given), depth + 1)
    return unknown


def _final(item: Plain) -> Plain:
    found = item[-1] if isinstance(item, tuple) and item else item
    if not alternatives(Known(found)) or not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise TypeError("the last size is unknown")
    return found
