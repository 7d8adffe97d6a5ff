"""Frameworks without which a script ends at once: those that it imports on every path through it.

An import in a `try`, under a condition, for type checkers alone, or in a function that may not be called does not
count, nor does one of a package that is part of the tree.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from preflight.model.job import Claim
from preflight.sources.python.imports import in_tree
from preflight.sources.python.module import Module, last
from preflight.sources.python.required import always_reached

#: Top-level packages of frameworks, and of the libraries that training scripts use beside them.
FRAMEWORKS = frozenset(
    (
        *("torch", "torchvision", "torchaudio", "torchtext", "torchdata", "torchrec", "torchmetrics", "timm"),
        *("paddle", "paddlenlp", "paddlerec", "pgl", "visualdl", "tensorflow", "keras", "jax", "jaxlib", "flax"),
        *("optax", "mxnet", "mindspore", "oneflow", "horovod", "byteps", "bagua", "ray", "mpi4py", "petastorm"),
        *("deepspeed", "accelerate", "transformers", "datasets", "tokenizers", "diffusers", "peft", "trl", "evaluate"),
        *("sentence_transformers", "lightning", "pytorch_lightning", "lightning_fabric", "composer", "streaming"),
        *("colossalai", "fairscale", "fairseq", "megatron", "nemo", "apex", "transformer_engine", "flash_attn"),
        *("xformers", "triton", "bitsandbytes", "vllm", "sglang", "verl", "axolotl", "llamafactory", "unsloth"),
        *("mmcv", "mmengine", "mmdet", "detectron2", "monai", "dgl", "torch_geometric", "ignite", "catalyst"),
        *("torch_xla", "torch_npu", "intel_extension_for_pytorch", "habana_frameworks", "cupy", "numpy", "safetensors"),
    )
)
#: What may add folders to the search path before the import.
_PATHS = ("sys.path", "site.addsitedir", "sys.meta_path")


def claims(module: Module) -> Iterator[Claim]:
    """One claim for each framework, at its first import; with a condition if the script changes the search path."""
    found: dict[str, ast.AST] = {}
    statements: list[ast.Import | ast.ImportFrom] = [*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)]
    for node in sorted(statements, key=lambda statement: statement.lineno):
        for name, place in _names(node):
            root = name.partition(".")[0]
            if root in FRAMEWORKS - set(found) and _is_certain(module, node) and not in_tree(module, root):
                found[root] = place
    if not found:
        return
    edited = next((name for name in _PATHS if name in module.file.text), "")
    for root, place in found.items():
        condition = f"after a change of {edited}" if edited else ""
        yield module.claim("imported_framework", root, place, condition=condition)


def _names(node: ast.Import | ast.ImportFrom) -> list[tuple[str, ast.AST]]:
    """The imported modules, each with its place: several in one statement have several."""
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "", node)] if not node.level else []
    return [(alias.name, alias if len(node.names) > 1 else node) for alias in node.names]


def _is_certain(module: Module, node: ast.stmt) -> bool:
    """Whether the import is reached, and nothing before it in its function, or the script, may end that."""
    if not always_reached(module, node):
        return False
    outer = module.parent(node)
    while isinstance(outer, ast.If) and "TYPE_CHECKING" not in module.text(outer.test):
        outer = module.parent(outer)
    if not isinstance(outer, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return not any(_may_end(each) and each.lineno < node.lineno for each in _own_statements(outer))


def _own_statements(outer: ast.AST) -> Iterator[ast.stmt]:
    """The statements that run with `outer`, without those of functions and classes in it."""
    for child in ast.iter_child_nodes(outer):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from _own_statements(child)


def _may_end(node: ast.stmt) -> bool:
    if isinstance(node, (ast.Return, ast.Raise)):
        return True
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and last(ast.unparse(call.func)) in ("exit", "_exit", "quit", "abort", "execv")
