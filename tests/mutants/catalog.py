"""All mutants: importing this module fills `patch.MUTANTS`. Only the processes of `driver` do so; it imports torch."""

from __future__ import annotations

from tests.mutants import collective, pipeline, sealed_ranks, sealed_servers, server, worker
from tests.mutants.patch import MUTANTS

__all__ = ["MUTANTS", "collective", "pipeline", "sealed_ranks", "sealed_servers", "server", "worker"]
