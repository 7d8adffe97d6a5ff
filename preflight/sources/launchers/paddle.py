"""Launchers of Paddle, all generations: `python -m paddle.distributed.launch` and `fleetrun`, and `paddle` of 0.x.

Sources: paddle/scripts/submit_local.sh.in, paddle/utils/Flags.cpp and paddle/scripts/cluster_train/paddle.py of
PaddlePaddle 0.8 to 0.11. Options are gflags: `--use_gpu=0`, `--use_gpu 0`, and a flag alone or with a `no` prefix.

The options are generated (preflight/sources/tables). Other sources: paddle/distributed/launch/context/args_envs.py and
controllers/{collective,ps}.py (PaddlePaddle 3.x), and paddle/distributed/fleet/launch.py (2.0 to 2.2), whose flags 3.x
still accepts in its legacy mode. Unlike in other launchers, a variable overrides its option: `set_env_in_args`
overwrites the parsed options.

Source: the argument groups of finetune_launch.py, pretrain_launch.py and lanch.py in PaddlePaddle/ERNIE, tags 1.0 to
2.3. They set PADDLE_TRAINER_ID from `--node_id` and start the ranks of one node as Paddle's own launcher does, so their
launches have the launcher `paddle`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from preflight._util.budget import truncate
from preflight.model.job import (
    Claim,
    Known,
    Plain,
    Reference,
    Relation,
    Unresolved,
    Value,
    alternatives,
    as_int,
    lift,
)
from preflight.model.job.value import SETTING_PREFIX
from preflight.sources.base import LaunchLine, Reading, SourceFile, Tree, Word
from preflight.sources.configs.framework_files import state_settings
from preflight.sources.formats.structured import Kind, NodeClaims, document_of
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    node_range,
    state_all_gpus,
    state_endpoint,
    state_node_range,
    state_options,
    state_single_start,
    variable_setting,
)
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    Table,
    declared_options,
    declared_table,
    file_named,
    file_references,
    known_prefix,
    paths_of,
    relative,
    scan,
    text_of,
    texts,
)
from preflight.sources.launchers.script_arguments import read_program
from preflight.sources.value_readers import as_gflag, as_strings, as_text, count_of, first_of, index_of, product_of

_V2_OPTIONS = declared_table("paddle-v2")


def read_paddle_v2(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of a server, a trainer, or the tool that starts all of them over ssh.

    The other subcommands launch nothing.
    """
    name = posixpath.basename(text_of(line.words[0]) or "")
    words = line.words[1:]
    if name == "paddle.py":
        return _read_cluster_train(line, words, tree)
    if name == "paddle":
        command = text_of(words[0]) if words else None
        if command not in ("pserver", "train"):
            return Reading()
        words = words[1:]
    else:
        command = "train" if name == "paddle_trainer" else "pserver"
    return _read_process(line, words, tree, server=command == "pserver")


def _scan_gflags(words: tuple[Word, ...]) -> ScannedLine:
    """Parse the options of a line, skipping words that may stand for several; those make the result incomplete."""
    plain = [word for word in words if not word.many]
    found = scan(plain, _V2_OPTIONS)
    return replace(found, incomplete=found.incomplete or len(plain) < len(words))


def _read_process(line: LaunchLine, words: tuple[Word, ...], tree: Tree, *, server: bool) -> Reading:
    """Read one server or one trainer."""
    scanned = _scan_gflags(words)
    builder = ClaimBuilder("paddle", line.scope, line.command.condition)
    word = line.words[0]
    remote = server or scanned.last("pservers") is not None
    config = scanned.last("config")
    program = read_program(line, "paddle-v2", _config_word(config, words), tree) if not server else None
    launch = read_program(line, "paddle-v2", (), tree).launch if program is None else program.launch
    if remote:
        role = "PSERVER" if server else "TRAINER"
        builder.add("ps_mode", Known(True), word)
        builder.add("ps_role", Known(role), word, f"{word.spelling} {text_of(line.words[1]) or ''}".strip())
        state_options(builder, "paddle-v2-server", scanned.last, word, hidden=scanned.incomplete)
    if not server:
        local = scanned.last("local")
        if local is not None:
            builder.add_setting("trains_locally", local, as_gflag)
        elif remote and not scanned.incomplete:
            builder.add_default("trains_locally", Known(True), word, "--local=0")
        state_options(builder, "paddle-v2-trainer", scanned.last)
    claims = (*builder.claims, *(program.claims if program is not None else ()))
    return Reading(claims=claims, launches=(launch,), references=program.references if program is not None else ())


def _config_word(config: GivenOption | None, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the configuration file that a trainer runs, as if it were its program."""
    if config is None:
        return ()
    place = next((word for word in words if word.span == config.span), None)
    return (Word(config.value, config.span, config.spelling, parts=config.parts),) if place is not None else ()


def _read_cluster_train(line: LaunchLine, words: tuple[Word, ...], tree: Tree) -> Reading:
    """Read `python paddle.py`, which reads conf.py beside it and starts a server and a trainer on every host."""
    scanned = _scan_gflags(words)
    given = {item.dest for item in scanned.given}
    if not given & {"job_workspace", "job_dispatch_package", "trainer_count", "ports_num_for_sparse", "config"}:
        return Reading()
    builder = ClaimBuilder("cluster_train", line.scope, line.command.condition)
    launch = read_program(line, "cluster_train", (), tree).launch
    word = line.words[0]
    builder.add("ps_mode", Known(True), word)
    state_options(builder, "paddle-v2-cluster", scanned.last)
    local = scanned.last("local")
    if local is not None:
        builder.add_setting("trains_locally", local, as_gflag)
    elif not scanned.incomplete and not scanned.unknown:
        builder.add_default("trains_locally", Known(True), word, "--local=0")
    references = []
    conf = relative(posixpath.join(posixpath.dirname(text_of(word) or ""), "conf.py"), line, tree)
    if conf is not None:
        references.append(Reference(conf, "script", word.span, line.scope))
    sent = _sent_files(line, scanned, tree)
    references.extend(sent)
    package = scanned.last("job_dispatch_package")
    for reference in sent:
        if reference.role == "index" and package is not None and not _divides_by_host(reference.target, tree):
            builder.add("sent_index", Known(reference.target), package)
            break
    if all(reference.role != "script" for reference in sent):
        # It counts from the workspace on the hosts.
        is_elsewhere = scanned.last("job_workspace") is not None
        named = file_references(scanned.last("config"), "script", line, tree)
        references.extend(replace(each, is_elsewhere=each.is_elsewhere or is_elsewhere) for each in named)
    return Reading(claims=tuple(builder.claims), launches=(launch,), references=tuple(references))


#: Words of what finds out which host it is on.
_OF_HOST = re.compile(r"nodefile|trainer_id|gethostname|HOSTNAME|\bRANK\b|environ")


def _divides_by_host(index: str, tree: Tree) -> bool:
    """Return whether a program beside an index file, which reads the data, may take the part of its host."""
    folder = posixpath.dirname(index)
    folders = dict.fromkeys((folder, posixpath.dirname(folder)))
    paths = (posixpath.join(each, name) for each in folders for name in tree.names(each) if name.endswith(".py"))
    files = (tree.read(path) for path in paths)
    return any(isinstance(file, SourceFile) and _OF_HOST.search(file.text) for file in files)


def _sent_files(line: LaunchLine, scanned: ScannedLine, tree: Tree) -> list[Reference]:
    """Refer to the configuration and `train.list` in the package that is sent to all hosts, when it is in the tree."""
    package, config = scanned.last("job_dispatch_package"), scanned.last("config")
    if package is None:
        return []
    wanted = [(name, "script", config) for name in (paths_of(config.value, config.parts) if config else ())]
    wanted += [(name, "index", package) for name in ("train.list", "data/train.list")]
    found = []
    for path in paths_of(package.value, package.parts):
        # An absolute path is that of a checkout on the host where the job is started.
        for folder in (path, posixpath.basename(path.rstrip("/"))):
            for name, role, given in wanted:
                file = file_named(posixpath.join(folder, name), line, tree)
                if given is not None and file is not None:
                    found.append(Reference(file.path, role, given.span, line.scope))
    return list(dict.fromkeys(found))


_OPTIONS = declared_table("paddle")
_VARIABLES: dict[str, str] = declared_options("paddle")["variables"]
_OVERRIDING = {variable: dest for dest, variable in _VARIABLES.items()} | declared_options("paddle")["overriding"]
#: How the launcher of today is started, not an earlier generation by its own name.
_OF_TODAY = ("paddle.distributed.launch", "paddle.distributed.launch.main", "fleetrun")
#: What `strtobool` takes for true.
_TRUE = ("y", "yes", "t", "true", "on", "1")
#: More words than this are not a launch line.
_MAX_WORDS = 400
#: The options of the launcher of today, and of that of 2.0, which takes over at an option that is not one of these.
_NEW, _FIRST = declared_table("paddle-launch"), declared_table("paddle-fleet-launch")
#: The options of the launchers of 1.x, and those that no other has.
_ONLY_FIRST = frozenset(("cluster_node_ips", "node_ip", "started_port", "use_paddlecloud", "print_config"))
_OF_FIRST = declared_table("paddle-1")
_OF_IPU = declared_table("paddle-ipu")
_PS_ONLY = ("servers", "trainers", "heter_workers", "server_num", "trainer_num", "heter_worker_num", "http_port")


def read_paddle(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of Paddle's launcher: nodes, processes, master or servers and workers, and program."""
    scanned = scan(line.words[1:], _OPTIONS)
    if scanned.last("help") is not None:
        return Reading()
    builder = ClaimBuilder("paddle", line.scope, line.command.condition)
    program = read_program(line, "paddle", scanned.rest, tree)
    settings = {dest: found for dest in _DESTS if (found := _setting_in_force(dest, scanned, line)) is not None}
    if _is_parameter_server(settings, line):
        _state_servers(builder, settings, line)
    else:
        _state_collective(builder, settings, line, hidden=scanned.incomplete)
    _state_first_settings(builder, line, scanned)
    if line.words[0].spelling.strip("\"'").endswith(_OF_TODAY):
        _state_settings(builder, line, hidden=scanned.incomplete)
    tuner = scanned.last("auto_tuner_json")
    builder.claims.extend(_tuner_settings(tuner, line, tree) if tuner is not None else ())
    state_options(builder, "paddle", settings.get)
    return program.reading(builder.claims)


def _state_settings(builder: ClaimBuilder, line: LaunchLine, *, hidden: bool) -> None:
    """Add claims about what the launcher itself reads as `setting.paddle_launch.NAME`, as text: each option, or the
    variable that overrides it; `first` for the option that makes the launcher of 2.0 take over; `taken` for an option
    that is not known, whose value is then taken for the program.
    """
    parsed = _parse(line, _NEW)
    first: Word | GivenOption | None = next(iter(parsed.unknown), None) if "master" not in parsed.given else None
    legacy = parsed.given.get("legacy")
    if legacy is not None and all(text.lower() in _TRUE for text in texts(legacy.value)):
        first = legacy
    given = dict(parsed.given)
    if first is not None:
        again = _parse(line, _FIRST)
        given, parsed = {**given, **again.given}, again
    found = dict(given)
    environment = line.command.environment
    for variable, dest in _OVERRIDING.items() if first is None else ():
        setting = variable_setting(environment.get(variable))
        if setting is not None and dest in found and texts(setting.value) != texts(found[dest].value):
            option, prefix = found[dest], f"{SETTING_PREFIX}paddle_launch."
            value = option.value if isinstance(setting.value, Known) else setting.value
            builder.add(f"{prefix}overridden", lift(str, value), option)
            builder.add(f"{prefix}overriding", lift(str, setting.value), setting)
        if setting is not None:
            found[dest] = setting
    if parsed.program is not None and known_prefix(parsed.program) == "ipu":
        # This launcher's own word for a launcher of processors, whose options follow.
        behind = scan(line.words[line.words.index(parsed.program) + 1 :], _OF_IPU).given
        found |= {option.dest: option for option in behind}
    for dest, setting in found.items():
        builder.add_setting(f"{SETTING_PREFIX}paddle_launch.{dest}", setting, lambda value: lift(str, value))
    if hidden:
        word = line.words[0]
        builder.add(f"{SETTING_PREFIX}paddle_launch.(call)", Unresolved("further options"), word)
        return
    dropped = next(iter(parsed.unknown), None) if first is None else None
    stops: tuple[tuple[str, Word | GivenOption | None], ...] = (
        *(("first", first), ("taken", parsed.taken), ("dropped", dropped), ("program", parsed.program)),
    )
    for dest, item in stops:
        if item is not None:
            of_program = dest in ("taken", "program") and parsed.program is not None
            value = Known(known_prefix(parsed.program) if of_program and parsed.program is not None else "")
            builder.add(f"{SETTING_PREFIX}paddle_launch.{dest}", value, item)


def _tuner_settings(tuner: GivenOption, line: LaunchLine, tree: Tree) -> Sequence[Claim]:
    """Return the keys of the tuner's file, as `setting.paddle_tuner.NAME`."""
    file = file_named(next(iter(texts(tuner.value)), ""), line, tree)
    root = document_of(file).root if file is not None else None
    if file is None or root is None or root.kind is not Kind.OBJECT:
        return ()
    found = NodeClaims(file, "paddle_tuner", line.scope)
    state_settings(found, root, "paddle_tuner")
    return found.claims


def _state_first_settings(builder: ClaimBuilder, line: LaunchLine, scanned: ScannedLine) -> None:
    """Add claims for options of the launchers of Paddle 1.x as `setting.paddle_launch_1.NAME`; `ps` for launch_ps,
    `spaced` if a blank stands before the value.
    """
    given = {option.dest: option for option in scan(line.words[1:], _OF_FIRST).given}
    of_servers = line.words[0].spelling.strip("\"'").endswith("launch_ps")
    if scanned.incomplete or not (of_servers or set(given) & {*_ONLY_FIRST, "selected_gpus"}):
        return
    prefix = f"{SETTING_PREFIX}paddle_launch_1."
    for dest, option in given.items():
        builder.add_setting(f"{prefix}{dest}", option, lambda value: lift(str, value))
    word = line.words[0]
    if of_servers:
        builder.add(f"{prefix}ps", Known(True), word)
    if any(dest in _ONLY_FIRST and "=" not in option.spelling for dest, option in given.items()):
        builder.add(f"{prefix}spaced", Known(True), word)


class _Parsed(NamedTuple):
    """The result of `parse_known_args` for a line: options, those that are not known, and the program.

    `taken` is the unknown option whose value became the program.
    """

    given: dict[str, GivenOption]
    unknown: tuple[Word, ...]
    taken: Word | None
    program: Word | None


def _parse(line: LaunchLine, known: Table) -> _Parsed:
    given: dict[str, GivenOption] = {}
    unknown: list[Word] = []
    words = truncate(line.words[1:], _MAX_WORDS, "words of a launch line")
    place, last = 0, None
    while place < len(words):
        word, text = words[place], known_prefix(words[place])
        place += 1
        name, equals, _ = text.partition("=")
        if not name.startswith("-"):
            return _Parsed(given, tuple(unknown), last, word)
        option = known.find(name)
        last = None
        if option is None:
            unknown.append(word)
            last = None if equals else word
            continue
        scanned = scan(words[place - 1 : place + (0 if equals else 1)], known)
        given.update({item.dest: item for item in scanned.given})
        place += 0 if equals else option.takes
    return _Parsed(given, tuple(unknown), None, None)


_DESTS = tuple(dict.fromkeys(option.dest for option in _OPTIONS.options.values()))


def _setting_in_force(dest: str, scanned: ScannedLine, line: LaunchLine) -> GivenOption | None:
    environment = line.command.environment
    if dest == "rank" and "PADDLE_TRAINER_ID" in environment:
        return variable_setting(environment["PADDLE_TRAINER_ID"])
    variable = environment.get(_VARIABLES.get(dest, ""))
    return variable_setting(variable) or scanned.last(dest)


def _is_parameter_server(settings: dict[str, GivenOption], line: LaunchLine) -> bool:
    mode = settings.get("run_mode")
    if mode is not None and texts(mode.value):
        return all(text.startswith("ps") for text in texts(mode.value))
    module = line.words[0].spelling.strip("\"'")
    if module.endswith("launch_ps"):
        return True
    return any(dest in settings and texts(settings[dest].value) != ("",) for dest in _PS_ONLY)


def _state_collective(
    builder: ClaimBuilder, settings: dict[str, GivenOption], line: LaunchLine, *, hidden: bool
) -> None:
    word = line.words[0]
    ips = settings.get("ips")
    nnodes = settings.get("nnodes")
    if ips is not None and "master" not in settings:
        builder.add_setting("hosts", ips, as_strings)
        builder.add_setting("nodes", ips, lambda value: count_of(as_strings(value)), relation=Relation.REQUIRES)
    elif nnodes is not None:
        state_node_range(builder, nnodes)
    elif not hidden:
        builder.add_default("nodes", Known(1), word, "--nnodes", relation=Relation.REQUIRES)
    if "nproc_per_node" in settings:
        builder.add_setting("processes_per_node", settings["nproc_per_node"], as_int)
        # Each process gets one of the listed devices; a process beyond the list gets none (launch/controllers).
        builder.add_setting("gpus_per_node", settings.get("devices"), device_count)
    elif "devices" in settings:
        builder.add_setting("processes_per_node", settings["devices"], device_count)
    elif not hidden:
        # One process for each visible device (launch/context/device.py).
        visible = variable_setting(line.command.environment.get("CUDA_VISIBLE_DEVICES"))
        builder.add_setting("processes_per_node", visible, device_count)
        if visible is None:
            state_all_gpus(builder, word, "--devices")
    builder.add_setting("selected_devices", settings.get("devices"), as_strings)
    state_single_start(builder, line)
    rank = _unless_negative(settings.get("rank"))
    builder.add_setting("node_rank", rank, as_int)
    state_address(builder, settings.get("host"), ips, numbered=rank is not None)
    _state_master(builder, settings)


def state_address(
    builder: ClaimBuilder, own_address: GivenOption | None, ips: GivenOption | None, *, numbered: bool = False
) -> None:
    """Add claims for the node's own address and, unless `numbered`, its rank: the position of the address in the node
    list.
    """
    builder.add_setting("node_address", own_address, as_text)
    several = ips is not None and all("," in text.strip(", ") for text in texts(ips.value))
    if own_address is not None and ips is not None and several and not numbered:
        place = lift(index_of, as_text(own_address.value), as_strings(ips.value))
        if not isinstance(place, Unresolved):
            builder.add_setting("node_rank", own_address, lambda _: place)


def _state_master(builder: ClaimBuilder, settings: dict[str, GivenOption]) -> None:
    master = settings.get("master")
    if master is not None:
        state_endpoint(builder, master, lambda value: lift(lambda item: str(item).rpartition("://")[2], value))
        scheme = {text.partition("://")[0] for text in texts(master.value) if "://" in text}
        builder.add_setting("rendezvous_backend", master, lambda _: Known("etcd" if "etcd" in scheme else "http"))
        return
    builder.add_setting("master_addr", settings.get("ips"), first_of)
    builder.add_setting("master_port", settings.get("start_port"), as_int)


def _state_servers(builder: ClaimBuilder, settings: dict[str, GivenOption], line: LaunchLine) -> None:
    first = next((settings[dest] for dest in ("run_mode", *_PS_ONLY) if dest in settings), None)
    place = first or GivenOption("", Known(True), line.words[0].span, line.words[0].spelling)
    builder.add_setting("ps_mode", place, lambda _: Known(True))
    for listed, counted, endpoints, number in (
        ("servers", "server_num", "ps_server_endpoints", "ps_servers"),
        ("trainers", "trainer_num", "ps_worker_endpoints", "ps_workers"),
    ):
        names = settings.get(listed)
        if names is not None and texts(names.value) != ("",):
            builder.add_setting(endpoints, names, as_strings)
            builder.add_setting(number, names, lambda value: count_of(as_strings(value)))
        count = settings.get(counted)
        if count is not None:
            relation = Relation.SETS if names is None else Relation.REQUIRES
            builder.add_setting(number, count, lambda value: _per_node(as_int(value), settings), relation=relation)
    hosts = _hosts_of(settings)
    listed_by = settings.get("servers") or settings.get("trainers")
    if hosts and listed_by is not None:
        builder.add_setting("hosts", listed_by, lambda _: Known(hosts))
        builder.add_setting("nodes", listed_by, lambda _: Known(len(hosts)), relation=Relation.REQUIRES)
    elif "nnodes" in settings:
        builder.add_setting("nodes", settings["nnodes"], lambda value: node_range(value)[1], relation=Relation.REQUIRES)
    builder.add_setting("node_rank", _unless_negative(settings.get("rank")), as_int)
    if not hosts and "ips" in settings:
        builder.add_setting("hosts", settings["ips"], as_strings)
    builder.add_setting("node_address", settings.get("host"), as_text)
    builder.add_setting("gloo_http_port", settings.get("http_port") or settings.get("gloo_port"), as_int)
    _state_master(builder, settings)


def _per_node(count: Value, settings: dict[str, GivenOption]) -> Value:
    """Multiply `--server_num`, a count per node, by the number of nodes."""
    nnodes = settings.get("nnodes")
    if nnodes is None or "servers" in settings:
        return count
    return lift(product_of, count, node_range(nnodes.value)[1])


def _hosts_of(settings: dict[str, GivenOption]) -> tuple[str, ...]:
    """Return the hosts of the endpoint lists in order of appearance; empty when a list is unknown."""
    found: list[str] = []
    for dest in ("servers", "trainers"):
        setting = settings.get(dest)
        if setting is None:
            continue
        lists = alternatives(as_strings(setting.value))
        if len(lists) != 1 or not isinstance(lists[0], tuple):
            return ()
        found.extend(str(item).rpartition(":")[0] or str(item) for item in lists[0])
    return tuple(dict.fromkeys(found))


def device_count(value: Value) -> Value:
    """Return the number of devices in a list such as `0,1,2`."""

    def count(item: Plain) -> Plain:
        names = [part for part in str(item).split(",") if part.strip()]
        if not names or not all(part.strip().isdecimal() for part in names):
            raise ValueError(f"{item} is not a list of device numbers")
        return len(names)

    return lift(count, value)


def _unless_negative(setting: GivenOption | None) -> GivenOption | None:
    """Return the setting, or None for -1, which means "not given": the launcher then numbers nodes in order of
    arrival.
    """
    return None if setting is None or texts(setting.value) == ("-1",) else setting


_WRAPPER_OPTIONS = declared_table("paddle-wrapper")
#: Options that only such a script has; one of them distinguishes it from a training script.
_OWN_OPTIONS = ("--node_ips", "--cluster_node_ips")


def read_paddle_wrapper(line: LaunchLine, tree: Tree) -> Reading:
    """Read the command line of a script that wraps Paddle's launcher: nodes, processes per node, the node rank,
    and the program.
    """
    scanned = scan(line.words[1:], _WRAPPER_OPTIONS)
    if scanned.last("help") is not None:
        return Reading()
    builder = ClaimBuilder("paddle", line.scope, line.command.condition)
    program = read_program(line, "paddle", scanned.rest, tree)
    ips = scanned.last("node_ips")
    state_options(builder, "paddle-wrapper", scanned.last)
    numbered = scanned.last("node_id") is not None
    state_address(builder, scanned.last("current_node_ip"), ips, numbered=numbered)
    processes = scanned.last("nproc_per_node")
    builder.add_setting("processes_per_node", processes, as_int)
    if processes is None:
        builder.add_setting("processes_per_node", scanned.last("selected_gpus"), device_count)
    return program.reading(builder.claims)


def is_wrapper(words: tuple[Word, ...]) -> bool:
    """Return whether a script, whatever its name, is called with the options of a wrapper of Paddle's launcher,
    followed by another script.
    """
    texts = [known_prefix(word) for word in words[1:40]]
    own = next((index for index, text in enumerate(texts) if text.partition("=")[0] in _OWN_OPTIONS), None)
    return own is not None and any(text.endswith(".py") for text in texts[own + 1 :])
