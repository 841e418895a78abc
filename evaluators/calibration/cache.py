"""Reading and writing TensorRT's calibration cache, to exchange ranges with trtexec and other tools.

A text file: `TRT-<version>-<algorithm>`, then a line `tensor: scale` each, the scale a float32 as the hex digits of its
big-endian bytes, equal to the magnitude of the tensor's symmetric range over 127
(https://github.com/NVIDIA/TensorRT/tree/release/8.6/samples/sampleINT8, "Calibration file").
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from search.errors import ConfigError
from search.values import Ranges, TensorRange

METHOD = "calibration-cache"
LEVELS = 127.0
# trtexec's own calibrator is of this kind: it takes a cache of another algorithm for none.
ALGORITHM = "EntropyCalibration2"
DEFAULT_VERSION = "8.6.0"
_HEADER = re.compile(r"TRT-\d+-\w+")
_SCALE = re.compile(r"[0-9a-fA-F]{1,8}")  # some writers drop leading zeros
_FLOAT32 = np.finfo(np.float32)
_ADVICE = "give a cache that TensorRT, trtexec or `bitfront export` wrote"


@dataclass(frozen=True)
class Taken:
    """Ranges from a cache, and how well it fitted the model.

    Attributes:
        ranges: of all tensors that the cache or the calibration knows.
        missing: tensors of the model that the cache lacks.
        unknown: entries of the cache that are no float tensor of the model.
    """

    ranges: Ranges
    missing: tuple[str, ...]
    unknown: tuple[str, ...]

    def note(self) -> str:
        """Where these ranges come from, as a sentence."""
        return (
            f"ranges of {len(self.ranges.tensors) - len(self.missing)} tensors come from the calibration cache, which "
            "holds no minimum and maximum, so plus and minus the range count as observed values"
        )

    def mismatches(self) -> list[str]:
        """Where cache and model differ, one sentence each; empty where the cache holds all tensors and no others."""
        sentences = []
        if self.missing:
            sentences.append(
                f"the calibration cache lacks {_list_tensors(self.missing)} of the model, "
                "calibrated from the data instead"
            )
        if self.unknown:
            sentences.append(
                f"the calibration cache has {_list_tensors(self.unknown)} that the model does not have; ignored"
            )
        return sentences


def write(ranges: Ranges, tensorrt_version: str = DEFAULT_VERSION) -> str:
    """The cache's text, tensors by name.

    A tensor that was always zero gets the magnitude 1, as it does in engines: a scale of zero is none. A name with a
    line break cannot stand in this format and is left out.

    Args:
        tensorrt_version: whose cache it is, for example `8.6.0` or `10.16.1.11`.
    """
    lines = [f"TRT-{_version_digits(tensorrt_version)}-{ALGORITHM}"]
    for name, range_ in sorted(ranges.tensors.items()):
        if "\n" not in name and "\r" not in name:
            lines.append(f"{name}: {struct.pack('>f', _scale(range_)).hex()}")
    return "\n".join(lines) + "\n"


def _scale(range_: TensorRange) -> float:
    """Within what a float32 holds above zero."""
    return min(max((range_.magnitude or 1.0) / LEVELS, float(_FLOAT32.tiny)), float(_FLOAT32.max))


def read(text: str, shown: str = "the calibration cache") -> dict[str, float]:
    """Magnitude of the symmetric range of every tensor in a cache, by name.

    Args:
        shown: what the text is called in messages.

    Raises:
        ConfigError: naming the first line that is none of this format.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not _HEADER.fullmatch(lines[0]):
        raise _refusal(shown, 1, "a first line like TRT-8600-EntropyCalibration2", lines[0])
    magnitudes: dict[str, float] = {}
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        # Names may hold colons, scales do not.
        name, _, scale = line.rpartition(": ")
        if not name or not _SCALE.fullmatch(scale):
            raise _refusal(shown, number, "`tensor: scale` with the scale as hex digits of a float32", line)
        magnitude = LEVELS * float(struct.unpack(">f", bytes.fromhex(scale.zfill(8)))[0])
        if not math.isfinite(magnitude) or magnitude < 0:
            raise _refusal(shown, number, "a finite scale that is not negative", line)
        if magnitudes.setdefault(name, magnitude) != magnitude:
            raise _refusal(shown, number, f"one scale for {name!r}", f"another one: {line}")
    if not magnitudes:
        raise _refusal(shown, len(lines), "at least one tensor with its scale", "none")
    return magnitudes


def read_file(path: Path) -> dict[str, float]:
    """Read a cache as `read` does, from a file; ConfigError also when it cannot be read."""
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        raise ConfigError(
            f"--calibration-cache {path}: expected a readable file, got {error.strerror}; check it"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"--calibration-cache {path}: expected text in UTF-8, got {error.reason}; {_ADVICE}"
        ) from error
    return read(text, f"--calibration-cache {path}")


def take(magnitudes: Mapping[str, float], tensors: Iterable[str], calibrated: Ranges | None) -> Taken:
    """Ranges for a model from a cache, completed by calibrated ones.

    A cache holds no minimum and maximum: what is `observed` of its tensors is plus and minus their magnitude.

    Args:
        tensors: names of the model's float tensors.
        calibrated: ranges of at least those tensors that the cache lacks; None if there are none.
    """
    known = dict.fromkeys(tensors)
    missing = tuple(name for name in known if name not in magnitudes)
    own = {name: TensorRange(-magnitudes[name], magnitudes[name]) for name in known if name in magnitudes}
    base = calibrated or Ranges(METHOD, {}, {}, 0)
    ranges = replace(
        base,
        method=METHOD,
        tensors={**_only(base.tensors, missing), **own},
        observed={**_only(base.observed, missing), **own},
        infinite=tuple(name for name in base.infinite if name not in own),
    )
    return Taken(ranges, missing, tuple(name for name in magnitudes if name not in known))


def _only(ranges: Mapping[str, TensorRange], names: Iterable[str]) -> dict[str, TensorRange]:
    return {name: ranges[name] for name in names if name in ranges}


def _version_digits(version: str) -> str:
    """`8.6.1` → `8601`, `10.9.0` → `100900`: how TensorRT writes its version as one number."""
    major, minor, patch = (int(part) for part in [*re.findall(r"\d+", version), "0", "0"][:3])
    return str(major * (1000 if major < 10 else 10000) + minor * 100 + patch)


def _refusal(shown: str, line: int, expected: str, got: str) -> ConfigError:
    return ConfigError(f"{shown}: line {line}: expected {expected}, got {got[:80]!r}; {_ADVICE}")


def _list_tensors(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    return f"{len(names)} tensor{'s' if len(names) > 1 else ''} ({shown})"
