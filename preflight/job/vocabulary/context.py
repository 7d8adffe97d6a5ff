"""The job context: where ranks really run, and with which versions."""

from preflight.job.quantity import Quantity

CONTEXT = (
    Quantity("interpreter", str, "Python interpreter the ranks are started with"),
    Quantity("working_directory", str, "directory the ranks start in"),
    Quantity("container", str, "container image and runtime the ranks run in"),
    Quantity("prelude", str, "set-up line before the launch (module load, conda activate, source venv)"),
    Quantity("refused_variable", str, "name that a script exports and that no shell variable can have"),
    Quantity("paddle_version", str, "PaddlePaddle version the job names"),
    Quantity("package", str, "framework to be installed and its version, as a requirement of pip (torch==2.1.0)"),
    Quantity("wheel_cuda", str, "CUDA release that the wheels to be installed are built for (11.8)"),
    Quantity("installing_line", tuple, "words behind `install` of a line that installs packages before the launch"),
)
