"""`python -m reference_trainer`, and the program inside of the file that takes a training script's place."""

import sys

from reference_trainer.standalone import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
