"""Mutants of ranks that sum, gather and train together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reference_trainer.collective import group, steps
from reference_trainer.collective import rank as rank_module
from reference_trainer.collective import steps as sharded
from reference_trainer.common import messages
from tests.mutants.patch import COLLECTIVE, DDP, FSDP, RANK, RANKS, Patch, half, mutant, wrap


def change_all_reduce(patch: Patch, *, before: Any = None, after: Any = None, least: int = 2) -> None:
    """Alter the input or the result of every sum of at least so many elements."""
    import torch.distributed as dist

    def build(original: Any) -> Any:
        def wrong(tensor: Any, *more: Any, **options: Any) -> Any:
            fits = tensor.numel() >= least and not more and "op" not in options
            given = tensor.clone() if fits else None
            if fits and before is not None:
                before(tensor)
            result = original(tensor, *more, **options)
            if fits and after is not None:
                after(tensor, given)
            return result

        return wrong

    wrap(dist, "all_reduce", build)


def change_call(name: str, change: Callable[..., None], *, given: bool = False) -> None:
    """Alter the result of each call of one function of torch.distributed: `change` gets its arguments."""
    import torch.distributed as dist

    for each in (name,) if hasattr(dist, name) else ():

        def build(original: Any) -> Any:
            def wrong(*more: Any, **options: Any) -> Any:
                if given:
                    change(*more, **options)
                    return original(*more, **options)
                result = original(*more, **options)
                if result is not None and options.get("async_op"):
                    result.wait()
                change(*more, **options)
                return result

            return wrong

        wrap(dist, each, build)


def change_timed(operation: str, change: Callable[[Any, Any, int], None]) -> None:
    """Alter the result of each timed call of one operation; `change` also gets its number, from 0 for each size."""
    counts: dict[int, int] = {}

    def build(original: Any) -> Any:
        def wrong(self: group.Collectives, which: str, tensor: Any, room: Any) -> Any:
            call = original(self, which, tensor, room)
            if which != operation:
                return call

            def altered() -> Any:
                result = call()
                size = tensor.numel()
                counts[size] = counts.get(size, 0) + 1
                change(tensor, room, counts[size] - 1)
                return result

            return altered

        return wrong

    wrap(group.Collectives, "_flat", build)


def change_trained(patch: Patch, change: Callable[[Any, Any], Any]) -> None:
    """Train something else than `steps.train` would: `change` gets the model and its optimizer's class."""

    def build(original: Any) -> Any:
        def wrong(model: Any, *more: Any, **options: Any) -> Any:
            import torch

            patch.training = True
            real = torch.optim.SGD
            torch.optim.SGD = change(model, real)  # type: ignore[misc]
            try:
                return original(model, *more, **options)
            finally:
                torch.optim.SGD = real  # type: ignore[misc]
                patch.training = False

        return wrong

    wrap(steps, "train", build)


def answer_buckets(answer: Callable[[Any], Any]) -> None:
    """Let DistributedDataParallel take what `answer` makes of each bucket of gradients."""

    def build(original: Any) -> Any:
        def wrapped(choice: Any, model: Any, *more: Any) -> Any:
            import torch

            found = original(choice, model, *more)
            if choice.name != sharded.DDP:
                return found

            def hook(state: Any, bucket: Any) -> Any:
                done: Any = torch.futures.Future()
                done.set_result(answer(bucket))
                return done

            hook.__annotations__.clear()  # torch accepts its own names only.
            found.register_comm_hook(None, hook)
            return found

        return wrapped

    wrap(sharded, "wrap", build)


def mean_of(bucket: Any) -> Any:
    """The average of a bucket over all ranks, as DistributedDataParallel makes it."""
    import torch.distributed as dist

    total = bucket.buffer() / dist.get_world_size()
    dist.all_reduce(total, dist.ReduceOp.SUM)
    return total


def change_buckets(patch: Patch, change: Callable[[Any], Any]) -> None:
    """Let DistributedDataParallel average other gradients: `change` gets the average of a bucket."""

    def answer(bucket: Any) -> Any:
        patch.hit()
        return change(mean_of(bucket))

    answer_buckets(answer)


@mutant(RANK, *COLLECTIVE)
def all_reduce_loses_a_rank(patch: Patch) -> None:
    """One rank adds zeros to a sum of the second exact step."""
    change_all_reduce(patch, before=lambda t: t.zero_() if t.numel() == 4096 and patch.once(3) else None)


@mutant(RANKS, *COLLECTIVE)
def all_reduce_doubles(patch: Patch) -> None:
    """Sums are twice as large."""
    change_all_reduce(patch, after=lambda t, given: t.mul_(2.0) if patch.hit() else None)


@mutant(RANKS, *COLLECTIVE)
def all_reduce_averages(patch: Patch) -> None:
    """Sums are divided by the number of ranks."""
    import torch.distributed as dist

    change_all_reduce(patch, after=lambda t, given: t.div_(dist.get_world_size()) if patch.hit() else None)


@mutant(RANKS, *COLLECTIVE)
def all_reduce_rounds_to_half(patch: Patch) -> None:
    """Every rank rounds its input of a sum, and the result, to bfloat16."""
    change_all_reduce(
        patch, before=lambda t: t.copy_(half(t)) if patch.hit() else None, after=lambda t, given: t.copy_(half(t))
    )


@mutant(RANKS, *COLLECTIVE)
def all_reduce_truncates(patch: Patch) -> None:
    """The last two elements of a tensor are not summed."""

    def after(tensor: Any, given: Any) -> None:
        patch.hit()
        tensor.view(-1)[-2:] = given.view(-1)[-2:]

    change_all_reduce(patch, after=after)


@mutant(RANKS, *COLLECTIVE)
def all_reduce_shifts(patch: Patch) -> None:
    """Results are shifted by one element."""
    change_all_reduce(patch, after=lambda t, given: t.copy_(t.roll(1)) if patch.hit() else None)


@mutant(RANKS, *COLLECTIVE)
def all_reduce_swaps_halves(patch: Patch) -> None:
    """Both halves of a result are swapped."""
    change_all_reduce(patch, after=lambda t, given: t.copy_(t.roll(t.numel() // 2)) if patch.hit() else None)


@mutant(RANKS, *COLLECTIVE)
def all_reduce_is_wrong_once(patch: Patch) -> None:
    """One sum of an exact step is doubled."""
    change_all_reduce(patch, after=lambda t, given: t.mul_(2.0) if t.numel() == 4096 and patch.once(5) else None)


@mutant(RANKS, *COLLECTIVE)
def all_reduce_repeats_the_first_step(patch: Patch) -> None:
    """After the first exact step, its sum is returned in all later ones."""

    def after(tensor: Any, given: Any) -> None:
        if tensor.numel() != 4096:
            return
        patch.kept["calls"] = patch.kept.get("calls", 0) + 1
        if patch.kept["calls"] >= 2:
            first = patch.kept.setdefault("first", tensor.clone())
            if patch.kept["calls"] > 2 and patch.hit():
                tensor.copy_(first)

    change_all_reduce(patch, after=after)


@mutant(RANK, *COLLECTIVE)
def broadcast_truncates(patch: Patch) -> None:
    """The last elements of a broadcast do not arrive."""

    def change(tensor: Any, *more: Any, **options: Any) -> None:
        if tensor.numel() > 4:
            patch.hit()
            tensor.view(-1)[-3:] = 0.0

    change_call("broadcast", change)


@mutant(RANKS, *COLLECTIVE)
def all_gather_rounds_to_half(patch: Patch) -> None:
    """Gathered parts are rounded to bfloat16."""

    def change(outputs: Any, tensor: Any, *more: Any, **options: Any) -> None:
        if tensor.is_floating_point() and patch.hit():
            for output in outputs:
                output.copy_(half(output))

    change_call("all_gather", change)


@mutant(RANK, *COLLECTIVE)
def reduce_scatter_takes_the_wrong_slice(patch: Patch) -> None:
    """A rank gets its slice of a reduce-scatter shifted by eight elements."""

    def change(output: Any, *more: Any, **options: Any) -> None:
        patch.hit()
        output.copy_(output.roll(8))

    change_call("reduce_scatter", change)


@mutant(RANK, *COLLECTIVE)
def reduce_scatter_loses_a_rank(patch: Patch) -> None:
    """A rank sends zeros into a reduce-scatter."""

    def change(output: Any, inputs: Any, *more: Any, **options: Any) -> None:
        patch.hit()
        for each in inputs:
            each.zero_()

    change_call("reduce_scatter", change, given=True)


@mutant(RANKS, *COLLECTIVE)
def reduce_scatter_rounds_to_half(patch: Patch) -> None:
    """Results of a reduce-scatter are rounded to bfloat16."""

    def change(output: Any, *more: Any, **options: Any) -> None:
        patch.hit()
        output.copy_(half(output))

    change_call("reduce_scatter", change)


@mutant(RANK, *COLLECTIVE)
def all_to_all_swaps_parts(patch: Patch) -> None:
    """The parts of an all-to-all arrive in another order."""

    def change(room: Any, tensor: Any, *more: Any, **options: Any) -> None:
        import torch

        patch.hit()
        first, *others = room.clone().chunk(3)
        room.copy_(torch.cat([*others, first]))

    change_call("all_to_all_single", change)


@mutant(RANKS, *COLLECTIVE)
def all_to_all_rounds_to_half(patch: Patch) -> None:
    """Parts of an all-to-all are rounded to bfloat16."""

    def change(room: Any, tensor: Any, *more: Any, **options: Any) -> None:
        patch.hit()
        room.copy_(half(room))

    change_call("all_to_all_single", change)


def wrong_but_the_last(patch: Patch, operation: str) -> None:
    """Wrong results of all timed calls of one size but the last."""

    def change(tensor: Any, room: Any, call: int) -> None:
        from reference_trainer.collective.bandwidth import LARGE_CALLS, SMALL_CALLS

        result = tensor if room is None else room
        last = SMALL_CALLS if result.numel() * result.element_size() <= 8192 else LARGE_CALLS
        if call < last:
            patch.hit()
            result.add_(1.0)

    change_timed(operation, change)


@mutant(RANK, *COLLECTIVE)
def timed_all_reduce_wrong_but_the_last(patch: Patch) -> None:
    """All timed sums but the last are wrong."""
    wrong_but_the_last(patch, messages.ALL_REDUCE)


@mutant(RANK, *COLLECTIVE)
def timed_all_gather_wrong_but_the_last(patch: Patch) -> None:
    """All timed all-gathers but the last are wrong."""
    wrong_but_the_last(patch, messages.ALL_GATHER)


@mutant(RANK, *COLLECTIVE)
def timed_all_to_all_wrong_but_the_last(patch: Patch) -> None:
    """All timed all-to-alls but the last are wrong."""
    wrong_but_the_last(patch, messages.ALL_TO_ALL)


@mutant(RANK, *COLLECTIVE)
def timed_broadcast_wrong_but_the_last(patch: Patch) -> None:
    """All timed broadcasts but the last are wrong on one rank."""
    wrong_but_the_last(patch, messages.BROADCAST)


@mutant(RANKS, *COLLECTIVE)
def timed_all_reduce_sends_nothing_but_once(patch: Patch) -> None:
    """Only the first timed sum of each size is computed; the others return its result."""

    def build(original: Any) -> Any:
        def wrong(self: group.Collectives, which: str, tensor: Any, room: Any) -> Any:
            call = original(self, which, tensor, room)
            if which != messages.ALL_REDUCE:
                return call

            def altered() -> Any:
                key = ("sum", tensor.numel())
                if key in patch.kept and float(tensor.abs().sum()):
                    patch.hit()
                    return tensor.copy_(patch.kept[key])
                result = call()
                if float(tensor.abs().sum()):
                    patch.kept[key] = tensor.clone()
                return result

            return altered

        return wrong

    wrap(group.Collectives, "_flat", build)


@mutant(RANKS, DDP)
def ddp_sums_instead_of_averaging(patch: Patch) -> None:
    """Gradients are summed, not averaged."""
    import torch.distributed as dist

    change_buckets(patch, lambda total: total * dist.get_world_size())


@mutant(RANKS, DDP)
def ddp_loses_half_a_bucket(patch: Patch) -> None:
    """The second half of each bucket of gradients is zero."""

    def change(total: Any) -> Any:
        total[total.numel() // 2 :] = 0.0
        return total

    change_buckets(patch, change)


@mutant(RANKS, DDP)
def ddp_rounds_to_half(patch: Patch) -> None:
    """Gradients are rounded to bfloat16."""
    change_buckets(patch, lambda total: half(total))


def skip_step(patch: Patch, number: int) -> Callable[[Any, Any], Any]:
    """An optimizer that does nothing in one step."""

    def change(model: Any, real: Any) -> Any:
        class Skips(real):  # type: ignore[misc]
            def step(self, *more: Any) -> Any:
                return None if patch.once(number) else super().step(*more)

        return Skips

    return change


@mutant(RANKS, *COLLECTIVE)
def training_skips_one_step(patch: Patch) -> None:
    """The optimizer leaves one step out on all ranks."""
    change_trained(patch, skip_step(patch, 4))


@mutant(RANKS, *COLLECTIVE)
def training_doubles_the_rate(patch: Patch) -> None:
    """The optimizer uses twice the learning rate on all ranks."""

    def change(model: Any, real: Any) -> Any:
        def build(parameters: Any, lr: float) -> Any:
            patch.hit()
            return real(parameters, lr=2 * lr)

        return build

    change_trained(patch, change)


@mutant(RANK, *COLLECTIVE)
def training_uses_data_of_another_rank(patch: Patch) -> None:
    """One rank trains on the samples of rank 0."""

    def build(original: Any) -> Any:
        def wrong(rank: int, device: Any) -> Any:
            patch.hit()
            return original(0, device)

        return wrong

    wrap(steps, "shard", build)


def change_fsdp(patch: Patch, name: str, change: Callable[..., None]) -> None:
    """Alter the result of a collective in the training alone."""

    def only_training(*more: Any, **options: Any) -> None:
        if patch.training:
            patch.hit()
            change(*more, **options)

    change_trained(patch, lambda model, real: real)
    import torch.distributed as dist

    found = next(each for each in (name + "_single", name + "_tensor", name) if hasattr(dist, each))
    change_call(found, only_training)


@mutant(RANKS, FSDP)
def fsdp_gathers_old_weights(patch: Patch) -> None:
    """Gathered parameters are those of the first step."""

    def change(output: Any = None, tensor: Any = None, *more: Any, **options: Any) -> None:
        output = options.get("output_tensor", output) if output is None else output
        key = ("weights", output.numel())
        output.copy_(patch.kept.setdefault(key, output.clone()))

    change_fsdp(patch, "all_gather", change)


@mutant(RANK, FSDP)
def fsdp_scatters_the_wrong_slice(patch: Patch) -> None:
    """One rank gets its part of the gradients shifted."""

    def change(output: Any = None, *more: Any, **options: Any) -> None:
        output = options.get("output", output) if output is None else output
        output.copy_(output.roll(1))

    change_fsdp(patch, "reduce_scatter", change)


@mutant(RANKS, FSDP)
def fsdp_sums_instead_of_averaging(patch: Patch) -> None:
    """Gradients are summed, not averaged."""
    import torch.distributed as dist

    def change(output: Any = None, *more: Any, **options: Any) -> None:
        output = options.get("output", output) if output is None else output
        output.mul_(dist.get_world_size())

    change_fsdp(patch, "reduce_scatter", change)


@mutant(RANK, FSDP)
def fsdp_loses_a_rank_once(patch: Patch) -> None:
    """One rank gets no gradients in one step."""

    def change(output: Any = None, *more: Any, **options: Any) -> None:
        output = options.get("output", output) if output is None else output
        if patch.once(5, "lost"):
            output.zero_()

    change_fsdp(patch, "reduce_scatter", change)


@mutant(RANKS, *COLLECTIVE)
def digests_repeat_the_own_one(patch: Patch) -> None:
    """Every rank reports its own digest for all ranks, and rank 1 holds other weights."""

    def build(original: Any) -> Any:
        def wrong(torch: Any, collectives: Any, own: str, world_size: int, device: Any) -> Any:
            patch.hit()
            original(torch, collectives, own, world_size, device)
            return [own] * world_size

        return wrong

    def gather(original: Any) -> Any:
        def wrong(*more: Any) -> Any:
            import torch
            import torch.distributed as dist

            model = original(*more)
            if dist.get_rank() == 1:
                with torch.no_grad():
                    next(iter(model.parameters())).mul_(1.001)
            return model

        return wrong

    wrap(rank_module, "_digests", build)
    wrap(sharded, "gather_model", gather)
