"""Taking dynamic sizes and constant inputs of a model from the data, and saying which batches it will take."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.data.reading.row_shapes import Span, join_spans, read_row_spans
from evaluators.data.reading.stored_arrays import file_name, visible_files
from search.errors import DataError, ModelError
from search.graph.model import Model, TensorSpec
from search.graph.onnx_file import Dims, read_input_shapes
from search.graph.shapes import input_names
from studies.options.config import SearchConfig
from studies.options.quantities import ShapeSpec
from studies.run.session.batch_check import check_batches

_ANY = 2**31 - 1
_KINDS = "fiub"  # of numbers, as NumPy names them


def with_shapes_of_data(config: SearchConfig, folders: Mapping[str, str] | None = None) -> SearchConfig:
    """The configuration with a shape for each dynamic input that has none, if the data tell it, and with the values of
    inputs that are the same for all samples.

    Where samples have several sizes, the shape is a range from the smallest to the largest, which is measured. The
    batch is never that of the data: it is what `--batch` says.

    Args:
        folders: function that gives data → folder with its samples; of the others only the first batch is read.

    Raises:
        ModelError: the model cannot be read, or nothing says how large its batch is.
        DataError: a function that gives data fails.
    """
    inputs = read_input_shapes(Path(config.model), config.batch)
    config = _with_values_of_data(config, inputs)
    check_batches(config, inputs)
    unknown = _unknown_shapes(config, inputs)
    if not unknown or not config.data:
        return config
    spans = _read_spans(config, list(inputs), folders or {})
    unknown = {  # a model of one sample gets an axis of samples by its shape
        name: (1, *dims) if name in spans and len(spans[name].least) == len(dims) else dims
        for name, dims in unknown.items()
    }
    known = {
        name: spans[name] for name, dims in unknown.items() if name in spans and len(spans[name].least) == len(dims) - 1
    }
    without = [name for name in known if config.batch is None and not isinstance(unknown[name][0], int)]
    if without:
        sizes = ", ".join(f"{name} {'x'.join(map(str, spans[name].most))}" for name in without)
        ranges = " ".join(
            f"--shape {name}:{_batches_text(8, spans[name].least, spans[name].most, spans[name].most)}"
            for name in without
        )
        raise ModelError(
            f"loading {config.model}: expected a size for the batch, which is dynamic in the input"
            f"{'s' * (len(without) > 1)} {', '.join(without)}. Give it with --batch 8, or as a range with {ranges}; "
            f"the other sizes are those of the data: {sizes}."
        )
    shapes = [_shape_of(name, unknown[name], span, config.batch) for name, span in known.items()]
    return replace(config, shapes=(*config.shapes, *shapes))


def open_inputs(config: SearchConfig, inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The inputs of a model as they are before their dynamic sizes are read from the data: any size is taken there.

    Args:
        config: as it was given, so without shapes of the data.
    """
    unknown = _unknown_shapes(config, read_input_shapes(Path(config.model), config.batch))
    return [_open_sizes(spec, unknown[spec.name]) if spec.name in unknown else spec for spec in inputs]


def range_text(model: Model, config: SearchConfig) -> str:
    """At which shape latency is measured, where the data have several; empty where they have one, or it was given."""
    named = {shape.name for shape in config.shapes}
    profiles = [(name, *shapes) for name, shapes in model.profiles.items() if name not in named]
    if not profiles:
        return ""
    spans = ", ".join(f"{name} {_shape_text(low)} to {_shape_text(high)}" for name, low, _, high in profiles)
    options = " ".join(f"--shape {name}:{':'.join(map(_shape_text, shapes))}" for name, *shapes in profiles)
    return (
        f"the data have samples of several shapes, {spans}. Each is scored at its own shape. Latency is measured at "
        f"the largest, because it is the slowest. To measure another one, change the middle shape of {options}"
    )


def _unknown_shapes(config: SearchConfig, inputs: Mapping[str, Dims]) -> Mapping[str, Dims]:
    """The inputs with a dynamic size besides the batch whose shape nobody gave."""
    named = {shape.name for shape in config.shapes}
    return {name: dims for name, dims in inputs.items() if name not in named and _is_open(dims)}


def _read_spans(config: SearchConfig, names: Sequence[str], folders: Mapping[str, str]) -> Mapping[str, Span]:
    """The spans of all data sets; of those from functions, whose calls take long, only that of `--data`."""
    more = [source for source in (config.calibration_data, config.final_data) if source]
    sources = [config.data, *(source for source in more if Path(source).exists() or source in folders)]
    spans_of_sources = [read_row_spans(folders.get(source, source), names) for source in sources]
    shapes = [(name, span) for part in spans_of_sources for name, span in part.items()]
    return join_spans({name: shape} for name, span in shapes for shape in (span.least, span.most))


def _is_open(dims: Dims) -> bool:
    """Whether a size is dynamic that is no batch."""
    return any(not isinstance(size, int) for size in dims[1:])


def _shape_of(name: str, dims: Dims, span: Span, batch: int | None) -> ShapeSpec:
    """Sizes that the model fixes are its own: data of other sizes are refused when they are opened."""
    first = dims[0] if isinstance(dims[0], int) else batch
    assert first is not None
    fixed = [size if isinstance(size, int) else None for size in dims[1:]]
    least, most = (
        (first, *(known or size for known, size in zip(fixed, row, strict=True))) for row in (span.least, span.most)
    )
    return ShapeSpec(name, least, most, most)


def _open_sizes(spec: TensorSpec, dims: Dims) -> TensorSpec:
    sizes = list(zip((1, *dims)[-len(spec.shape) :], spec.shape, strict=True))
    least = tuple(size if isinstance(dim, int) else 1 for dim, size in sizes)
    return replace(spec, least=least, most=tuple(size if isinstance(dim, int) else _ANY for dim, size in sizes))


def _shape_text(shape: Sequence[int | str]) -> str:
    return "x".join(map(str, shape))


_MOST = 2  # times the measured batch: what the advice names as the largest


def frozen_batch_text(model: Model, config: SearchConfig) -> str:
    """That engines take exactly one batch size, why, and what keeps it open; empty if it is open.

    So it is told of other sizes that are dynamic in the model's file, where the data or the user name one alone.
    """
    frozen = [spec for spec in model.inputs if not _has_open_batch(model, spec.name)]
    if not frozen:
        return ""
    spec, size, inputs = frozen[0], model.batch, read_input_shapes(Path(config.model), config.batch)
    dims = {each.name: inputs.get(each.name) or ("",) for each in frozen}
    if 0 < len(inputs.get(spec.name, ())) < len(spec.shape):
        return "engines take one sample at a time, because the model has no axis of samples"
    closed = _closed_sizes(frozen, dims) if any(map(_is_open, dims.values())) else {}
    ways = " ".join(f"--shape {each.name}:{_range_text(each, size, closed.get(each.name, {}))}" for each in frozen)
    samples = "one sample" if size == 1 else f"exactly {size} samples"
    sizes = _closed_text(frozen, closed) if closed else ""
    head = f"engines take {samples} at a time and no other number:"
    right, several, words = "That is right if you deploy with that batch", "batches", ""
    if sizes:
        right, several = f"{sizes}. {right} and these sizes", "batches and sizes"
        words = ", with your own numbers for MIN, OPT and MAX"
    hint = f"Hint: an engine for several {several} comes from a search with {ways}{words}."
    if all(isinstance(axes[0], int) for axes in dims.values()):
        dynamic = f"dynamic_axes={{'{spec.name}': {{0: 'batch'}}}}"
        return (
            f"{head} the model file fixes the batch. {right}. For others, export the model with a dynamic first axis "
            f"(in torch.onnx.export: {dynamic}). {hint}"
        )
    option_text = f"--batch {config.batch}" if config.batch is not None else f"--shape {spec.name}"
    return f"{head} {option_text} fixes the batch. {right}. {hint}"


def _closed_sizes(specs: Sequence[TensorSpec], dims: Mapping[str, Dims]) -> dict[str, dict[int, str]]:
    """By input, axis → name of each size besides the batch that is dynamic in the file, and one number in engines."""
    batches, by_input = {own[0] for own in dims.values()} - {""}, {}  # a state may have its batch behind another axis
    for spec in specs:
        ends = zip(
            dims[spec.name], spec.least or spec.shape, spec.most or spec.shape, strict=False
        )  # a number has none
        by_input[spec.name] = {
            axis: str(dim or f"axis {axis}")
            for axis, (dim, least, most) in enumerate(ends)
            if axis and not isinstance(dim, int) and dim not in batches and least == most
        }
    return by_input


def _closed_text(specs: Sequence[TensorSpec], closed: Mapping[str, Mapping[int, str]]) -> str:
    """Which sizes samples must have; empty if no size is dynamic in the file alone."""
    names = list(dict.fromkeys(name for axes in closed.values() for name in axes.values()))
    if not names:
        return ""
    samples_text = ", ".join(f"{_sample_text(spec)} ({spec.name})" for spec in specs if closed[spec.name])
    are = "are" if len(names) > 1 else "is"
    return (
        f"Samples must also have the sizes {samples_text}, although {', '.join(names)} {are} dynamic in the model file"
    )


def _has_open_batch(model: Model, name: str) -> bool:
    low, _, high = model.profiles.get(name, ((1,), (1,), (1,)))
    return low[0] != high[0]


def _sample_text(spec: TensorSpec) -> str:
    """The shape of one sample, or the smallest and the largest."""
    ends = [_shape_text(shape[1:]) for shape in (spec.least or spec.shape, spec.most or spec.shape)]
    return " to ".join(dict.fromkeys(ends))


def _range_text(spec: TensorSpec, size: int, closed: Mapping[int, str]) -> str:
    """Three shapes, with words for the sizes that are one number now."""
    rows = zip((spec.least or spec.shape, spec.shape, spec.most or spec.shape), ("MIN", "OPT", "MAX"), strict=True)
    return _batches_text(size, *([word if i in closed else n for i, n in enumerate(row)][1:] for row, word in rows))


def _batches_text(size: int, *rows: Sequence[int | str]) -> str:
    """`1x3x224x224:8x3x224x224:16x3x224x224`: from one sample to more than are measured, of these three sizes."""
    batches = (1, size, _MOST * size)
    return ":".join(_shape_text((batch, *row)) for batch, row in zip(batches, rows, strict=True))


def model_notes(model: Model) -> list[str]:
    """What a user should know of how the model was read, one sentence each."""
    folded = (
        f"{model.folded} ops of the file are part of the layers and ops beside them here, in every precision, which "
        "changes no output: FP32 may be faster than the file"
    )
    texts = (model.origin, folded if model.folded else "", shape_text(model), _batch_text(model))
    return [text for text in texts if text]


def _batch_text(model: Model) -> str:
    """Which input does not begin with the samples of a batch; a search has refused such a model already."""
    batch = next((spec.shape[0] for spec in model.inputs if spec.shape), 1)
    other = next((spec for spec in model.inputs if spec.shape[:1] != (batch,)), None)
    if other is None:
        return ""
    shape = "x".join(map(str, other.shape)) or "of a single number"
    return (
        f"the input {other.name!r} ({shape}) does not begin with the {batch} samples of a batch. A search takes "
        "its value from the data where all samples have the same, or from --input-value, or says what works instead"
    )


def shape_text(model: Model) -> str:
    """Which tensors have a shape that nothing told; empty where there are none."""
    unknown = model.unknown_shapes()
    if not unknown:
        return ""
    return (
        f"the shapes of {len(unknown)} tensors are not known, {unknown[0]!r} for example: neither inference nor a "
        "run of the model on made-up inputs told them. Groups there have no shape, count as small, and a residual Add "
        "behind them may be left out of its group. A file with the shapes written into it (value_info) helps"
    )


# -- values of inputs that are the same for all samples, as a sample rate is -------------------------------------------


def _with_values_of_data(config: SearchConfig, shapes: Mapping[str, Dims]) -> SearchConfig:
    """The configuration with the value of each input without a batch axis that `.npz` or `.npy` files have one of.

    Such an input is a scalar, or of one number where there are several samples. It becomes a constant of the model, as
    by `--input-value`.

    Args:
        shapes: of the inputs in the file.

    Raises:
        DataError: the data have several values of a scalar.
    """
    settled = input_names(config.input_values) | {shape.name for shape in config.shapes}
    several = any(_first_size(dims, config.batch) != 1 for dims in shapes.values() if dims)
    constants = []
    for name, dims in shapes.items():
        if name in settled or not (dims == () or (dims == (1,) and several)):
            continue
        values = _values_of(name, config)
        if len(values) == 1:
            constants.append(f"{name}={_text_of(values[0])}")
        elif len(values) > 1 and dims == ():
            raise DataError(
                f"data {config.data!r}: expected one value of {name!r}, which has no axis of samples in the model, got "
                f"{len(values)}, {_text_of(values[0])} and {_text_of(values[1])} for example. Give data with one of "
                "them, or export the model with a batch axis there."
            )
    return replace(config, input_values=(*config.input_values, *constants)) if constants else config


def values_text(config: SearchConfig, user_config: SearchConfig) -> str:
    """Which values were taken from the data, as a sentence; empty where none were."""
    added = [text for text in config.input_values if text not in user_config.input_values]
    return f"{', '.join(added)} as the data have it for all samples, as a constant of the model" if added else ""


def _first_size(dims: Dims, batch: int | None) -> int | None:
    return dims[0] if isinstance(dims[0], int) else batch


def _values_of(name: str, config: SearchConfig) -> list[Any]:
    """The different values of an array, over all data; none where no file has it."""
    sources = [source for source in (config.data, config.calibration_data, config.final_data) if source]
    values = [np.unique(array) for source in sources for array in _arrays_of(name, Path(source))]
    numbers = [each for each in values if each.dtype.kind in _KINDS]
    return list(np.unique(np.concatenate(numbers))) if numbers else []


def _arrays_of(name: str, source: Path) -> Iterator[NDArray[Any]]:
    """The array of that name in each file; what cannot be read is refused when the data are opened."""
    files = visible_files(source, "*.npz") if source.is_dir() else [source] if source.suffix == ".npz" else []
    single = source / file_name(name)
    try:
        for file in files:
            with np.load(file, allow_pickle=False) as archive:
                members: Mapping[str, NDArray[Any]] = archive
                if name in members:
                    yield members[name]
        if source.is_dir() and single.is_file():
            yield np.load(single, allow_pickle=False)
    except Exception:
        return


def _text_of(value: Any) -> str:
    return repr(float(value)) if value.dtype.kind == "f" else str(int(value))
