"""The cost of an update, before it is made."""

from collections.abc import Callable
from typing import Any, NamedTuple

from training.loop import cost
from training.loop.program import Plan, size


class Preview(NamedTuple):
    """The cost of an update, before it is made."""

    parameters: int  # of the model, with what `vocabulary_multiple` adds
    active: int  # of these, those that each token reads: of experts, only the chosen ones
    trained: int  # trained parameters: all of the model's, or the low-rank ones
    needed: int  # bytes on each device, by the compiler; 0 if it does not say
    limit: int  # bytes available on each device
    flops: int  # of the matrix products
    peak: float  # FLOP/s of a large matrix product, on all devices
    device: str  # description of the devices


def preview(plan: Plan, clock: Callable[[], float], run: Callable[[Callable[[], Any]], Any]) -> Preview:
    """Compile the update without allocating its state, and return what it costs; `run` calls the compiler."""
    model = plan.template.params if plan.frozen is None else plan.frozen
    return Preview(
        parameters=size(model),
        active=cost.active_parameters(model),
        trained=size(plan.template.params),
        needed=cost.needed(run(plan.compiled_step)),
        limit=cost.limit(plan.placement.n_local_devices),
        flops=plan.flops,
        peak=plan.peak(clock),
        device=plan.placement.devices,
    )
