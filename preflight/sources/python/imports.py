"""References to the script's own modules.

If the training loop, or the call that starts the process group, is in `utils.py`, the script alone would look as if it
had none. So imports that lead to files of the tree become references: `module` from the script itself, `submodule` from
those; their own imports are not followed, and only a few claims of modules are used.
"""

from __future__ import annotations

import ast
import posixpath
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from preflight.model.job import Reference, Scope, Span
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python import quick
from preflight.sources.python.module import Module

Statement: TypeAlias = "ast.Import | ast.ImportFrom"

#: Modules of one file that are followed; a file with more is a library, and searching it takes too long.
MAX_MODULES = 24
#: The role of a reference by the role in which the importing file is read.
NEXT_ROLE = {"module": "submodule", "submodule": ""}
#: Top-level packages that are never files of the job; saves a lookup.
_FOREIGN = frozenset(
    (
        "PIL",
        "accelerate",
        "apex",
        "cv2",
        "datasets",
        "deepspeed",
        "einops",
        "flax",
        "horovod",
        "hydra",
        "jax",
        "lightning",
        "matplotlib",
        "numpy",
        "omegaconf",
        "paddle",
        "paddlenlp",
        "pandas",
        "peft",
        "pytorch_lightning",
        "ray",
        "scipy",
        "sklearn",
        "tensorboard",
        "tensorflow",
        "timm",
        "torch",
        "torchaudio",
        "torchvision",
        "tqdm",
        "transformers",
        "trl",
        "wandb",
        "yaml",
    )
)


def references(module: Module, role: str) -> Iterator[Reference]:
    """The modules a file imports that are files of the tree, each once, in source order."""
    statements: list[Statement] = [*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)]
    statements.sort(key=lambda statement: statement.lineno)
    places = ((statement, lambda node=statement: module.span(node)) for statement in statements)
    return _references(places, module.file, module.files, role, module.scope)


def libraries(module: Module) -> Iterator[str]:
    """The top-level packages that a script imports and that are neither Python's own nor files of the tree."""
    statements: list[Statement] = [*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)]
    for node in statements:
        if isinstance(node, ast.ImportFrom):
            found = [] if node.level else [node.module or ""]
        else:
            found = [alias.name for alias in node.names]
        roots = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
        for root in sorted(roots):
            if root in _FOREIGN or _first_file(module.files, module.file, (*_files(root), root)) is None:
                yield root


def in_tree(module: Module, name: str) -> bool:
    """Whether a file of the tree provides the top-level package `name`: beside the script, or at the root."""
    return _first_file(module.files, module.file, (*_files(name), f"/{name}.py", f"/{name}/__init__.py")) is not None


def quick_references(file: SourceFile, files: Tree, role: str, scope: Scope) -> Iterator[Reference]:
    """The same for a file that was not parsed."""
    places = ((statement, lambda span=span: span) for statement, span in quick.imports(file.path, file.text))
    return _references(places, file, files, role, scope)


def _references(
    statements: Iterable[tuple[Statement, Callable[[], Span]]], file: SourceFile, files: Tree, role: str, scope: Scope
) -> Iterator[Reference]:
    next_role = NEXT_ROLE.get(role, "module")
    if not next_role:
        return
    seen: set[str] = {file.path}
    for node, span in statements:
        for candidates in _candidates(node, file.path):
            target = _first_file(files, file, candidates)
            if target is not None and target not in seen:
                seen.add(target)
                yield Reference(target, next_role, span(), scope)
            if len(seen) > MAX_MODULES:
                return


def _candidates(node: Statement, path: str) -> Iterator[tuple[str, ...]]:
    """For every imported module, the files it could be, the most likely first."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if not _is_foreign(alias.name):
                yield _files(alias.name.replace(".", "/"))
        return
    name = node.module or ""
    if node.level == 0 and _is_foreign(name):
        return
    start = name.replace(".", "/")
    if node.level:
        above = posixpath.dirname(path)
        for _ in range(min(node.level, 20) - 1):
            above = posixpath.dirname(above)
        start = posixpath.join("/", above, start)
    for alias in node.names[:MAX_MODULES]:
        yield (*_files(posixpath.join(start, alias.name)), *_files(start))


def _files(stem: str) -> tuple[str, ...]:
    return (f"{stem}.py", f"{stem}/__init__.py")


def _is_foreign(name: str) -> bool:
    root = name.partition(".")[0]
    return root in sys.stdlib_module_names or root in _FOREIGN


def _first_file(files: Tree, file: SourceFile, candidates: tuple[str, ...]) -> str | None:
    for candidate in candidates:
        if candidate.startswith("/"):
            path: str | None = candidate.lstrip("/")
        else:
            path = files.resolve(candidate, relative_to=file.path)
        if path is not None and isinstance(files.read(path), SourceFile):
            return path
    return None
