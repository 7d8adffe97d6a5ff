"""`python -m reference_trainer`, and the program inside of the file that takes a training script's place."""

import sys

from preflight.node.process import leave
from reference_trainer.standalone import main

if __name__ == "__main__":
    # Threads that watch are inside of torch now and then; one that comes back to an interpreter that is being taken
    # apart aborts the process, and a rank that was through would count as one that died.
    leave(main(sys.argv[1:]))
