"""Validates many cases in one process: reads cases from one file, and writes the message for each to another.

Runs in the environment of a framework, so it imports only the standard library.
"""

import contextlib
import json
import os
import pathlib
import sys
import tempfile


class Refusal(Exception):
    """The message of a parser that would end the process."""


def main(validate, on_gpu_node, same_here=False):
    """Ask about every case twice: on this machine, and as on a node with GPUs.

    Args:
        validate: called in a folder with the files of a case; raises what the framework raises.
        on_gpu_node: a context in which the framework sees GPUs, and the ranks of the launch.
        same_here: the result does not depend on the node, so each case runs once.
    """
    source, target = sys.argv[1:3]
    with pathlib.Path(source).open(encoding="utf-8") as file:
        cases = [json.loads(line) for line in file]
    with pathlib.Path(target).open("w", encoding="utf-8") as out:
        for case in cases:
            with on_gpu_node():
                message = _verdict_line(validate, case)
            here = message if message or same_here else _verdict_line(validate, case)
            out.write(json.dumps({"id": case["id"], "message": message, "here": here}) + "\n")
            out.flush()


def _verdict_line(validate, case):
    """Return the framework's error on one line (`ValueError: ...`, `exit 2`); empty if it accepts the case."""
    before = dict(os.environ)
    start = pathlib.Path.cwd()
    argv = sys.argv
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for path, text in case["files"].items():
            pathlib.Path(path).write_text(text, encoding="utf-8")
        try:
            with contextlib.redirect_stdout(sys.stderr):
                validate(case)
        except SystemExit as error:
            return f"exit {error.code}"
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return f"{type(error).__name__}: {' | '.join(lines)[:400]}"
        finally:
            sys.argv = argv
            os.chdir(start)
            os.environ.clear()
            os.environ.update(before)
    return ""
