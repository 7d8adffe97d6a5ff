"""The job context: where ranks actually run, and with which versions."""

from preflight.model.job.quantity import Quantity

CONTEXT = (
    Quantity("interpreter", str, "Python interpreter that the ranks are started with"),
    Quantity("working_directory", str, "directory the ranks start in"),
    Quantity("container", str, "container image and runtime the ranks run in"),
    Quantity("prelude", str, "setup line before the launch (module load, conda activate, source venv)"),
    Quantity("refused_variable", str, "name that a script exports and that no shell variable can have"),
    Quantity("unexported_variable", str, "variable that a script assigns for a program and does not export"),
    Quantity("variable_as_argument", str, "variable whose assignment stands among the arguments of a program"),
    Quantity("overwritten_export", str, "variable that a script exports twice in a row, with different values"),
    Quantity("paddle_version", str, "PaddlePaddle version the job names"),
    Quantity("package", str, "framework to be installed and its version, as a requirement of pip (torch==2.1.0)"),
    Quantity("imported_framework", str, "top-level package of a framework that the script imports on every path"),
    Quantity("wheel_cuda", str, "CUDA release that the wheels to be installed are built for (11.8)"),
    Quantity("installing_line", tuple, "words after `install` in a line that installs packages before the launch"),
)
