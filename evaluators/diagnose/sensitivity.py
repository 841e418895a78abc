"""The error that each group adds to the outputs when it alone runs in a lower precision. Builds no engine.

First every group is looked at alone, on exact inputs: what a precision does to its own output. Then groups are lowered
inside the whole network and its outputs compared with the float model's: single groups one after another, or stretches
of them if there is time for less than a fifth of the groups, see `probes`. What is not measured alone is estimated:
noise at a group's output reaches the network's outputs with a gain that is alike for all precisions of the group and
varies slowly along the network.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evaluators.backends.onnxruntime.emulation import Emulated, Emulator
from evaluators.data import Batch
from evaluators.diagnose.distributions import Distance, decibels
from evaluators.diagnose.group_error import GroupError, SensitivityPass
from evaluators.diagnose.local_noise import Local, Network, Pair, local_noise
from evaluators.diagnose.probes import Measured, Probe, estimates, singles
from evaluators.diagnose.schedule import Schedule
from evaluators.diagnose.subset import Batches, Floats, Indices, Subset, choose
from evaluators.engine import Arrays
from evaluators.lowering.float_types import spelled_out
from evaluators.lowering.lower import lower
from evaluators.measure.output_noise import OutputNoise, compared_names
from search.errors import EvaluatorError, ModelError
from search.values import REFERENCE, Assignment, Precision

SAMPLES = 64
_LOCAL_SAMPLES = 16
_POOL = 4  # times as many are looked at to find the hard ones
_POOL_SHARE = 0.2  # of the time, at most
_MEASURE_SHARE = 0.6
_HELD_BYTES = 256 * 2**20

Done = Callable[[int, int], None]


@dataclass(frozen=True)
class Part:
    """One batch of the subset with what the float model says of it."""

    inputs: Arrays
    weights: Floats
    reference: Arrays


def sensitivity(
    emulator: Emulator,
    network: Network,
    pairs: Sequence[Pair],
    pool: Indices,
    batches: Batches,
    *,
    seconds: float,
    done: Done,
    alive: Callable[[], None] = lambda: None,
) -> SensitivityPass:
    """Find the error that each pair of group and precision adds to the outputs, all other groups in FP32.

    Args:
        pairs: what to look at, no FP32 among it.
        pool: indices of samples in random order, the first of which are taken.
        batches: the samples at indices.
        seconds: of wall time. Looking at every group alone takes about as long as three runs of the network and is
            done in any case; what is not measured in time is estimated.
        done: told how many of the pairs are measured.
        alive: called now and then before that.

    Raises:
        EvaluatorError: ONNX Runtime cannot run the float model.
    """
    return Prober(emulator, network, seconds, done, alive).run(pairs, pool, batches)


class Prober:
    """Runs a network with some of its groups lowered, and compares its outputs with those of the float model.

    Args:
        seconds: that a whole pass may take.
        done, alive: see `sensitivity`.
    """

    def __init__(
        self, emulator: Emulator, network: Network, seconds: float, done: Done, alive: Callable[[], None]
    ) -> None:
        self.emulator = emulator
        self.network = network
        self.seconds = seconds
        self.done = done
        self.alive = alive
        self.start = time.monotonic()
        self.notes: list[str] = []
        self.not_finite: list[int] = []
        self.exact = emulator.open(network.model.graph)
        self.floats = Assignment({group.id: REFERENCE for group in network.model.groups})

    def run(self, pairs: Sequence[Pair], pool: Indices, batches: Batches) -> SensitivityPass:
        """The whole pass; arguments and errors as those of `sensitivity`."""
        parts = self.parts(pairs, pool, batches)
        local = local_noise(self.emulator, self.network, pairs, _first(parts), self.notes, self.alive)
        groups = self.network.model.groups
        schedule = Schedule(
            probe=lambda pairs: self.probe(pairs, parts),
            places=self._places(),
            names={group.id: group.name for group in groups},
            left=lambda: self.start + self.seconds - time.monotonic(),
            tell=self.notes.append,
            done=self.done,
        )
        probes = schedule.run(local)
        errors, measured = estimates(self._places(), local, probes), singles(probes)
        left = len(local) - len(measured)
        if left:
            stretches = sum(not probe.single for probe in probes)
            way = f" from {stretches} stretches of layers" if stretches else ""
            why = f"{self.seconds:.3g} s are over, or they cannot be run"
            self.notes.append(f"{left} of {len(local)} errors are estimated{way}: {why}")
        rows = [_row(pair, local[pair], errors[pair], measured.get(pair)) for pair in local]
        return SensitivityPass(rows, self.notes, sorted(self.not_finite), self.emulator.device)

    # -- samples ---------------------------------------------------------------------------------------------------

    def parts(self, pairs: Sequence[Pair], pool: Indices, batches: Batches) -> list[Part]:
        """Batches of the samples to compare outputs on, hard ones among them."""
        # As many samples as every group can be measured on in time, in whole batches.
        groups = len({group for group, _ in pairs})
        first = next(iter(batches(pool)))
        outputs = self.exact.run(first.inputs)  # the first run also settles memory
        start = time.monotonic()
        self.exact.run(first.inputs)
        each = time.monotonic() - start
        held = sum(array.nbytes for array in (*first.inputs.values(), *outputs.values()))
        rows = len(next(iter(first.inputs.values())))
        most = min(_MEASURE_SHARE * self.seconds / max(groups * each, 1e-9), _HELD_BYTES / max(held, 1))
        wanted = rows * max(1, min(math.ceil(SAMPLES / rows), int(most)))
        subset = self._subset(pairs, pool[: _POOL * wanted], wanted, batches)
        parts, at = [], 0
        for batch in batches(subset.indices):
            here = slice(at, at + batch.count)
            at += batch.count
            parts.append(Part(batch.inputs, subset.weights[here], self.exact.run(batch.inputs)))
            self.not_finite += subset.indices[here][~_finite(parts[-1])].tolist()
        return parts

    def _subset(self, pairs: Sequence[Pair], pool: Indices, wanted: int, batches: Batches) -> Subset:
        lowest: dict[str, Precision] = {}
        for group, precision in pairs:
            lowest[group] = max(precision, lowest.get(group, precision))
        until = time.monotonic() + _POOL_SHARE * self.seconds

        def exact(batch: Batch) -> Arrays:
            return self.exact.run(batch.inputs)

        try:
            rough = self._open_lowered(lowest)
        except (ModelError, EvaluatorError) as error:
            self.notes.append(f"the samples are random ones, none chosen for being hard: {error}")
            return choose(pool[:wanted], wanted, batches, exact, exact, lambda: False)
        return choose(
            pool, wanted, batches, exact, lambda batch: rough.run(batch.inputs), lambda: time.monotonic() > until
        )

    def probe(self, pairs: tuple[Pair, ...], parts: Sequence[Part]) -> Probe:
        """Run the network once over all parts, with these pairs lowered together.

        Raises:
            ModelError, EvaluatorError: it cannot be run so.
        """
        session, noise = self._open_lowered(dict(pairs)), OutputNoise()
        for part in parts:
            _count(noise, session.run(part.inputs), part)
        return Probe(pairs, Measured(noise.error, noise.flip_share, sum(len(part.weights) for part in parts)))

    def _open_lowered(self, changes: dict[str, Precision]) -> Emulated:
        network = self.network
        placement = network.placement_of(min(changes.values()))
        assignment = self.floats.replace(changes)
        return self.emulator.open(spelled_out(lower(network.model, assignment, network.ranges, placement)))

    def _places(self) -> dict[str, int]:
        return {group.id: place for place, group in enumerate(self.network.model.groups)}


def _count(noise: OutputNoise, outputs: Arrays, part: Part) -> None:
    """Add one batch. An output without a row per sample is one row, and that of all of them.

    Raises:
        EvaluatorError: an output has not the float model's shape, as that of NonZero, which depends on values.
    """
    for name in compared_names(part.reference):
        shape, wanted = outputs[name].shape, part.reference[name].shape
        if shape != wanted:
            raise EvaluatorError(f"output {name!r} has shape {shape} then and {wanted} in the float model")
    whole = {name for name, array in part.reference.items() if not _is_by_sample(array, part)}
    weights = part.weights if len(whole) < len(part.reference) else part.weights.sum(keepdims=True)
    noise.add(_in_rows(outputs, whole), _in_rows(part.reference, whole), weights)


def _in_rows(outputs: Arrays, whole: Collection[str]) -> Arrays:
    return {name: array.reshape(1, 1, -1) if name in whole else array for name, array in outputs.items()}


def _is_by_sample(array: NDArray[Any], part: Part) -> bool:
    return array.ndim > 0 and len(array) == len(next(iter(part.inputs.values())))


def _finite(part: Part) -> NDArray[np.bool_]:
    """(count,) whether the float outputs are finite on each real sample."""
    finite = np.ones(len(part.weights), dtype=np.bool_)
    for array in part.reference.values():
        if array.dtype.kind == "f":
            rows = len(array) if _is_by_sample(array, part) else 1
            finite &= np.isfinite(array).reshape(rows, -1)[: len(finite)].all(axis=1)
    return finite


def _first(parts: Sequence[Part]) -> list[Arrays]:
    """The inputs of as many batches as make a histogram."""
    count = math.ceil(_LOCAL_SAMPLES / len(next(iter(parts[0].inputs.values()))))
    return [part.inputs for part in parts[:count]]


def _row(pair: Pair, local: Local, error: float, measured: Measured | None) -> GroupError:
    finite = math.isfinite(local.error.mse)
    return GroupError(
        group=pair[0],
        precision=pair[1],
        error=error if math.isfinite(error) else None,
        flipped=measured.flipped if measured is not None else None,
        sqnr_db=decibels(local.error.relative),
        samples=measured.samples if measured is not None else 0,
        mse=local.error.mse if finite else None,
        shift=local.error.shift if finite else None,
        weight_kl=local.weight_kl,
        **{each.name: getattr(local.distance, each.name, None) for each in fields(Distance)},
    )
