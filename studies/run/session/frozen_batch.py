"""Whether a model takes only one batch size, and how to keep the batch dynamic."""

from __future__ import annotations

from search.graph.model import Model, TensorSpec
from studies.options.config import SearchConfig

_MOST = 2  # times the measured batch: what the advice names as the largest


def frozen_batch_text(model: Model, config: SearchConfig) -> str:
    """That engines take exactly one batch size, why, and what keeps it open; empty if it is open."""
    frozen = [spec for spec in model.inputs if not _is_open(model, spec.name)]
    if not frozen:
        return ""
    spec, size = frozen[0], model.batch
    ways = " ".join(f"--shape {each.name}:{_range_text(each, size)}" for each in frozen)
    samples = "one sample" if size == 1 else f"exactly {size} samples"
    head = f"engines take {samples} at a time and no other number:"
    if config.batch is not None or any(shape.name == spec.name for shape in config.shapes):
        given = f"--batch {config.batch}" if config.batch is not None else f"--shape {spec.name}"
        return f"{head} {given} fixes the batch. That is right if you deploy with that batch. {_hint(ways)}"
    dynamic = f"dynamic_axes={{'{spec.name}': {{0: 'batch'}}}}"
    return (
        f"{head} the model file fixes the batch. That is right if you deploy with that batch. For others, export "
        f"the model with a dynamic first axis (in torch.onnx.export: {dynamic}). {_hint(ways)}"
    )


def _hint(ways: str) -> str:
    return f"Hint: an engine for several batches comes from a search with {ways}."


def _is_open(model: Model, name: str) -> bool:
    low, _, high = model.profiles.get(name, ((1,), (1,), (1,)))
    return low[0] != high[0]


def _range_text(spec: TensorSpec, size: int) -> str:
    """`1x3x224x224:8x3x224x224:16x3x224x224`: from one sample to more than are measured."""
    shapes = (1, spec.least or spec.shape), (size, spec.shape), (_MOST * size, spec.most or spec.shape)
    return ":".join("x".join(map(str, (batch, *shape[1:]))) for batch, shape in shapes)
