"""The configuration of a run that Hydra composes, and the claims of it, for the frameworks of `frameworks.toml`."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from preflight._util.budget import spend, truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Note, Scope, Span, Strength, Unresolved, Value, lift, product
from preflight.model.job.value import SETTING_PREFIX
from preflight.sources.base import LaunchLine, SourceFile, Tree, Word
from preflight.sources.hydra.composition import Composition, apply_overrides, compose_config
from preflight.sources.hydra.configuration import (
    FRAMEWORKS,
    ConfigFolders,
    Framework,
    Key,
    Leaf,
    ListSetting,
    Place,
    Section,
    Setting,
    Style,
    existing,
    is_missing,
    is_reference,
    leaves,
    package_folder,
    parse_config,
    split_key,
    text_of,
)
from preflight.sources.hydra.overrides import Override, Resolver, Unreadable, from_words, merge
from preflight.sources.launchers.option_parser import (
    declared_table,
    file_named,
    known_prefix,
    module_path,
    paths_of,
    relative,
    scan,
)
from preflight.sources.launchers.option_parser import text_of as text_of_word
from preflight.sources.python.outline import dotted

#: Hydra's own options, which may appear among the overrides.
_OPTIONS = declared_table("hydra")
#: Files that inherit from each other are followed to this depth.
_MAX_DEPTH = 12


@dataclass(slots=True)
class RunConfig:
    """The configuration of one launch.

    Args:
        framework: the framework of the configuration; None for one that no table lists.
        composition: the configuration.
        files: the files that it was composed of, relative to the root.
        is_installed: whether the framework's own files are not in the tree, so that its defaults count.
        incomplete: whether a word of the line may hide further overrides.
        is_variant: whether the program is a custom one built on the framework, which may check less.
        by_hydra: whether Hydra itself composes it, so that a refusal stops the program.
        program: the text of the program, which may set keys itself; empty if it is not in the tree.
    """

    framework: Framework | None
    composition: Composition
    files: list[str] = field(default_factory=list)
    is_installed: bool = False
    incomplete: bool = False
    is_variant: bool = False
    by_hydra: bool = False
    program: str = ""


def framework_of_program(name: str, words: Sequence[Word]) -> Framework | None:
    """Return the framework that a module (`verl.trainer.main_ppo`), a script or the keys of its arguments name."""
    dotted = name.removesuffix(".py").strip("./").replace("/", ".")
    keys = [item.key for item in from_words(words)]
    for framework in FRAMEWORKS:
        if framework.modules and re.fullmatch(framework.modules, dotted):
            if "." in dotted and dotted.startswith(framework.packages):
                return framework
            # Many programs have a `main_ppo` or a `run_sft`: the line must also have a key of this framework.
            if any(key in row.keys for key in keys for row in framework.keys):
                return framework
    for framework in FRAMEWORKS:
        if not framework.files_only and any(_has(keys, each) for each in framework.recognised_by if len(each) > 1):
            return framework
    return None


def framework_of_line(line: LaunchLine, words: Sequence[Word], tree: Tree) -> Framework | None:
    """Return the framework of a program by its words, or by the file of configuration that they name."""
    found = framework_of_program(known_prefix(words[0]), words[1:]) if words else None
    if found is not None or not words:
        return found
    file = _named_file(line, None, words[1:], tree)
    run = file_config(file, tree) if file is not None else None
    return run.framework if run is not None else None


def _has(keys: Sequence[str], wanted: Sequence[str]) -> bool:
    """Return whether overrides set something at or below each of the keys."""
    return all(any(key == each or key.startswith(f"{each}.") for key in keys) for each in wanted)


def run_config(line: LaunchLine, words: Sequence[Word], tree: Tree, *, module: bool) -> RunConfig | None:
    """Return the configuration of the program that `words` start; None if it has no readable one.

    Args:
        line: the launch line.
        words: the program and its arguments.
        tree: where files are looked up.
        module: whether the program is the name of a module.
    """
    run = _run_config(line, words, tree, module=module) if words else None
    if run is not None and run.framework is not None and run.framework.own:
        dotted = known_prefix(words[0]).removesuffix(".py").replace("/", ".")
        run.is_variant = re.search(rf"(?:^|\.)(?:{run.framework.own})$", dotted) is None
    return run


def _run_config(line: LaunchLine, words: Sequence[Word], tree: Tree, *, module: bool) -> RunConfig | None:
    text = text_of_word(words[0])
    name = text or known_prefix(words[0])
    arguments = words[1:]
    framework = framework_of_program(name, arguments) if name else None
    script = ""
    if text:
        script = module_path(text, line, tree) if module else relative(text, line, tree) or ""
    program = hydra_program(script, tree) if script.endswith(".py") else None
    environment = {name: variable.value for name, variable in line.command.environment.items()}
    if program is not None and (framework is None or framework.style is Style.HYDRA):
        return _hydra_run(line, program, framework, arguments, tree, environment)
    file = _named_file(line, framework, arguments, tree)
    if framework is not None and framework.style is Style.FILE:
        return _file_run(framework, file, arguments, tree, environment)
    if framework is not None:
        return _installed_run(line, framework, arguments, tree, environment)
    if file is not None:
        return _file_run(None, file, arguments, tree, environment)
    return None


def _incomplete(words: Sequence[Word]) -> bool:
    return any(word.many for word in words)


def _hydra_run(
    line: LaunchLine,
    program: HydraProgram,
    framework: Framework | None,
    words: Sequence[Word],
    tree: Tree,
    environment: dict[str, Value],
) -> RunConfig | None:
    scanned = scan(words, _OPTIONS)
    overrides = from_words(words)
    base = posixpath.dirname(program.script)
    path, name = program.path, program.name
    known = program.known
    given_path, given_name, given_dir = (scanned.last(d) for d in ("config_path", "config_name", "config_dir"))
    primary: list[str | None] = []
    if given_path is not None:
        primary = [_folder(each, base, line, tree) for each in paths_of(given_path.value, given_path.parts)]
        known = bool(primary)
    elif path is not None:
        primary = [package_folder(path[6:]) if path.startswith("pkg://") else _below(base, path)]
    if given_name is not None:
        names = paths_of(given_name.value, given_name.parts)
        name = names[0] if len(names) == 1 else None
        known = known and name is not None
    if name is None or not known:
        why = "the program chooses its configuration itself"
        return _run_without_file(framework, overrides, environment, why, words)
    found = existing(tree, [*primary])
    incomplete = "configurations that the program registers" if program.registers else ""
    if not found:
        incomplete = "its configuration, which is not in the tree"
    for each in paths_of(given_dir.value, given_dir.parts) if given_dir is not None else ():
        folder = relative(each, line, tree)
        found += existing(tree, [folder])
        incomplete = incomplete or (
            "" if folder is not None and existing(tree, [folder]) else "a folder outside the tree"
        )
    folders = ConfigFolders(tree, tuple(found), incomplete)
    _add_search_path(folders, name, line, tree, overrides)
    named_at = Place(Strength.FLAG, written=given_name.span, spelled=given_name.spelling) if given_name else None
    composition = compose_config(folders, name, overrides, environment, named_at)
    own = framework or framework_of(composition)
    installed = bool(folders.incomplete)
    script = tree.read(program.script)
    text = script.text if isinstance(script, SourceFile) else ""
    return RunConfig(own, composition, folders.files, installed, _incomplete(words), by_hydra=True, program=text)


def _below(base: str, path: str) -> str | None:
    if path.startswith("/"):
        return None
    joined = posixpath.normpath(posixpath.join(base, path))
    return None if joined.startswith("..") else joined.removeprefix("./") if joined != "." else ""


def _folder(path: str, base: str, line: LaunchLine, tree: Tree) -> str | None:
    """Return the folder of `--config-path`, relative to the script's own folder or to where the program runs."""
    below = _below(base, path)
    if below is not None and existing(tree, [below]):
        return below
    return relative(path, line, tree)


def _add_search_path(
    folders: ConfigFolders, name: str, line: LaunchLine, tree: Tree, overrides: Sequence[Override]
) -> None:
    """Add the folders of `hydra.searchpath`, which the primary configuration or the line gives."""
    primary = folders.load(name)
    wanted: list[str] = []
    if primary is not None:
        hydra = primary.section().members.get("hydra")
        path = hydra.members.get("searchpath") if isinstance(hydra, Section) else None
        if isinstance(path, ListSetting):
            wanted = [text_of(item) or "${" for item in path.items]
    for override in overrides:
        if override.key == "hydra.searchpath":
            wanted = [str(item) for item in override.element] if isinstance(override.element, list) else ["${"]
    for each in wanted:
        scheme, _, rest = each.partition("://") if "://" in each else ("file", "", each)
        folder = package_folder(rest) if scheme == "pkg" else relative(rest, line, tree)
        found = existing(tree, [folder]) if "${" not in each else []
        folders.folders = (*folders.folders, *found)
        if not found:
            folders.incomplete = folders.incomplete or f"`{each}`, which is not in the tree"


def _installed_run(
    line: LaunchLine, framework: Framework, words: Sequence[Word], tree: Tree, environment: dict[str, Value]
) -> RunConfig | None:
    """Return the run of a framework that is not in the tree: its overrides, and the user's own configuration, if
    named.
    """
    scanned = scan(words, _OPTIONS)
    overrides = from_words(words)
    path, name = scanned.last("config_path", "config_dir"), scanned.last("config_name")
    names = paths_of(name.value, name.parts) if name is not None else ()
    found: list[str] = []
    for each in paths_of(path.value, path.parts) if path is not None else ():
        found += existing(tree, [relative(each, line, tree)])
    why = f"the files of {framework.name}, which are not in the tree"
    if not found or len(names) != 1:
        run = _run_without_file(framework, overrides, environment, why, words)
        if run is not None and name is not None:
            # Another configuration than the one whose defaults the table holds.
            run.incomplete = True
        return run
    folders = ConfigFolders(tree, tuple(found), why)
    _add_search_path(folders, names[0], line, tree, overrides)
    composition = compose_config(folders, names[0], overrides, environment)
    return RunConfig(framework, composition, folders.files, True, _incomplete(words))


def _run_without_file(
    framework: Framework | None,
    overrides: Sequence[Override],
    environment: dict[str, Value],
    why: str,
    words: Sequence[Word],
) -> RunConfig | None:
    """Return a configuration of only the overrides."""
    composition = Composition(Resolver(Section(Place(Strength.CONFIG)), environment, why))
    apply_overrides(composition, overrides)
    own = framework or framework_of(composition)
    return RunConfig(own, composition, [], True, _incomplete(words)) if own is not None else None


def _named_file(line: LaunchLine, framework: Framework | None, words: Sequence[Word], tree: Tree) -> str | None:
    """Return the file that `--config FILE`, `--config=FILE` or `config=FILE` names."""
    options = [framework.option] if framework is not None and framework.option else ["--config", "--exp", "config"]
    for index, word in enumerate(words):
        text = text_of_word(word) or ""
        key, equals, value = text.partition("=")
        if key not in [option.rstrip("=") for option in options]:
            continue
        path = value if equals else text_of_word(words[index + 1]) if index + 1 < len(words) else None
        file = file_named(path, line, tree) if path and path.endswith((".yaml", ".yml")) else None
        if file is not None:
            return file.path
    return None


def _file_run(
    framework: Framework | None, file: str | None, words: Sequence[Word], tree: Tree, environment: dict[str, Value]
) -> RunConfig | None:
    overrides = [item for item in from_words(words) if item.key != "config"]
    if file is None:
        why = "a configuration file, which is not in the tree"
        return _run_without_file(framework, overrides, environment, why, words)
    found = file_config(file, tree, framework, overrides, environment)
    if found is None:
        return None
    found.incomplete = _incomplete(words)
    return found


def file_config(
    path: str,
    tree: Tree,
    framework: Framework | None = None,
    overrides: Sequence[Override] = (),
    environment: dict[str, Value] | None = None,
) -> RunConfig | None:
    """Return the configuration of a file with those that it inherits from; None if it belongs to no framework."""
    files: list[str] = []
    missing: list[str] = []
    resolver = Resolver(Section(Place(Strength.CONFIG)), environment or {})
    _inherit(path, tree, resolver, files, missing, 0)
    if missing:
        resolver.incomplete = f"`{missing[0]}`, which is not in the tree"
    composition = Composition(resolver, [], missing)
    apply_overrides(composition, overrides)
    composition.refusals.clear()
    own = framework_of(composition)
    if own is None and framework is not None:
        own = framework if any(composition.leaf(key) for row in framework.keys for key in row.keys) else None
    return RunConfig(own, composition, files) if own is not None and own.style is Style.FILE else None


def _inherit(path: str, tree: Tree, resolver: Resolver, files: list[str], missing: list[str], depth: int) -> None:
    """Merge a file over those that its `defaults` name (NeMo-RL, nemo_rl/utils/config.py)."""
    spend()
    file = tree.read(path)
    config = parse_config(file) if isinstance(file, SourceFile) else None
    if config is None or depth > _MAX_DEPTH or path in files:
        missing.append(path)
        return
    parents = config.defaults
    listed = parents.items if isinstance(parents, ListSetting) else [parents] if parents is not None else []
    for item in listed:
        text = text_of(item)
        if text is None or not text.endswith((".yaml", ".yml")):
            if not isinstance(item, Leaf) or item.value != Known("_self_"):
                missing.append(text or "a Hydra configuration")
            continue
        target = tree.resolve(text, relative_to=path)
        if target is None:
            missing.append(text)
        else:
            _inherit(posixpath.normpath(target), tree, resolver, files, missing, depth + 1)
    files.append(path)
    merge(resolver.root, config.section(), resolver)


def framework_of(composition: Composition) -> Framework | None:
    """Return the framework whose keys a configuration has."""
    for framework in FRAMEWORKS:
        for wanted in framework.recognised_by:
            if all(composition.leaf(key) is not None for key in wanted):
                return framework
    return None


#: A script without any of these words uses neither.
_HYDRA_WORDS = re.compile(r"\bhydra\b|\bOmegaConf\b")
#: Words of programs that register configurations in their code, which no file shows.
_REGISTRATION_WORDS = re.compile(r"ConfigStore|hydra_zen|hydra-zen|\bstore\(|SearchPathPlugin")
_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import\s+\(?([\w, ]*)|import\s+([\w.]+))", 8)
_MAX_IMPORTS = 60


@dataclass(frozen=True, slots=True)
class HydraProgram:
    """The arguments of `@hydra.main(config_path=..., config_name=...)` in one script.

    Args:
        script: the script, relative to the root.
        path: `config_path` as written; None if there is none.
        name: `config_name`; None if there is none.
        registers: whether the program, or a module that it imports, adds configurations in code.
        known: whether both arguments are literals.
    """

    script: str
    path: str | None
    name: str | None
    registers: bool
    known: bool = True


def hydra_program(script: str, tree: Tree) -> HydraProgram | None:
    """Return the configuration that a script requests from Hydra; None if it requests none or cannot be read."""
    file = tree.read(script)
    if not isinstance(file, SourceFile) or "hydra" not in file.text or not _HYDRA_WORDS.search(file.text):
        return None
    from preflight.sources.python.python_source import parse

    module = parse(file)
    if isinstance(module, Note):
        return None
    found = next(_calls(module), None)
    if found is None:
        return None
    named = {keyword.arg: keyword.value for keyword in found.keywords if keyword.arg}
    for name, value in zip(("config_path", "config_name"), found.args, strict=False):
        named.setdefault(name, value)
    path, path_known = _literal(named.get("config_path"))
    config_name, name_known = _literal(named.get("config_name"))
    return HydraProgram(script, path, config_name, _registers(file, tree), path_known and name_known)


def _calls(module: ast.Module) -> Iterator[ast.Call]:
    """Yield the decorators `hydra.main(...)` of a script, in order."""
    for node in ast.walk(module):
        spend()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and (dotted(decorator.func) or "") in ("hydra.main", "main"):
                    yield decorator


def _literal(node: ast.expr | None) -> tuple[str | None, bool]:
    if node is None or (isinstance(node, ast.Constant) and node.value is None):
        return None, True
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value, True
    return None, False


def _registers(file: SourceFile, tree: Tree) -> bool:
    """Return whether a script or a module that it imports registers configurations."""
    if _REGISTRATION_WORDS.search(file.text):
        return True
    for index, match in enumerate(_IMPORT.finditer(file.text)):
        if index >= _MAX_IMPORTS:
            return True
        name = match[1] or match[3] or ""
        names = [name, *(f"{name}.{item.strip()}" for item in (match[2] or "").split(",") if item.strip())]
        for module in names:
            for path in _module_files(module, file.path):
                other = tree.read(path)
                if isinstance(other, SourceFile) and _REGISTRATION_WORDS.search(other.text):
                    return True
    return False


def _module_files(name: str, script: str) -> Iterator[str]:
    folder = posixpath.dirname(script)
    if name.startswith("."):
        dots = len(name) - len(name.lstrip("."))
        base = posixpath.normpath(posixpath.join(folder, *[".."] * (dots - 1)))
        flat, starts = name.lstrip(".").replace(".", "/"), [base]
    else:
        flat, starts = name.replace(".", "/"), [folder, "", "src"]
    for start in dict.fromkeys(starts):
        if not flat:
            continue
        joined = posixpath.normpath(posixpath.join(start, flat))
        if not joined.startswith(("..", "/")):
            yield f"{joined}.py"
            yield f"{joined}/__init__.py"


_SOURCE = "config"
#: More settings than this are not stated.
_MAX_SETTINGS = 2000


def claims_of(run: RunConfig, scope: Scope, condition: str, at: Span, spelling: str) -> tuple[Claim, ...]:
    """Return the claims of a configuration.

    Args:
        run: the configuration.
        scope: the scope of the claims.
        condition: the branch in which they hold.
        at: the location of claims about the framework's defaults, which are in no file.
        spelling: the text at that location.
    """
    framework = run.framework
    found: list[Claim] = []
    if framework is not None:
        found.append(Claim("training_framework", Known(framework.name), at, spelling, _SOURCE, scope, Strength.DEFAULT))
        if run.is_variant:
            found.append(Claim("framework_variant", Known(True), at, spelling, _SOURCE, scope))
        for key in framework.keys:
            found.extend(_key_claims(run, framework, key, scope, at, spelling))
        if framework.starts_ranks:
            found.extend(_world(found, scope))
        if framework.has_settings and not run.is_variant:
            found.extend(_settings(run, framework, scope, at, spelling))
    if run.by_hydra:
        found.extend(_refusal_claims(run, scope, at, spelling))
    return tuple(replace(claim, condition=condition) for claim in found)


def _settings(run: RunConfig, framework: Framework, scope: Scope, at: Span, spelling: str) -> Iterator[Claim]:
    """Yield every key that the line or the user's own files give, as `setting.FRAMEWORK.KEY`."""
    prefix = f"{SETTING_PREFIX}{framework.name}."
    is_whole = run.is_installed or framework.style is Style.FILE
    if run.incomplete or not is_whole or (not run.is_installed and run.composition.resolver.incomplete):
        # Its own files, or words that are not known, may give further keys.
        yield Claim(f"{prefix}(call)", Unresolved("further settings"), at, spelling, _SOURCE, scope)
    for path, leaf in truncate(list(leaves(run.composition.root)), _MAX_SETTINGS, "settings of a configuration"):
        on_line = leaf.place.strength is Strength.FLAG
        if (on_line or is_whole) and not is_secret(path[-1]) and not is_missing(leaf):
            value = _as_tuple(leaf) if isinstance(leaf, ListSetting) else _resolve(run, ".".join(path))
            if value is not None:
                name = f"{prefix}{'.'.join(path)}"
                yield Claim(name, value, leaf.place.span, leaf.place.spelling, _SOURCE, scope, leaf.place.strength)


def _as_tuple(items: ListSetting) -> Value:
    """Return a list as a tuple; unresolved if it holds other than plain values."""
    found: list[str | int | float | None] = []
    for item in items.items:
        if not isinstance(item, Leaf) or not isinstance(item.value, Known) or isinstance(item.value.value, tuple):
            return Unresolved("a list of sections or variables")
        found.append(item.value.value)
    return Known(tuple(found))


def _key_claims(
    run: RunConfig, framework: Framework, key: Key, scope: Scope, at: Span, spelling: str
) -> Iterator[Claim]:
    composition = run.composition
    role = replace(scope, role=key.role) if key.role else scope
    for below in framework.below:
        if key.when and composition.value(_join_key(below, key.when)) != Known(True):
            continue
        for name in key.keys:
            path = _join_key(below, name)
            setting = composition.leaf(path)
            if setting is None:
                continue
            claims = tuple(_layers(run, key, path, setting, role))
            if framework.files_only:
                claims = tuple(claim for claim in claims if claim.strength is not Strength.FLAG)
            if claims:
                yield from claims
                return
    if key.default is not None and run.is_installed and not run.incomplete and framework.starts_ranks:
        shown = f"{spelling} (without {key.keys[0]})"
        yield Claim(key.quantity, Known(key.default), at, shown, _SOURCE, role, Strength.DEFAULT)


def _join_key(below: str, key: str) -> str:
    return f"{below}.{key}" if below else key


def _layers(run: RunConfig, key: Key, path: str, setting: Setting, scope: Scope) -> Iterator[Claim]:
    """Yield the effective value and, as a weaker claim, the value that it replaces."""
    if is_missing(setting):
        return
    value = _resolve(run, path)
    if value is None or value == Known(None):
        return
    strength = setting.place.strength
    yield _claim(key, key.read(value), setting.place, scope, strength)
    before = setting.before
    if isinstance(before, Leaf) and isinstance(before.value, Known) and before.value.value not in (None, "???"):
        replaced = key.read(_plain(before.value))
        weaker = before.place.strength if before.place.strength < strength else Strength.DEFAULT
        if weaker < strength:
            yield _claim(key, replaced, before.place, scope, weaker)


def _resolve(run: RunConfig, path: str) -> Value | None:
    try:
        return run.composition.resolver.value(tuple(split_key(path)))
    except Unreadable as error:
        return Unresolved(str(error))


def _plain(value: Value) -> Value:
    if isinstance(value, Known) and "${" in str(value.value):
        return Unresolved(f"`{value.value}`, which was replaced")
    return value


def _claim(key: Key, value: Value, place: Place, scope: Scope, strength: Strength) -> Claim:
    return Claim(key.quantity, value, place.span, place.spelling, _SOURCE, scope, strength)


def _world(claims: list[Claim], scope: Scope) -> Iterator[Claim]:
    """Yield the number of training ranks: nodes times GPUs, as computed by the program that starts them all."""
    own = [claim for claim in claims if claim.scope == scope]
    own.sort(key=lambda claim: -claim.strength)
    nodes = next((claim for claim in own if claim.quantity == "nodes"), None)
    processes = next((claim for claim in own if claim.quantity == "processes_per_node"), None)
    if nodes is not None and processes is not None:
        value = lift(product, nodes.value, processes.value)
        spelling = f"{nodes.spelling} x {processes.spelling}"
        strength = max(nodes.strength, processes.strength)
        because = (nodes, processes)
        yield Claim("world_size", value, processes.span, spelling, _SOURCE, scope, strength, because=because)


def _refusal_claims(run: RunConfig, scope: Scope, at: Span, spelling: str) -> Iterator[Claim]:
    why = run.composition.resolver.incomplete
    if run.incomplete:
        why = "words of the command line that are set outside the script"
    if why:
        yield Claim("config_refused", Unresolved(why), at, spelling, "hydra", scope)
        return
    if not run.composition.refusals:
        yield from _dangling_claims(run, scope)
    for refusal in run.composition.refusals:
        if refusal.place is not None:
            yield _hydra_claims("config_refused", Known(refusal.message), refusal.place, scope)


def _hydra_claims(quantity: str, value: Value, place: Place, scope: Scope) -> Claim:
    return Claim(quantity, value, place.span, place.spelling, "hydra", scope, place.strength)


def _dangling_claims(run: RunConfig, scope: Scope) -> Iterator[Claim]:
    """Yield values that Hydra composes and OmegaConf cannot resolve: the program stops when it reads one."""
    resolver = run.composition.resolver
    for path, leaf in truncate(list(leaves(run.composition.root)), _MAX_SETTINGS, "settings of a configuration"):
        if not is_reference(leaf):
            continue
        try:
            resolver.resolved(leaf, path)
        except Unreadable as why:
            if why.is_required or (why.key and _is_set_by(run.program, why.key)):
                continue
            yield _hydra_claims("config_unresolvable", Known((".".join(path), str(why))), leaf.place, scope)


def _is_set_by(program: str, key: str) -> bool:
    """Return whether a program assigns a key: `cfg.classes = 10`, `cfg["classes"] = 10`, `update(cfg, "classes",
    10)`.
    """
    last = re.escape(key.rpartition(".")[2])
    return re.search(rf"\.{last}\s*=[^=]|[\"'](?:[\w.]+\.)?{last}[\"']\s*(?:\]\s*=[^=]|,)", program) is not None
