"""The command `paddle` of PaddlePaddle 0.x: `paddle pserver`, `paddle train`, and cluster_train's `paddle.py`.

Sources: paddle/scripts/submit_local.sh.in, paddle/utils/Flags.cpp and paddle/scripts/cluster_train/paddle.py of
PaddlePaddle 0.8 to 0.11. Options are gflags: `--use_gpu=0`, `--use_gpu 0`, and a flag alone or with a `no` prefix.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace

from preflight.model.job import Known, Reference, Relation, Value, as_int, lift
from preflight.model.job.quantities import SETTING_PREFIX
from preflight.model.job.value import Plain
from preflight.sources.base import LaunchLine, Reading, SourceFile, Tree, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    declared_table,
    file_references,
    paths_of,
    relative,
    scan,
    text_of,
)
from preflight.sources.launchers.started_program import read_program
from preflight.sources.value_readers import as_strings, as_text

_OPTIONS = declared_table("paddle-v2")
#: Port settings, which servers and trainers both take.
_PORTS = {"port": "pserver_port", "ports_num": "pserver_ports", "ports_num_for_sparse": "pserver_sparse_ports"}
#: Defaults of paddle/utils/Flags.cpp.
_DEFAULTS = {"port": 20134, "ports_num": 1, "ports_num_for_sparse": 0}


class PaddleV2Reader:
    """Reads the command line of a server, a trainer, or the tool that starts all of them over ssh."""

    name: str = "paddle-v2"
    names: tuple[str, ...] = ("paddle", "paddle_trainer", "paddle_pserver_main", "paddle_pserver2", "paddle.py")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State ports, counts, role and index; the other subcommands launch nothing."""
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
    found = scan(plain, _OPTIONS)
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
        builder.add("ps_mode", Known(True), word.span, word.spelling)
        builder.add("ps_role", Known(role), word.span, f"{word.spelling} {text_of(line.words[1]) or ''}".strip())
        for dest, quantity in _PORTS.items():
            _state_port(builder, scanned, dest, quantity, word)
        builder.add_setting("ps_workers", scanned.last("num_gradient_servers"), as_int)
        builder.add_setting("ps_index", scanned.last("trainer_id"), as_int)
        builder.add_setting("pserver_hosts", scanned.last("pservers"), as_strings)
        builder.add_setting("pserver_nics", scanned.last("nics"), as_strings)
    if not server:
        local = scanned.last("local")
        if local is not None:
            builder.add_setting("trains_locally", local, _as_boolean)
        elif remote and not scanned.incomplete:
            builder.add_default("trains_locally", Known(True), word, "--local=0")
        builder.add_setting("trainer_threads", scanned.last("trainer_count"), as_int)
        for dest in ("average_test_period", "log_period"):
            builder.add_setting(f"{SETTING_PREFIX}paddle_train.{dest}", scanned.last(dest), as_int)
        for dest in ("local", "loadsave_parameters_in_pserver"):
            builder.add_setting(f"{SETTING_PREFIX}paddle_train.{dest}", scanned.last(dest), _as_boolean)
    claims = (*builder.claims, *(program.claims if program is not None else ()))
    return Reading(claims=claims, launches=(launch,), references=program.references if program is not None else ())


def _config_word(config: GivenOption | None, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The configuration file that a trainer runs, as if it were its program."""
    if config is None:
        return ()
    place = next((word for word in words if word.span == config.span), None)
    return (Word(config.value, config.span, config.spelling, parts=config.parts),) if place is not None else ()


def _state_port(builder: ClaimBuilder, scanned: ScannedLine, dest: str, quantity: str, word: Word) -> None:
    given = scanned.last(dest)
    if given is not None:
        builder.add_setting(quantity, given, as_int)
    elif not scanned.incomplete:
        default = _DEFAULTS[dest]
        builder.add_default(quantity, Known(default), word, f"--{dest}: {default}")


def _read_cluster_train(line: LaunchLine, words: tuple[Word, ...], tree: Tree) -> Reading:
    """Read `python paddle.py`, which reads conf.py beside it and starts a server and a trainer on every host."""
    scanned = _scan_gflags(words)
    given = {item.dest for item in scanned.given}
    if not given & {"job_workspace", "job_dispatch_package", "trainer_count", "ports_num_for_sparse", "config"}:
        return Reading()
    builder = ClaimBuilder("cluster_train", line.scope, line.command.condition)
    launch = read_program(line, "cluster_train", (), tree).launch
    word = line.words[0]
    builder.add("ps_mode", Known(True), word.span, word.spelling)
    for dest, quantity in _PORTS.items():
        # The tool passes these to trainers only; servers get the values in conf.py.
        builder.add_setting(quantity, scanned.last(dest), as_int, relation=Relation.REQUIRES)
    local = scanned.last("local")
    if local is not None:
        builder.add_setting("trains_locally", local, _as_boolean)
    elif not scanned.incomplete and not scanned.unknown:
        builder.add_default("trains_locally", Known(True), word, "--local=0")
    builder.add_setting("trainer_threads", scanned.last("trainer_count"), as_int)
    builder.add_setting("cluster_workspace", scanned.last("job_workspace"), as_text)
    builder.add_setting("cluster_package", scanned.last("job_dispatch_package"), as_text)
    references = []
    conf = relative(posixpath.join(posixpath.dirname(text_of(word) or ""), "conf.py"), line, tree)
    if conf is not None:
        references.append(Reference(conf, "script", word.span, line.scope))
    sent = _sent_files(line, scanned, tree)
    references.extend(sent)
    if all(reference.role != "script" for reference in sent):
        references.extend(file_references(scanned.last("config"), "script", line, tree))
    return Reading(claims=tuple(builder.claims), launches=(launch,), references=tuple(references))


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
                target = relative(posixpath.join(folder, name), line, tree)
                if given is not None and target is not None and isinstance(tree.read(target), SourceFile):
                    found.append(Reference(target, role, given.span, line.scope))
    return list(dict.fromkeys(found))


def _as_boolean(value: Value) -> Value:
    return lift(_parse_boolean, value)


def _parse_boolean(item: Plain) -> bool:
    """Parse a gflags boolean."""
    text = str(item).strip().lower()
    if text in ("1", "true", "t", "yes", "y"):
        return True
    if text in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError(f"{item}: neither true nor false")
