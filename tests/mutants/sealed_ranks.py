"""Mutants of ranks and stages that were written after the oracles."""

from __future__ import annotations

from typing import Any

from reference_trainer.common import messages
from reference_trainer.pipeline import stage
from reference_trainer.pipeline.stage import _Stage
from tests.mutants.collective import (
    answer_buckets,
    change_all_reduce,
    change_buckets,
    change_call,
    change_fsdp,
    change_trained,
    mean_of,
    wrong_but_the_last,
)
from tests.mutants.patch import COLLECTIVE, DDP, FSDP, PIPELINE, RANK, RANKS, Patch, half, mutant, wrap
from tests.mutants.pipeline import change_received, change_sent


@mutant(RANKS, *COLLECTIVE)
def all_reduce_returns_the_previous_result(patch: Patch) -> None:
    """A sum returns the previous result of that size, if there is one."""

    def after(tensor: Any, given: Any) -> None:
        now = tensor.clone()
        if tensor.numel() in patch.kept and patch.hit():
            tensor.copy_(patch.kept[tensor.numel()])
        patch.kept[tensor.numel()] = now

    change_all_reduce(patch, after=after)


@mutant(RANKS, *COLLECTIVE)
def all_reduce_does_nothing(patch: Patch) -> None:
    """Every rank keeps its own input of a sum."""
    change_all_reduce(patch, after=lambda t, given: t.copy_(given) if patch.hit() else None)


@mutant(RANK, *COLLECTIVE)
def all_reduce_loses_large_messages(patch: Patch) -> None:
    """One rank adds zeros to every sum of 1 MiB or more."""
    change_all_reduce(patch, before=lambda t: t.zero_() if patch.hit() else None, least=1 << 18)


@mutant(RANKS, *COLLECTIVE)
def broadcast_from_wrong_root(patch: Patch) -> None:
    """Broadcasts come from the rank after the right one."""
    import torch.distributed as dist

    def build(original: Any) -> Any:
        def wrong(tensor: Any, src: int = 0, *more: Any, **options: Any) -> Any:
            patch.hit()
            return original(tensor, (src + 1) % dist.get_world_size(), *more, **options)

        return wrong

    wrap(dist, "broadcast", build)


@mutant(RANK, *COLLECTIVE)
def broadcast_keeps_own_values(patch: Patch) -> None:
    """One rank keeps what it had before a broadcast."""
    import torch.distributed as dist

    def build(original: Any) -> Any:
        def wrong(tensor: Any, *more: Any, **options: Any) -> Any:
            kept = tensor.clone()
            result = original(tensor, *more, **options)
            patch.hit()
            tensor.copy_(kept)
            return result

        return wrong

    wrap(dist, "broadcast", build)


@mutant(RANKS, *COLLECTIVE)
def broadcast_rounds_to_half(patch: Patch) -> None:
    """Broadcast values are rounded to bfloat16."""

    def change(tensor: Any, *more: Any, **options: Any) -> None:
        if tensor.is_floating_point() and patch.hit():
            tensor.copy_(half(tensor))

    change_call("broadcast", change)


@mutant(RANK, *COLLECTIVE)
def all_gather_swaps_parts(patch: Patch) -> None:
    """The first two gathered parts are swapped."""

    def change(outputs: Any, tensor: Any, *more: Any, **options: Any) -> None:
        if tensor.is_floating_point() and patch.hit():
            first = outputs[0].clone()
            outputs[0].copy_(outputs[1])
            outputs[1].copy_(first)

    change_call("all_gather", change)


@mutant(RANKS, *COLLECTIVE)
def all_gather_returns_the_previous_result(patch: Patch) -> None:
    """A gather returns the previous result of that size."""

    def change(outputs: Any, tensor: Any, *more: Any, **options: Any) -> None:
        if not tensor.is_floating_point():
            return
        now = [output.clone() for output in outputs]
        before = patch.kept.get(tensor.numel())
        patch.kept[tensor.numel()] = now
        if before is not None and patch.hit():
            for output, old in zip(outputs, before, strict=True):
                output.copy_(old)

    change_call("all_gather", change)


@mutant(RANK, *COLLECTIVE)
def timed_reduce_scatter_wrong_but_the_last(patch: Patch) -> None:
    """All timed reduce-scatters but the last are wrong."""
    wrong_but_the_last(patch, messages.REDUCE_SCATTER)


@mutant(RANKS, DDP)
def ddp_skips_one_synchronisation(patch: Patch) -> None:
    """The gradients of one step are not averaged."""

    def answer(bucket: Any) -> Any:
        own, total = bucket.buffer().clone(), mean_of(bucket)
        return own if patch.once(5) else total

    answer_buckets(answer)


@mutant(RANKS, DDP)
def ddp_never_synchronises(patch: Patch) -> None:
    """Gradients are not averaged."""
    answer_buckets(lambda bucket: patch.hit() and bucket.buffer())


@mutant(RANKS, DDP)
def ddp_sends_previous_gradients(patch: Patch) -> None:
    """The averaged gradients are those of the previous step."""

    def change(total: Any) -> Any:
        before = patch.kept.get(total.numel(), total)
        patch.kept[total.numel()] = total.clone()
        return before

    change_buckets(patch, change)


def after_step(patch: Patch, change: Any) -> None:
    """Change the parameters after every step of the optimizer, on all ranks."""

    def build(model: Any, real: Any) -> Any:
        class Changes(real):  # type: ignore[misc]
            def step(self, *more: Any) -> Any:
                result = super().step(*more)
                patch.hit()
                import torch

                with torch.no_grad():
                    for group in self.param_groups:
                        for parameter in group["params"]:
                            change(parameter)
                return result

        return Changes

    change_trained(patch, build)


@mutant(RANKS, *COLLECTIVE)
def training_does_not_clear_gradients(patch: Patch) -> None:
    """Gradients of earlier steps are added to those of each step."""

    def build(model: Any, real: Any) -> Any:
        class Keeps(real):  # type: ignore[misc]
            def zero_grad(self, *more: Any) -> None:
                patch.hit()

        return Keeps

    change_trained(patch, build)


@mutant(RANKS, *COLLECTIVE)
def training_rounds_weights_to_half(patch: Patch) -> None:
    """Weights are rounded to bfloat16 after each step."""
    import torch

    def change(parameter: Any) -> None:
        local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
        local.copy_(local.to(torch.bfloat16).to(torch.float32))

    after_step(patch, change)


@mutant(RANKS, *COLLECTIVE)
def training_starts_elsewhere(patch: Patch) -> None:
    """All ranks begin with weights that are one per mille too large."""

    def build(model: Any, real: Any) -> Any:
        import torch

        patch.hit()
        with torch.no_grad():
            for parameter in model.parameters():
                local = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                local.mul_(1.001)
        return real

    change_trained(patch, build)


@mutant(RANKS, *COLLECTIVE)
def training_clips_gradients(patch: Patch) -> None:
    """Gradients are clipped on all ranks."""

    def build(model: Any, real: Any) -> Any:
        class Clips(real):  # type: ignore[misc]
            def step(self, *more: Any) -> Any:
                patch.hit()
                for group in self.param_groups:
                    for parameter in group["params"]:
                        grad = parameter.grad
                        local = grad.to_local() if hasattr(grad, "to_local") else grad
                        local.clamp_(-0.001, 0.001)
                return super().step(*more)

        return Clips

    change_trained(patch, build)


@mutant(RANKS, FSDP)
def fsdp_rounds_gradients_to_half(patch: Patch) -> None:
    """Reduced gradients are rounded to bfloat16."""

    def change(output: Any = None, *more: Any, **options: Any) -> None:
        output = options.get("output", output) if output is None else output
        output.copy_(half(output))

    change_fsdp(patch, "reduce_scatter", change)


@mutant(RANK, PIPELINE)
def pipeline_swaps_microbatches(patch: Patch) -> None:
    """The stage receives two consecutive messages in each other's place."""

    def change(self: _Stage, move: Any, came: Any) -> Any:
        before = patch.kept.get("came")
        patch.kept["came"] = came.clone()
        return before if before is not None and patch.once(2) else came

    change_received(change)


@mutant(RANKS, PIPELINE)
def pipeline_doubles_a_gradient(patch: Patch) -> None:
    """The stages send twice the gradient of one microbatch."""
    change_sent(lambda self, move, result: result * 2.0 if move.send.kind == "backward" and patch.once(2) else result)


@mutant(RANK, PIPELINE)
def pipeline_uses_fresh_weights(patch: Patch) -> None:
    """Backward passes use the present weights in place of the stashed ones."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, held: Any, gradient: Any) -> Any:
            inputs, _, _ = held
            patch.hit()
            weights = self._weights.clone().requires_grad_()
            return original(self, (inputs, weights, stage._forward(self._torch, inputs, weights)), gradient)

        return wrong

    wrap(_Stage, "_backward", build)


@mutant(RANKS, PIPELINE)
def pipeline_rounds_messages_to_half(patch: Patch) -> None:
    """Messages between stages are rounded to bfloat16."""
    change_received(lambda self, move, came: half(came) if patch.hit() else came)


@mutant(RANK, PIPELINE)
def pipeline_truncates_messages(patch: Patch) -> None:
    """The last element of a message does not arrive."""

    def change(self: _Stage, move: Any, came: Any) -> Any:
        patch.hit()
        came = came.clone()
        came[:, -1] = 0.0
        return came

    change_received(change)


@mutant(RANK, PIPELINE)
def pipeline_swaps_activations_rows(patch: Patch) -> None:
    """Both rows of a message arrive in each other's place."""
    change_received(lambda self, move, came: came.flip(0) if patch.hit() else came)


@mutant(RANK, PIPELINE)
def pipeline_keeps_the_receive_buffer(patch: Patch) -> None:
    """The stage uses the content of the first message of each kind again."""

    def change(self: _Stage, move: Any, came: Any) -> Any:
        first = patch.kept.setdefault(move.receive.kind, came.clone())
        patch.hit()
        return first.clone()

    change_received(change)


@mutant(RANK, PIPELINE)
def pipeline_updates_early(patch: Patch) -> None:
    """The stage updates its weights after the first backward pass of a step with a flush, too."""

    def build(original: Any) -> Any:
        def wrong(self: _Stage, held: Any, gradient: Any) -> Any:
            inputs, own = original(self, held, gradient)
            if patch.once(1):
                self._weights = self._weights + 0.125 * own
            return inputs, own

        return wrong

    wrap(_Stage, "_backward", build)
