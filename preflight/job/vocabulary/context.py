"""The job context: where ranks really run, and with which versions."""

from preflight.job.quantity import Quantity

CONTEXT = (
    Quantity("interpreter", str, "Python interpreter the ranks are started with"),
    Quantity("working_directory", str, "directory the ranks start in"),
    Quantity("container", str, "container image and runtime the ranks run in"),
    Quantity("prelude", str, "set-up line before the launch (module load, conda activate, source venv)"),
    Quantity("paddle_version", str, "PaddlePaddle version the job names"),
)
