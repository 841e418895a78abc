"""The requests that an evaluator process answers, as typed Protocols for both ends of the connection.

`Evaluator` implements them in the evaluator process. `requests.connect` makes the client's end of the same Protocols,
so that a request is an ordinary, type-checked call: `line.timings.profile(engine, count=10)`. Names, arguments and
results are read from the Protocols: a new request is a method of a Protocol and of the class that implements it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from evaluators.calibration.sample_statistics import SampleStatistics
from evaluators.diagnose.compare import EngineComparison
from evaluators.diagnose.group_error import SensitivityPass
from evaluators.diagnose.wrapper.fault import WrapperComparison
from evaluators.metrics.contract import MetricFacts
from evaluators.process.job import Job, StopLimits
from evaluators.process.results import (
    Built,
    Calibrated,
    Description,
    EmulatedScore,
    EngineScores,
    FinalScores,
    FloatComparison,
    LatencyComparison,
    Recovered,
)
from search.values import Assignment, Evaluation, Latency, LayerTime, Precision, Ranges

# Events that a process reports while it answers a request, each with a value.
STAGE = "stage"  # the value of the `Stage` that an evaluation enters
PROGRESS = "progress"  # [done, total]
WAIT = "wait"  # the process that measures on the device, in words; empty once that one is done
ALIVE = "alive"  # None: it is busy with something long and has nothing else to tell
MODEL_RUN = "model run"  # whether the model runs now that is only being opened, which may never end


class OpenRequest(Protocol):
    """The first requests to a process."""

    def prepare(self, job: Job) -> None:
        """Import what `open` needs and open the backend, which is all that need be final of `job`; never raises."""

    def open(self, job: Job, metric: MetricFacts | None) -> Description:
        """Open what the other requests are about; InputError where model, data, metric, backend or device are unusable.

        Args:
            metric: what is known of the job's metric where it is a function of the keeper's process, which the process
                calls then by `KeeperLine`; else None.
        """


class SetupRequests(Protocol):
    """Before the first candidate."""

    def try_out(self) -> bool:
        """Run and score the float model on a few samples, so that what does not fit is found before anything is made.

        Labels are checked of all samples, those of the final split too, which are scored last.

        Returns:
            Whether the metric's scores are shares of one: because it says so, or because it says nothing and the first
            ones are 0 or 1 alone.

        Raises:
            ModelError: the engine does not know an op.
            ConfigError, MetricError, DataError: the metric does not fit the model's outputs or the data.
        """

    def adopt(self, changes: Mapping[str, Any]) -> None:
        """Continue a changed job: `ranges` that have been calibrated, an `optimization_level` in `options`."""

    def knobs(self) -> dict[str, str]:
        """What decides, beside assignment and ranges, what is built; part of an evaluation's digest."""


class BuildRequests(Protocol):
    """Engines from assignments, and one of the user's file as it is."""

    def build(self, assignment: Assignment, out: Path) -> Built:
        """Lower, build and audit a candidate. Its own failure is a value, not an exception.

        Args:
            out: where the engine file goes; nothing stays there when building fails.

        Raises:
            ArtifactError: there is no room for the engine.
            DeviceError, OutOfMemoryError: this process must be replaced.
        """

    def build_given(self, out: Path) -> None: ...
    def rebuild(self, assignment: Assignment, out: Path) -> None:
        """Build an assignment that was evaluated before; EvaluatorError, as above, where its builder refuses it."""

    def build_first(self, assignment: Assignment) -> float:
        """Build an assignment, and keep the engine for the evaluation of it; the seconds that the build took, once.

        Before the model is calibrated, ranges are made up: the builder learns, and an engine with INT8 serves nothing.

        Raises:
            EvaluatorError: the engine's builder refuses it.
        """

    def measure_shapes(self) -> Mapping[str, list[int]]:
        """Shapes that only a run tells, by one of the float model on made-up inputs; ModelError where it fails."""

    def write_source(self, assignment: Assignment, out: Path) -> None:
        """Write the ONNX file that the engine of an assignment is built from."""

    def write_float_model(self, out: Path) -> None:
        """Write the float model with what exact recovery steps changed; the user's own, clean, where there are none."""

    def write_timing_cache(self, out: Path) -> bool:
        """Write what the builder has learnt of tactics' times; False if it keeps nothing of the kind."""


class CandidateRequests(Protocol):
    """Evaluations of candidates. A candidate's own failure is a value, not an exception."""

    def evaluate(self, assignment: Assignment, out: Path, limits: StopLimits, profile: bool = False) -> Evaluation:
        """Build a candidate, then measure it.

        Args:
            out: where the engine file goes; it stays there when the evaluation is ok.
            limits: what makes a full accuracy run pointless.
            profile: time every layer too, and measure a doubtful latency more often: for what others are held to.

        Raises:
            MetricError: the metric raised or gave NaN.
            ArtifactError: there is no room for the engine.
            DataError: samples cannot be read, or FP32 itself is not finite on them.
            DeviceError, OutOfMemoryError: this process must be replaced.
        """

    def measure(self, built: Built, limits: StopLimits, profile: bool = False) -> Evaluation:
        """Load an engine that `BuildRequests.build` left, time it and score it; as `evaluate`."""


class TimingRequests(Protocol):
    """Latencies of engines, one at a time on the device.

    Raises:
        EvaluatorError: an engine cannot be loaded or run here.
    """

    def time_again(self, assignment: Assignment, out: Path, reference_ms: float | None = None) -> Latency:
        """Build an assignment at `out` and measure its latency alone, leaving nothing; for repeatability and drift."""

    def load_engine(self, engine: Path) -> None:
        """Load an engine file and run it once, in turn with measurements on the device, to `time_engine` it later."""

    def time_engine(self, engine: Path, reference_ms: float | None = None) -> Latency:
        """Measure the latency of an engine file, loading it where `load_engine` did not."""

    def time_together(
        self, engines: Mapping[str, Path], rounds: int, reference_ms: float | None = None
    ) -> Mapping[str, Latency]:
        """Measure several engines in turn with each other and the baseline, as finalists are, and score nothing.

        Args:
            engines: any label → engine file.
            rounds: how often each is visited; twice that when the measurement is doubtful, and repeated.
            reference_ms: what the baseline usually takes, on relative targets.

        Returns:
            Label → latency.
        """

    def compare_latency(self, engine: Path, measured: Path, rounds: int) -> LatencyComparison:
        """Time an engine file in turn with the one that was measured and, on relative targets, the baseline; once."""

    def profile(self, engine: Path, count: int) -> Sequence[LayerTime]:
        """Time every layer of an engine file over `count` inferences, in the order they run."""


class ScoreRequests(Protocol):
    """Outputs of engines on the final split."""

    def score_finalists(
        self, engines: Mapping[str, Path], rounds: int, reference_ms: float | None = None
    ) -> FinalScores:
        """Measure several engines again, interleaved with each other and the baseline, and score them on *final*.

        Args:
            engines, rounds, reference_ms: as `TimingRequests.time_together` has them.

        Raises:
            EvaluatorError: an engine cannot be loaded or run here.
        """

    def score_engines(self, engines: Mapping[str, Path]) -> FinalScores:
        """Score several engines on *final*, as `score_finalists` does, and time nothing.

        Raises:
            EvaluatorError: an engine cannot be loaded or run here.
        """

    def final_rows(self) -> NDArray[np.int64]:
        """Where the final samples stand in the data that they are of, ascending; see `Dataset.source_rows`."""

    def run_final(self, engine: Path) -> Mapping[str, NDArray[Any]]:
        """Outputs of an engine file on the first final samples: what an export must give again, bit for bit.

        Of large outputs, 64 MiB and the batch under way are enough. One without axes counts as a row per batch.

        Raises:
            EvaluatorError: the engine cannot be loaded or run here.
        """


class CalibrationRequests(Protocol):
    """Ranges of the tensors of the user's model, and what makes INT8 lose less under them."""

    def find_key(self, method: str, cache: Mapping[str, float] | None = None, steps: str = "none") -> str:
        """Names the result of `calibrate`, followed by `recover` where there are steps, by its inputs' content.

        Args:
            steps: as `--recover` takes it.

        Raises:
            ConfigError: there is no such step.
        """

    def calibrate(self, method: str, cache: Mapping[str, float] | None = None) -> Calibrated:
        """Ranges of every float tensor.

        Args:
            cache: magnitudes from a calibration cache; only tensors that it lacks are calibrated then.
        """

    def recover(
        self, ranges: Ranges, method: str, steps: str, seconds: float, wall_s: float | None = None
    ) -> Recovered:
        """Try recovery steps on all INT8; builds no engine.

        Args:
            ranges: of the user's model, calibrated on all calibration samples.
            method: of calibration.
            steps: as `--recover` takes it.
            seconds: for everything on an idle machine, by this process's processor time: see `recover.Budget`.
            wall_s: that it may take on a busy one; None for three times as long.

        Raises:
            ConfigError: there is no such step.
            EvaluatorError: ONNX Runtime cannot run the model, or a step that was named fails.
        """

    def correct_mix(self, assignment: Assignment, method: str, seconds: float) -> Recovered:
        """Correct the biases of one mix for itself, under the ranges of the job; builds no engine and keeps nothing.

        Args:
            method: of calibration.
            seconds: of wall time for everything.

        Returns:
            The ranges of this mix, and a record of that one step.

        Raises:
            RunError: the model has not been calibrated.
            EvaluatorError: ONNX Runtime cannot run the model.
        """

    def observe_samples(self) -> SampleStatistics:
        """What each calibration sample does to each tensor under the adopted ranges.

        At most 256 of them, the first of each cluster where the data have clusters.

        Raises:
            RunError: the model has not been calibrated.
            ModelError: ONNX Runtime cannot run the model.
        """


class DiagnosisRequests(Protocol):
    """A closer look at engines and at the model."""

    def compare(self, engine: Path, assignment: Assignment, groups: bool, samples: int) -> EngineComparison:
        """How far an engine is from ONNX Runtime on the first final samples; see `compare_engine`."""

    def compare_wrapper(self, engine: Path, outputs: Path, samples: int, threshold_db: float) -> WrapperComparison:
        """What is wrong with outputs of the user's own program on samples of the final data; see `compare_wrapper`.

        Raises:
            DataError: the file with the outputs cannot be compared.
        """

    def measure_sensitivity(
        self,
        seconds: float,
        pairs: Sequence[tuple[str, Precision]] | None = None,
        placement: Mapping[str, Any] | None = None,
    ) -> SensitivityPass:
        """What each group alone in a lower precision adds to the outputs' error, on search samples; builds no engine.

        Args:
            seconds: for the whole pass; see `sensitivity.sensitivity`.
            pairs: group id and precision; None for every lower precision that this target offers each group.
            placement: of another target, as `Placement.to_json` gives it, which a process measures for that has no such
                device: on the processor, of which one core is left to others. None for this target's own.

        Raises:
            RunError: the model has not been calibrated.
            EvaluatorError: ONNX Runtime cannot run the float model.
        """

    def score_emulated(self, assignment: Assignment, allowed_drop: float | None = None) -> EmulatedScore:
        """Score an assignment on the search split without building its engine: as Q/DQ and Cast, in ONNX Runtime.

        Args:
            allowed_drop: stop early once the loss exceeds this with 99 % confidence; None: never.

        Raises:
            RunError: the model has not been calibrated.
            ModelError: the assignment cannot be written as Q/DQ and Cast.
            EvaluatorError: ONNX Runtime cannot run it.
            MetricError: the metric raised or gave NaN.
        """

    def write_layers(self, engine: Path, folder: Path, reasons: Mapping[str, str], count: int) -> bool:
        """Write what an engine runs, layer by layer, and the time of each, as an export keeps them.

        Args:
            folder: for `layers.json` and `profile.json`.
            reasons: group id → why it was not asked for in INT8, in a sentence.
            count: inferences of the profiled run.

        Returns:
            False if the backend tells no layers; nothing is written then.

        Raises:
            EvaluatorError: the engine cannot be loaded or run here.
        """

    def compare_float(self, file: Path, samples: int) -> FloatComparison:
        """How far an ONNX file's outputs are from those of the user's file, on the first final samples.

        Raises:
            EvaluatorError: ONNX Runtime cannot run one of them.
        """

    def read_types(self, engine: Path) -> Mapping[str, str]:
        """numpy's name of the type that every input and output of an engine file has, which may not be the model's."""


class EngineFileRequests(Protocol):
    """Engine files as they are, without their model; answered only where the job names `engine_files`.

    Raises:
        InputError: an engine or the data cannot be used, or they do not fit together.
        EvaluatorError: an engine cannot be run here.
    """

    def score(self, labels: Sequence[str]) -> EngineScores:
        """Scores of engines on all samples of the data.

        Args:
            labels: of the job, `baseline` among them; `reference` is what the others' outputs are compared with, where
                the metric does so, and is not scored itself.
        """

    def time(self, order: Sequence[str], rounds: int) -> Mapping[str, Latency]:
        """Latencies of engines that are loaded and run in turn, in this order, and not measured again where doubtful.

        Args:
            order: labels of the job, each visited in every one of the rounds.
        """


class EvaluatorLine(Protocol):
    """All requests, by kind of work."""

    @property
    def setup(self) -> SetupRequests: ...

    @property
    def builds(self) -> BuildRequests: ...

    @property
    def candidates(self) -> CandidateRequests: ...

    @property
    def timings(self) -> TimingRequests: ...

    @property
    def scores(self) -> ScoreRequests: ...

    @property
    def calibrations(self) -> CalibrationRequests: ...

    @property
    def diagnoses(self) -> DiagnosisRequests: ...

    @property
    def engine_files(self) -> EngineFileRequests: ...
