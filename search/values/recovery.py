"""What makes a quantized model lose less at no cost in latency: factors of float constants, corrections of others."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from search.values.assignment import Assignment, digest_of
from search.values.precision import Precision

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Correction:
    """How the constants of one weighted op change where its group runs in one precision, and only there.

    With weight W and bias b of the float model the op computes `scale · (op(x; W) + b) + offset` for each output
    channel. `rounding` is added to the codes that rounding `scale · W` to the nearest gives.

    Attributes:
        scale: (channels,) float32, positive; None if it is 1.
        offset: (channels,) float32, in the unit of the op's output; None if it is 0.
        rounding: int8, of the shape of the weight, mostly 0 and else 1 or −1; None if all go to the nearest code. Of a
            weight in blocks (K, N), whatever its shape.
        clip: int8, (K ÷ block, N): which share of the scale that cuts nothing off each block has, see
            `lowering.weight_blocks`; None for those of the least squared error.
    """

    scale: Array | None = None
    offset: Array | None = None
    rounding: Array | None = None
    clip: Array | None = None

    def to_json(self) -> dict[str, Any]:
        parts = {"scale": self.scale, "offset": self.offset, "rounding": self.rounding, "clip": self.clip}
        return {name: _text(array) for name, array in parts.items() if array is not None}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Correction:
        return cls(**{name: _array(text) for name, text in data.items()})


@dataclass(frozen=True, eq=False)
class Recovery:
    """All that recovery steps changed of one model.

    Attributes:
        factors: name of a constant of the clean model → float32 arrays that broadcast to its shape: one for each of its
            axes need no more room than its channels. The constant is multiplied by all of them wherever it is read, in
            every precision; the outputs of the float model stay what they are.
        corrections: name of a weighted op in the clean model → what changes of it in INT8.
        mixes: digest of an assignment → scales and offsets by op that this one mix has in place of those in
            `corrections`, whose roundings it keeps.
        formats: label of another quantized precision → name of an op → what changes of it there.
    """

    factors: Mapping[str, tuple[Array, ...]] = field(default_factory=dict)
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    mixes: Mapping[str, Mapping[str, Correction]] = field(default_factory=dict)
    formats: Mapping[str, Mapping[str, Correction]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.factors or self.corrections or self.mixes or self.formats)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Recovery) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        return digest_of(self.to_json())

    def corrections_in(self, assignment: Assignment) -> Mapping[str, Correction]:
        """What changes of ops in INT8 in one mix: its own scales and offsets where it has any."""
        own = self.mixes.get(assignment.digest)
        return self.corrections if own is None else self.with_means(own).corrections

    def of(self, precision: Precision) -> Mapping[str, Correction]:
        """What changes of ops where they run in a precision, in all of it."""
        return self.corrections if precision.recovered else self.formats.get(precision.label, {})

    def with_corrections(self, precision: Precision, corrections: Mapping[str, Correction]) -> Recovery:
        """This recovery with other corrections of one precision."""
        if precision.recovered:
            return replace(self, corrections=corrections)
        others = {label: each for label, each in self.formats.items() if label != precision.label}
        return replace(self, formats=others | ({precision.label: corrections} if corrections else {}))

    @property
    def means(self) -> dict[str, Correction]:
        """The scales and offsets of the corrections, without their roundings."""
        means = {name: Correction(each.scale, each.offset) for name, each in self.corrections.items()}
        return {name: each for name, each in means.items() if each.scale is not None or each.offset is not None}

    def with_means(self, means: Mapping[str, Correction], precision: Precision = Precision.INT8) -> Recovery:
        """This recovery with other scales and offsets; roundings stay."""
        plain = {name: Correction(rounding=c.rounding, clip=c.clip) for name, c in self.of(precision).items()}
        corrections = {name: each for name, each in plain.items() if each.rounding is not None or each.clip is not None}
        for name, each in means.items():
            corrections[name] = replace(corrections.get(name, Correction()), scale=each.scale, offset=each.offset)
        return self.with_corrections(precision, corrections)

    def to_json(self) -> dict[str, Any]:
        mixes = {digest: _corrections_json(own) for digest, own in sorted(self.mixes.items())}
        formats = {label: _corrections_json(own) for label, own in sorted(self.formats.items())}
        return {
            "factors": {name: [_text(part) for part in parts] for name, parts in sorted(self.factors.items())},
            "corrections": _corrections_json(self.corrections),
            **({"mixes": mixes} if mixes else {}),  # left out, so that digests are what they were without
            **({"formats": formats} if formats else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Recovery:
        return cls(
            {name: tuple(map(_array, parts)) for name, parts in data["factors"].items()},
            _read_corrections(data["corrections"]),
            *(
                {key: _read_corrections(own) for key, own in data.get(name, {}).items()}
                for name in ("mixes", "formats")
            ),
        )


def _corrections_json(corrections: Mapping[str, Correction]) -> dict[str, Any]:
    return {name: each.to_json() for name, each in sorted(corrections.items())}


def _read_corrections(data: Mapping[str, Any]) -> dict[str, Correction]:
    return {name: Correction.from_json(each) for name, each in data.items()}


def _text(array: Array) -> dict[str, Any]:
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    packed = base64.b64encode(zlib.compress(little.tobytes(), 6)).decode("ascii")
    return {"dtype": array.dtype.name, "shape": list(array.shape), "zlib": packed}


def _array(text: Mapping[str, Any]) -> Array:
    data = zlib.decompress(base64.b64decode(text["zlib"]))
    stored = np.frombuffer(data, np.dtype(text["dtype"]).newbyteorder("<"))
    array: Array = stored.reshape(text["shape"]).astype(text["dtype"])
    return array
