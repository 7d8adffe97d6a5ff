"""`python -m reference_trainer`, and the program inside the file that replaces a training script."""

import sys

from preflight.agent.process import exit_now
from reference_trainer.standalone import main

if __name__ == "__main__":
    # Watchdog threads call torch at times; one that returns to an interpreter that is shutting down aborts the
    # process, and a finished rank would be counted as dead.
    exit_now(main(sys.argv[1:]))
