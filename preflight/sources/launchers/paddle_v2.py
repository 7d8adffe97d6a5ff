"""The command `paddle` of PaddlePaddle 0.x: `paddle pserver`, `paddle train`, and cluster_train's `paddle.py`.

Sources: paddle/scripts/submit_local.sh.in, paddle/utils/Flags.cpp and paddle/scripts/cluster_train/paddle.py of
PaddlePaddle 0.8 to 0.11. Options are gflags: `--use_gpu=0`, `--use_gpu 0`, and a bare or `no`-prefixed flag.
"""

from __future__ import annotations

import posixpath
from dataclasses import replace

from preflight.job import Known, Reference, Relation, Strength, Value, as_int, lift
from preflight.job.value import Plain
from preflight.sources.base import LaunchLine, Reading, SourceFile, Tree, Word
from preflight.sources.launchers.options import Given, Scanned, scan, table, text_of
from preflight.sources.launchers.paths import paths_of, relative
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_strings, as_text

_VALUED = {
    "port": "--port",
    "ports_num": "--ports_num",
    "ports_num_for_sparse": "--ports_num_for_sparse",
    "num_gradient_servers": "--num_gradient_servers",
    "trainer_id": "--trainer_id",
    "trainer_count": "--trainer_count",
    "pservers": "--pservers",
    "nics": "--nics",
    "comment": "--comment",
    "config": "--config",
    "job_workspace": "-j --job_workspace",
    "job_dispatch_package": "-p --job_dispatch_package",
    "save_dir": "--save_dir",
    "config_args": "--config_args",
    "use_gpu": "--use_gpu",
    "local": "--local",
}
_OPTIONS = table(_VALUED, abbreviations=False, interleaved=True)
#: What the pserver is told besides its place, in both roles.
_PORTS = {
    "port": "pserver_port",
    "ports_num": "pserver_ports",
    "ports_num_for_sparse": "pserver_sparse_ports",
}
#: Defaults of paddle/utils/Flags.cpp.
_DEFAULTS = {"port": 20134, "ports_num": 1, "ports_num_for_sparse": 0}


class PaddleV2Reader:
    """Reads the line of a server, a trainer, or the tool that starts all of them over ssh."""

    name: str = "paddle-v2"
    names: tuple[str, ...] = ("paddle", "paddle_trainer", "paddle_pserver_main", "paddle_pserver2", "paddle.py")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State ports, counts, role and index; nothing for the other subcommands."""
        name = posixpath.basename(text_of(line.words[0]) or "")
        words = line.words[1:]
        if name == "paddle.py":
            return _cluster(line, words, tree)
        if name == "paddle":
            command = text_of(words[0]) if words else None
            if command not in ("pserver", "train"):
                return Reading()
            words = words[1:]
        else:
            command = "train" if name == "paddle_trainer" else "pserver"
        return _process(line, words, tree, server=command == "pserver")


def _scanned(words: tuple[Word, ...]) -> Scanned:
    """The options of a line; a word that may stand for several leaves the others readable, but hides some."""
    plain = [word for word in words if not word.many]
    found = scan(plain, _OPTIONS)
    return replace(found, incomplete=found.incomplete or len(plain) < len(words))


def _process(line: LaunchLine, words: tuple[Word, ...], tree: Tree, *, server: bool) -> Reading:
    """One server or one trainer."""
    scanned = _scanned(words)
    stating = Stating("paddle", line.scope, line.command.condition)
    word = line.words[0]
    remote = server or scanned.last("pservers") is not None
    config = scanned.last("config")
    program = started(line, "paddle-v2", _config_word(config, words), tree) if not server else None
    launch = started(line, "paddle-v2", (), tree).launch if program is None else program.launch
    if remote:
        role = "PSERVER" if server else "TRAINER"
        stating.say("ps_mode", Known(True), word.span, word.spelling)
        stating.say("ps_role", Known(role), word.span, f"{word.spelling} {text_of(line.words[1]) or ''}".strip())
        for dest, quantity in _PORTS.items():
            _port(stating, scanned, dest, quantity, word)
        stating.given("ps_workers", scanned.last("num_gradient_servers"), as_int)
        stating.given("ps_index", scanned.last("trainer_id"), as_int)
        stating.given("pserver_hosts", scanned.last("pservers"), as_strings)
        stating.given("pserver_nics", scanned.last("nics"), as_strings)
    if not server:
        local = scanned.last("local")
        if local is not None:
            stating.given("trains_locally", local, _switch)
        elif remote and not scanned.incomplete:
            spelling = f"{word.spelling} (without --local=0)"
            stating.say("trains_locally", Known(True), word.span, spelling, strength=Strength.DEFAULT)
        stating.given("trainer_threads", scanned.last("trainer_count"), as_int)
    claims = (*stating.claims, *(program.claims if program is not None else ()))
    return Reading(claims=claims, launches=(launch,), references=program.references if program is not None else ())


def _config_word(config: Given | None, words: tuple[Word, ...]) -> tuple[Word, ...]:
    """The configuration that a trainer runs, as if it were its program."""
    if config is None:
        return ()
    place = next((word for word in words if word.span == config.span), None)
    return (Word(config.value, config.span, config.spelling, parts=config.parts),) if place is not None else ()


def _port(stating: Stating, scanned: Scanned, dest: str, quantity: str, word: Word) -> None:
    given = scanned.last(dest)
    if given is not None:
        stating.given(quantity, given, as_int)
    elif not scanned.incomplete:
        default = _DEFAULTS[dest]
        spelling = f"{word.spelling} (without --{dest}: {default})"
        stating.say(quantity, Known(default), word.span, spelling, strength=Strength.DEFAULT)


def _cluster(line: LaunchLine, words: tuple[Word, ...], tree: Tree) -> Reading:
    """`python paddle.py`, which reads conf.py beside it and starts a server and a trainer on every host."""
    scanned = _scanned(words)
    given = {item.dest for item in scanned.given}
    if not given & {"job_workspace", "job_dispatch_package", "trainer_count", "ports_num_for_sparse", "config"}:
        return Reading()
    stating = Stating("cluster_train", line.scope, line.command.condition)
    launch = started(line, "cluster_train", (), tree).launch
    word = line.words[0]
    stating.say("ps_mode", Known(True), word.span, word.spelling)
    for dest, quantity in _PORTS.items():
        # The tool hands these to trainers only; servers get what conf.py says.
        stating.given(quantity, scanned.last(dest), as_int, relation=Relation.REQUIRES)
    local = scanned.last("local")
    if local is not None:
        stating.given("trains_locally", local, _switch)
    elif not scanned.incomplete and not scanned.unknown:
        spelling = f"{word.spelling} (without --local=0)"
        stating.say("trains_locally", Known(True), word.span, spelling, strength=Strength.DEFAULT)
    stating.given("trainer_threads", scanned.last("trainer_count"), as_int)
    stating.given("cluster_workspace", scanned.last("job_workspace"), as_text)
    stating.given("cluster_package", scanned.last("job_dispatch_package"), as_text)
    references = []
    conf = relative(posixpath.join(posixpath.dirname(text_of(word) or ""), "conf.py"), line, tree)
    if conf is not None:
        references.append(Reference(conf, "script", word.span, line.scope))
    config = scanned.last("config")
    for path in paths_of(config.value, config.parts) if config is not None else ():
        target = relative(path, line, tree)
        if config is not None and target is not None:
            references.append(Reference(target, "script", config.span, line.scope))
    references.extend(_index_files(line, scanned, tree))
    return Reading(claims=tuple(stating.claims), launches=(launch,), references=tuple(references))


def _index_files(line: LaunchLine, scanned: Scanned, tree: Tree) -> list[Reference]:
    """`train.list` of the package that is sent to all hosts, where it lies in the tree."""
    package = scanned.last("job_dispatch_package")
    found = []
    for path in paths_of(package.value, package.parts) if package is not None else ():
        for name in ("train.list", "data/train.list"):
            target = relative(posixpath.join(path, name), line, tree)
            if package is not None and target is not None and not _missing(tree, target):
                found.append(Reference(target, "index", package.span, line.scope))
    return found


def _missing(tree: Tree, path: str) -> bool:
    return not isinstance(tree.read(path), SourceFile)


def _switch(value: Value) -> Value:
    return lift(_truth, value)


def _truth(item: Plain) -> bool:
    """A gflags boolean, as people write them."""
    text = str(item).strip().lower()
    if text in ("1", "true", "t", "yes", "y"):
        return True
    if text in ("0", "false", "f", "no", "n"):
        return False
    raise ValueError(f"{item}: neither true nor false")
