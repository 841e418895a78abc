"""What a search sees of a simulated network: a layout, uniform assignments, and noisy measurements."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from benchmarks.samplers.simulator import PRECISIONS
from benchmarks.samplers.simulator.engine_rows import Rows
from benchmarks.samplers.simulator.noise import Noise
from benchmarks.samplers.simulator.simulator import Simulator
from evaluators.measure.intervals import paired_interval
from search.space.layout import Codes, Layout, Precisions
from search.values import LayerTime, Precision
from studies.judging.rules.hypervolume import Corner, reference_of

TIE_BAND = 0.01
_SENSITIVITY_SD = 0.25

Floats = NDArray[np.float64]
Truth = Callable[[Precisions], tuple[Floats, Floats]]


@dataclass(frozen=True)
class Measurement:
    """One evaluation: latency, and loss as a share of one with its 95 % interval."""

    latency_ms: float
    loss: float
    loss_low: float
    loss_high: float


@dataclass(frozen=True)
class Problem:
    """A network to search.

    Attributes:
        truth: (n, groups) precisions to (n,) ms and (n,) loss without noise.
        output_error: (n, groups) precisions to (n,) error of the output, without noise.
        baselines: label → (decisions,) codes of the uniform assignments, the highest precision first.
        profiles: layers of the uniform engines; empty where they were not profiled.
        noise: of measurements.
        alone: (groups, `PRECISIONS`) output error of each group alone, where that was measured.
        work: (groups,) relative multiply-adds; None where they are not known.
        tie_band: the relative difference up to which a study counts two latencies as equal.
    """

    name: str
    layout: Layout
    truth: Truth
    output_error: Callable[[Precisions], Floats]
    baselines: Mapping[str, Codes]
    profiles: Mapping[Precision, tuple[LayerTime, ...]]
    noise: Noise = field(default_factory=Noise)
    alone: Floats | None = None
    work: Floats | None = None
    tie_band: float = TIE_BAND

    @property
    def widths(self) -> tuple[int, ...]:
        """How many precisions each decision has."""
        return tuple(len(effects) for effects in self.layout.effects)

    @property
    def reference(self) -> Corner:
        ms, loss = self.measures(np.array(list(self.baselines.values())))
        return reference_of(list(ms), list(loss))

    def measures(self, codes: Codes) -> tuple[Floats, Floats]:
        """(n, decisions) codes to (n,) ms and (n,) loss without noise."""
        return self.truth(self.layout.precisions(codes))

    def evaluate(self, codes: Codes, seed: int) -> Measurement:
        """A measurement with noise; the same codes and seed give the same one, as a stored evaluation does."""
        rng = np.random.default_rng([seed, *(int(code) for code in codes)])
        ms, loss = (float(column[0]) for column in self.measures(codes[None]))
        measured = ms * float(np.exp(self.noise.latency_sd * rng.standard_normal()))
        differences = self.noise.differences(loss, rng, np.random.default_rng([seed, 6007]))
        low, high = paired_interval(differences, ratio=True)
        return Measurement(measured, float(differences.mean()), low, high)

    def sensitivity(self, seed: int) -> Floats:
        """(groups, `PRECISIONS`) output error with one group alone in a precision, as a cheap pass estimates it.

        What was measured, or the simulated one with a relative error of `_SENSITIVITY_SD`; NaN where a group is not
        offered the precision.
        """
        if self.alone is not None:
            return self.alone
        rng = np.random.default_rng([seed, 7919])
        errors = np.full((len(self.layout.groups), PRECISIONS), np.nan)
        highest = self.layout.precisions(np.zeros((1, len(self.widths)), np.int64))[0]
        for members, effects in zip(self.layout.members, self.layout.effects, strict=True):
            for member, column in zip(members, effects.T, strict=True):
                rows = np.repeat(highest[None], len(column), axis=0)
                rows[:, member] = column
                error = np.exp(_SENSITIVITY_SD * rng.standard_normal(len(column)))
                errors[member, column] = self.output_error(rows) * error
        return errors


def make(simulator: Simulator) -> Problem:
    """The problem of a simulated network."""
    rows: Rows = simulator.rows
    uniform = {label: rows.layout.space.uniform(Precision.parse(label)) for label in rows.baselines}
    codes = {label: rows.layout.codes_of(assignment) for label, assignment in uniform.items()}
    return Problem(
        name=rows.name,
        layout=rows.layout,
        truth=simulator.predict,
        output_error=simulator.output_error,
        baselines=codes,
        profiles=rows.profiles,
        noise=simulator.noise,
        alone=rows.alone,
    )
