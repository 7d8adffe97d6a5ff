"""Mutants of the stages of a pipeline."""

from __future__ import annotations

from typing import Any

from reference_trainer.pipeline import stage
from reference_trainer.pipeline.stage import _Stage
from tests.mutants.patch import PIPELINE, RANK, RANKS, Patch, mutant, wrap


def change_received(change: Any) -> None:
    """Alter what a stage received; `change` gets the stage, the exchange and the tensor."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, move: Any, result: Any, step: str) -> Any:
            came = original(self, move, result, step)
            return came if came is None else change(self, move, came)

        return wrong

    wrap(_Stage, "_exchange", build)


def change_sent(change: Any) -> None:
    """Alter what a stage sends; `change` gets the stage, the exchange and the tensor."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, move: Any, result: Any, step: str) -> Any:
            return original(self, move, change(self, move, result) if move.send is not None else result, step)

        return wrong

    wrap(_Stage, "_exchange", build)


@mutant(RANKS, PIPELINE)
def pipeline_crosses_replicas(patch: Patch) -> None:
    """Each stage exchanges with the other replica's neighbour."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, number: int) -> int:
            patch.hit()
            right = int(original(self, number))
            begin = number * self._width
            return begin + (right - begin + (1 if number > self.number else self._width - 1)) % self._width

        return wrong

    wrap(_Stage, "_rank_of", build)


@mutant(RANK, PIPELINE)
def pipeline_sends_previous_activations(patch: Patch) -> None:
    """The stage sends the buffer of its previous message again."""

    def change(self: _Stage, move: Any, result: Any) -> Any:
        before = patch.kept.get(move.send.kind, result)
        patch.kept[move.send.kind] = result
        return before if patch.hit() else result

    change_sent(change)


@mutant(RANK, PIPELINE)
def pipeline_loses_a_microbatch(patch: Patch) -> None:
    """The stage sends zeros for one microbatch."""
    change_sent(lambda self, move, result: result * 0.0 if patch.once(3) else result)


@mutant(RANK, PIPELINE)
def pipeline_uses_first_stashed_weights(patch: Patch) -> None:
    """Backward passes use the weights that the first forward pass had."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, held: Any, gradient: Any) -> Any:
            import torch

            inputs, weights, _ = held
            first = patch.kept.setdefault(("weights", id(self), patch.kept.get("step")), weights)
            made = stage._forward(torch, inputs, first.detach().clone().requires_grad_())
            patch.hit()
            fresh = first.detach().clone().requires_grad_()
            made = stage._forward(torch, inputs, fresh)
            return original(self, (inputs, fresh, made), gradient)

        return wrong

    def step(original: Any) -> Any:
        def named(self: _Stage, name: str, *more: Any, **options: Any) -> Any:
            patch.kept["step"] = name
            return original(self, name, *more, **options)

        return named

    wrap(_Stage, "_backward", build)
    wrap(_Stage, "step", step)


@mutant(RANK, PIPELINE)
def pipeline_skips_an_update(patch: Patch) -> None:
    """The stage does not update its weights in the step without a flush after one microbatch."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, held: Any, gradient: Any) -> Any:
            inputs, own = original(self, held, gradient)
            return (inputs, own * 0.0) if patch.once(9) else (inputs, own)

        return wrong

    wrap(_Stage, "_backward", build)


@mutant(RANK, PIPELINE)
def pipeline_updates_twice(patch: Patch) -> None:
    """The stage adds the gradient of one microbatch twice."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, held: Any, gradient: Any) -> Any:
            inputs, own = original(self, held, gradient)
            return (inputs, own * 2.0) if patch.once(4) else (inputs, own)

        return wrong

    wrap(_Stage, "_backward", build)


@mutant(RANK, PIPELINE)
def pipeline_skips_its_own_layer(patch: Patch) -> None:
    """The stage passes its input on."""

    def build(original: Any) -> Any:
        def wrong(torch: Any, inputs: Any, weights: Any) -> Any:
            patch.hit()
            return original(torch, inputs, weights * 0.0)

        return wrong

    wrap(stage, "_forward", build)


@mutant(RANK, PIPELINE)
def pipeline_loses_a_weight_gradient_once(patch: Patch) -> None:
    """The stage loses the weight gradient of one microbatch in the second step."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, held: Any, gradient: Any) -> Any:
            inputs, own = original(self, held, gradient)
            return (inputs, own * 0.0) if patch.once(11) else (inputs, own)

        return wrong

    wrap(_Stage, "_backward", build)
