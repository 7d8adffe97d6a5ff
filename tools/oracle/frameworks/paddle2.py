"""PaddlePaddle 2.6, the last release before 3.0."""

from __future__ import annotations

from tools.oracle.frameworks.paddle import framework

FRAMEWORK = framework("paddle2", "2.6.2")
