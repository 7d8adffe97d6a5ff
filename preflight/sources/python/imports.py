"""The imports of a script: its own modules, and frameworks that it cannot run without.

If the training loop, or the call that starts the process group, is in `utils.py`, the script alone would look as if it
had none. So imports that lead to files of the tree become references: `module` from the script itself, `submodule` from
those; their own imports are not followed, and only a few claims of modules are used.

An import in a `try`, under a condition, for type checkers alone, or in a function that may not be called does not
count, nor does an import of a package that is part of the tree.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from preflight._util.redaction import scrub
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import WHOLE_JOB, Claim, Reference, Scope, Span, Unresolved
from preflight.sources.base import SourceFile, Tree
from preflight.sources.python.environment import always_reached
from preflight.sources.python.module import Module, last
from preflight.sources.python.words import WORDS

Statement: TypeAlias = "ast.Import | ast.ImportFrom"

#: Modules of one file that are followed; a file with more is a library, and searching it takes too long.
MAX_MODULES = 24
#: Folders above a script in which its modules are looked for.
_MAX_FOLDERS = 8
#: The role of a reference by the role in which the importing file is read.
NEXT_ROLE = {"module": "submodule", "submodule": ""}
#: Top-level packages that are never files of the job; saves a lookup.
_FOREIGN = frozenset(WORDS["foreign_packages"])


def references(module: Module, role: str) -> Iterator[Reference]:
    """Yield the modules a file imports that are files of the tree, each once, in source order."""
    statements: list[Statement] = [*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)]
    statements.sort(key=lambda statement: statement.lineno)
    places = ((statement, lambda node=statement: module.span(node)) for statement in statements)
    return _references(places, module.file, module.files, role, module.scope)


def libraries(module: Module) -> Iterator[str]:
    """Yield the top-level packages that a script imports and that are neither Python's own nor files of the tree."""
    statements: list[Statement] = [*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)]
    for node in statements:
        if isinstance(node, ast.ImportFrom):
            found = [] if node.level else [node.module or ""]
        else:
            found = [alias.name for alias in node.names]
        roots = {name.partition(".")[0] for name in found} - sys.stdlib_module_names
        for root in sorted(roots):
            if _first_file(module.files, module.file, (*_files(root), root)) is None:
                yield root


class ImportedText(NamedTuple):
    """A user module that a script imports, itself or through another one."""

    path: str
    text: str


def texts_of_modules(module: Module) -> tuple[list[ImportedText], bool]:
    """Return the user's modules that a script imports, directly or through others, and whether the list is complete."""
    found: dict[str, ImportedText] = {}
    waiting = list(references(module, ""))
    for reference in waiting:
        file = module.files.read(reference.target) if reference.role == "module" else None
        if reference.target in found or not isinstance(file, SourceFile):
            continue
        if len(found) == MAX_MODULES:
            break
        found[reference.target] = ImportedText(file.path, file.text)
        waiting += quick_references(file, module.files, "", WHOLE_JOB)
    return list(found.values()), len(found) < MAX_MODULES


#: `os.environ["RANK"] = ...` and the like.
_SETS_RANK = re.compile(
    r"environ\[['\"](?:LOCAL_)?RANK['\"]\]\s*=(?!=)|environ\.(?:setdefault|update)\([^()]{0,200}RANK"
)


def rank_setters(module: Module) -> Iterator[Claim]:
    """Yield one claim for each imported user module that may set the variables of ranks."""
    if "RANK" not in module.file.text:
        return
    for path, text in texts_of_modules(module)[0]:
        if _SETS_RANK.search(text):
            why = f"{path}, which the script imports, may set the variables of ranks"
            yield module.claim("rank_setter", Unresolved(why), module.tree, spelling=path, condition="")


def in_tree(module: Module, name: str) -> bool:
    """Return whether a file of the tree provides the top-level package `name`: beside the script, or at the root."""
    return _first_file(module.files, module.file, (*_files(name), f"/{name}.py", f"/{name}/__init__.py")) is not None


def quick_references(file: SourceFile, files: Tree, role: str, scope: Scope) -> Iterator[Reference]:
    """Yield the references of a file that was not parsed."""
    places = ((statement, lambda span=span: span) for statement, span in import_statements(file.path, file.text))
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
    """Yield the possible files of every imported module, the most likely first."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if not _is_of_python(alias.name):
                yield _files(alias.name.replace(".", "/"))
        return
    name = node.module or ""
    if node.level == 0 and _is_of_python(name):
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


def file_of(files: Tree, file: SourceFile, name: str, level: int) -> str | None:
    """Return the file of the tree for `import name` in a file, with this many leading dots; None if there is none."""
    stem = name.replace(".", "/")
    if level:
        folder = posixpath.dirname(file.path)
        for _ in range(level - 1):
            folder = posixpath.dirname(folder)
        stem = f"/{folder}/{stem}" if folder else f"/{stem}"
    elif not name or _is_of_python(name):
        return None
    return _first_file(files, file, _files(stem.rstrip("/")) if stem.rstrip("/") else ("/__init__.py",))


def _is_of_python(name: str) -> bool:
    return name.partition(".")[0] in sys.stdlib_module_names


def is_foreign(name: str) -> bool:
    """Return whether a dotted name is of Python's own library, or has the name of a well-known package."""
    return _is_of_python(name) or name.partition(".")[0] in _FOREIGN


def _first_file(files: Tree, file: SourceFile, candidates: tuple[str, ...]) -> str | None:
    """Return the first candidate that is a file: beside the importing file, in a folder above, or in `src` there.

    A file with the name of a well-known package, such as `datasets.py`, counts only beside a script.
    """
    folders = _folders_above(file.path)
    for candidate in candidates:
        root = candidate.partition("/")[0].removesuffix(".py")
        if root in FRAMEWORKS or root in _FOREIGN:
            folders = []
        if root in _FOREIGN and _is_of_package(files, file):
            continue
        if candidate.startswith("/"):
            paths = [candidate.lstrip("/")]
        else:
            # Of an installed project, `src` holds the packages.
            beside, below = (files.resolve(path, relative_to=file.path) for path in (candidate, f"src/{candidate}"))
            found_paths = (beside, *(f"{folder}/{candidate}" for folder in folders), below)
            paths = [path for path in found_paths if path is not None]
        found = next((path for path in paths if isinstance(files.read(path), SourceFile)), None)
        if found is not None:
            return found
    return None


def _is_of_package(files: Tree, file: SourceFile) -> bool:
    """Return whether a module is part of a package, whose folder is not searched for what it imports."""
    beside = files.resolve("__init__.py", relative_to=file.path)
    return beside is not None and isinstance(files.read(beside), SourceFile)


def _folders_above(path: str) -> list[str]:
    """Return the folders between that of a file and the root, the nearest first: one of them may be in PYTHONPATH."""
    parts = posixpath.dirname(path).split("/")[:_MAX_FOLDERS]
    return ["/".join(parts[:depth]) for depth in range(len(parts) - 1, 0, -1)]


#: The text between brackets is bounded, so that an unclosed bracket costs little.
_STATEMENT = re.compile(
    r"^[ \t]*(?P<said>from[ \t]+(?P<package>[.\w]+)[ \t]+import[ \t]*(?:\([^()]{0,4000}\)|(?:[^\n;#()\\]|\\\n){1,2000})"
    r"|import[ \t]+(?:[^\n;#()\\]|\\\n){1,2000})",
    re.MULTILINE,
)


def import_statements(path: str, text: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, Span]]:
    """Yield every import statement at the start of a line, with its location; an import inside a string is also
    included.
    """
    lines: list[int] = []
    for match in _STATEMENT.finditer(text):
        try:
            statement = ast.parse(match["said"]).body[0]
        except (SyntaxError, ValueError, IndexError, RecursionError, MemoryError):
            continue
        if not isinstance(statement, (ast.Import, ast.ImportFrom)):
            continue
        lines = lines or [0, *(end.end() for end in re.finditer("\n", text))]
        yield statement, _span(path, text, lines, match.start("said"), match.end("said"))


def _span(path: str, text: str, lines: list[int], start: int, end: int) -> Span:
    first, last = bisect_right(lines, start), bisect_right(lines, end)
    line_start = lines[first - 1]
    line_end = lines[first] - 1 if first < len(lines) else len(text)
    snippet = scrub(text[line_start:line_end].rstrip("\r")[:MAX_SNIPPET_LENGTH])
    return Span(path, first, start - line_start + 1, last, end - lines[last - 1] + 1, snippet)


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
    """Yield one claim for each framework, at its first import; with a condition if the script changes the search
    path.
    """
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


#: Frameworks whose names come and go with their releases.
_VERSIONED = frozenset(("torch", "paddle", "transformers", "accelerate", "deepspeed", "lightning", "pytorch_lightning"))
#: Modules of the user that are searched for the names that they import.
_MAX_SEARCHED = 60


def imported_names(module: Module) -> Iterator[Claim]:
    """Yield every name that the script certainly imports from a framework, itself or in a module that it imports.

    What a module of the user imports counts at its top level alone.
    """
    edited = next((name for name in _PATHS if name in module.file.text), "")
    condition = f"after a change of {edited}" if edited else ""
    statements: list[Statement] = [*module.nodes(ast.Import), *module.nodes(ast.ImportFrom)]
    own = [(node, module.span(node)) for node in statements if _is_certain(module, node)]
    waiting, seen = [(module.file, own)], {module.file.path}
    local: dict[str, bool] = {}
    for file, found in waiting:
        for node, span in sorted(found, key=lambda each: each[1].line):
            for name in _imported(node):
                root = name.partition(".")[0]
                if root in _VERSIONED and not local.setdefault(root, in_tree(module, root)):
                    claim = module.claim("imported_name", name, module.tree, condition=condition, spelling="")
                    yield replace(claim, span=span, spelling=_as_written(node))
        places = ((node, lambda span=span: span) for node, span in found)
        for reference in _references(places, file, module.files, "", module.scope):
            imported = module.files.read(reference.target)
            if reference.target in seen or not isinstance(imported, SourceFile) or len(seen) > _MAX_SEARCHED:
                continue
            seen.add(reference.target)
            waiting.append((imported, _at_top_level(imported)))


def _at_top_level(file: SourceFile) -> list[tuple[Statement, Span]]:
    """Return the imports of a module that run whenever it is imported."""
    try:
        body = ast.parse(file.text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    ends = next((node.lineno for node in body if _may_end(node)), None)
    lines = {node.lineno for node in body if isinstance(node, (ast.Import, ast.ImportFrom))}
    found = import_statements(file.path, file.text)
    return [each for each in found if each[1].line in lines and (ends is None or each[1].line < ends)]


def _imported(node: Statement) -> list[str]:
    """Return the full names that a statement imports from packages outside its own."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module}.{alias.name}" for alias in node.names] if node.module and not node.level else []


def _as_written(node: Statement) -> str:
    """Return the start of a statement as it is quoted."""
    return ast.unparse(node)[:MAX_SNIPPET_LENGTH]


def _names(node: ast.Import | ast.ImportFrom) -> list[tuple[str, ast.AST]]:
    """Return the imported modules, each with its place: several in one statement have several."""
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "", node)] if not node.level else []
    return [(alias.name, alias if len(node.names) > 1 else node) for alias in node.names]


def _is_certain(module: Module, node: ast.stmt) -> bool:
    """Return whether the import is reached, and nothing before it in its function, or the script, may end that."""
    if not always_reached(module, node):
        return False
    outer = module.parent(node)
    while isinstance(outer, ast.If) and "TYPE_CHECKING" not in module.text(outer.test):
        outer = module.parent(outer)
    if not isinstance(outer, (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)):
        return False
    return not any(_may_end(each) and each.lineno < node.lineno for each in _own_statements(outer))


def _own_statements(outer: ast.AST) -> Iterator[ast.stmt]:
    """Yield the statements that run with `outer`, without those of functions and classes in it."""
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
