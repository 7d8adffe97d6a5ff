"""One server or worker over Paddle's own parameter servers, as a program with its parameters as a JSON argument.

Standard library only, started by the interpreter that has paddle. Its events are printed on standard output.
"""

import json
import os
import sys
from dataclasses import asdict


def main():
    asked = json.loads(sys.argv[1])
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from reference_trainer.ps.server import server
    from reference_trainer.ps.worker import worker

    events = []
    try:
        run = server if asked["role"] == "server" else worker
        answer = {"report": asdict(run(asked["params"], events.append))}
    except BaseException as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    out.write(json.dumps({**answer, "events": events}))
    out.flush()
    os._exit(0)


main()
