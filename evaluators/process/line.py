"""The requests that an evaluator process answers: typed Protocols that both ends of the line share.

`Evaluator` implements them in the evaluator process. `connect` makes the client's end of the same Protocols, so that a
request is an ordinary, type-checked call: `line.timings.profile(engine, count=10)`. The table `REQUESTS` is read from
the Protocols; a new request is a method of a Protocol and of the class that implements it, and nothing else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast, get_type_hints

import numpy as np
from numpy.typing import NDArray

from evaluators.process.job import Limits
from search.values import Accuracy, Assignment, Capability, Evaluation, Latency, LayerTime, Precision, Ranges, Target

# Events that a process reports while it answers a request, each with a value.
STAGE = "stage"  # the value of the `Stage` that an evaluation enters
PROGRESS = "progress"  # [done, total]
ALIVE = "alive"  # None: it is busy with something long and has nothing else to tell

OPEN = "open"  # the first request to a process: opens a Job, and gives its Description


@dataclass(frozen=True)
class DataDescription:
    """Digests of the data and how many samples each split has.

    Attributes:
        clusters: split → number of clusters; empty where samples belong to none.
    """

    digest: str
    final_digest: str
    calibration_digest: str
    calibration: int
    search: int
    final: int
    clusters: Mapping[str, int]


@dataclass(frozen=True)
class MetricDescription:
    """What scores outputs.

    Attributes:
        ratio: whether values are shares between 0 and 1.
        kind: `per_sample` or `accumulating`.
        notes: how it was chosen and what it does not score, one sentence each.
    """

    name: str
    unit: str
    higher_is_better: bool
    ratio: bool
    kind: str
    notes: Sequence[str]


@dataclass(frozen=True)
class Description:
    """What a process opened.

    Attributes:
        model: digest of the model.
        knobs: what decides, beside assignment and ranges, what is built.
        engine_file: what an exported engine is called.
        placement: name of the way in which assignments are lowered for this target.
        data, metric: None in a process that only builds.
        score_clusters: split → (scores,) int64, the cluster of each score, where samples belong to clusters.
    """

    target: Target
    model: str
    capability: Capability
    knobs: dict[str, str]
    engine_file: str
    placement: str
    data: DataDescription | None = None
    metric: MetricDescription | None = None
    score_clusters: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """What building a candidate left for measuring it, in the same process or in another one on the same target.

    Attributes:
        evaluation: what is known so far: audit, size, seconds, notes. Where building failed it is finished.
        engine: the engine file; None where building failed.
        log: the end of what the process printed while it built; the keeper of the process fills it in.
    """

    evaluation: Evaluation
    engine: Path | None
    log: str = ""


@dataclass(frozen=True)
class Calibrated:
    """Ranges of every float tensor, and what is noteworthy about them, one sentence each."""

    ranges: Ranges
    notes: Sequence[str]


@dataclass(frozen=True)
class FinalScores:
    """Finalists, measured again and scored on the final split.

    Attributes:
        latency: label → latency, measured in turn with the others and the baseline.
        accuracy: label → accuracy on the final split.
        reference: FP32's value of the metric there.
        failed: label → message, of engines that are not in `accuracy` because their outputs on the final split are
            not finite.
    """

    latency: Mapping[str, Latency]
    accuracy: Mapping[str, Accuracy]
    reference: float
    failed: Mapping[str, str]


@dataclass(frozen=True)
class LatencyComparison:
    """Two engines timed in turn: the target's statistic of each, in milliseconds.

    Attributes:
        baseline_ms: of FP32, timed in turn with both on relative targets; None on others.
        warnings: what is doubtful in the measurements.
    """

    engine_ms: float
    measured_ms: float
    baseline_ms: float | None
    warnings: Sequence[str]


class SetupRequests(Protocol):
    """Before the first candidate."""

    def try_out(self) -> None:
        """Run and score the float model on a few samples, so that what does not fit is found before anything is made.

        Labels are checked of all samples, those of the final split too, which are scored last.

        Raises:
            ModelError: the engine does not know an op.
            ConfigError, MetricError, DataError: the metric does not fit the model's outputs or the data.
        """

    def adopt(self, changes: Mapping[str, Any]) -> None:
        """Go on with a changed job: `ranges` that have been calibrated, an `optimization_level` in `options`."""

    def knobs(self) -> dict[str, str]:
        """What decides, beside assignment and ranges, what is built; part of an evaluation's digest."""


class BuildRequests(Protocol):
    """Engines from assignments."""

    def build(self, assignment: Assignment, out: Path) -> Built:
        """Lower, build and audit a candidate. Its own failure is a value, not an exception.

        Args:
            out: where the engine file goes; nothing stays there when building fails.

        Raises:
            ArtifactError: there is no room for the engine.
            DeviceError, OutOfMemoryError: this process must be replaced.
        """

    def rebuild(self, assignment: Assignment, out: Path) -> None:
        """Build the engine of an assignment that was evaluated before.

        Raises:
            EvaluatorError: the engine's builder refuses it.
        """

    def build_first(self, assignment: Assignment) -> float:
        """Build an assignment, and keep the engine for the evaluation of it; the seconds that the build took.

        Raises:
            EvaluatorError: the engine's builder refuses it.
        """

    def write_source(self, assignment: Assignment, out: Path) -> None:
        """Write the ONNX file that the engine of an assignment is built from."""

    def write_timing_cache(self, out: Path) -> bool:
        """Write what the builder has learnt of tactics' times; False where it keeps nothing of the kind."""


class CandidateRequests(Protocol):
    """Evaluations of candidates. A candidate's own failure is a value, not an exception."""

    def evaluate(self, assignment: Assignment, out: Path, limits: Limits, profile: bool = False) -> Evaluation:
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

    def measure(self, built: Built, limits: Limits, profile: bool = False) -> Evaluation:
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

    def run_final(self, engine: Path) -> Mapping[str, NDArray[Any]]:
        """Outputs of an engine file on the first final samples: what an export must give again, bit for bit.

        Of large outputs, 64 MiB and the batch under way are enough. One without axes counts as a row per batch.

        Raises:
            EvaluatorError: the engine cannot be loaded or run here.
        """


class CalibrationRequests(Protocol):
    """Ranges of the model's tensors."""

    def find_key(self, method: str, cache: Mapping[str, float] | None = None) -> str:
        """Names the result of `calibrate` by its inputs' content."""

    def calibrate(self, method: str, cache: Mapping[str, float] | None = None) -> Calibrated:
        """Ranges of every float tensor.

        Args:
            cache: magnitudes from a calibration cache; only tensors that it lacks are calibrated then.
        """


class DiagnosisRequests(Protocol):
    """A closer look at engines and at the model."""

    def compare(self, engine: Path, assignment: Assignment, groups: bool, samples: int) -> Mapping[str, Any]:
        """How far an engine is from ONNX Runtime on the first final samples; see `compare_engine`."""

    def measure_sensitivity(
        self,
        seconds: float,
        pairs: Sequence[tuple[str, Precision]] | None = None,
        placement: str | None = None,
    ) -> Mapping[str, Any]:
        """What each group alone in a lower precision adds to the outputs' error, on search samples; builds no engine.

        Args:
            seconds: for the whole pass; see `sensitivity.sensitivity`.
            pairs: group id and precision; None for every lower precision that this target offers each group.
            placement: name of the one that another target lowers by, which a process measures for that has no such
                device: on the processor, of which one core is left to others. None for this target's own.

        Returns:
            `rows` and `notes` of `sensitivity.sensitivity`, and the `device` that it ran on.

        Raises:
            RunError: the model has not been calibrated.
            EvaluatorError: ONNX Runtime cannot run the float model.
        """

    def read_types(self, engine: Path) -> Mapping[str, str]:
        """numpy's name of the type that every input and output of an engine file has, which may not be the model's."""


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


@dataclass(frozen=True)
class Request:
    """One method of the line: which kind of work in `EvaluatorLine`, and which method of that."""

    task: str
    method: str
    signature: inspect.Signature

    @property
    def name(self) -> str:
        return f"{self.task}.{self.method}"


def _read_requests() -> dict[str, Request]:
    tasks = {name: member.fget for name, member in vars(EvaluatorLine).items() if isinstance(member, property)}
    found = [
        Request(task, method, _without_self(function))
        for task, getter in tasks.items()
        for method, function in vars(get_type_hints(getter)["return"]).items()
        if inspect.isfunction(function) and not method.startswith("_")
    ]
    return {request.name: request for request in found}


def _without_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


REQUESTS: Mapping[str, Request] = _read_requests()

Ask = Callable[[str, Mapping[str, Any]], Any]


def connect(ask: Ask) -> EvaluatorLine:
    """The client's end of the line.

    Args:
        ask: gets the name of a request and its arguments by name, and gives the answer.
    """
    tasks: dict[str, dict[str, Any]] = {}
    for request in REQUESTS.values():
        tasks.setdefault(request.task, {})[request.method] = _caller(request, ask)
    return cast(EvaluatorLine, SimpleNamespace(**{task: SimpleNamespace(**calls) for task, calls in tasks.items()}))


def _caller(request: Request, ask: Ask) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return ask(request.name, request.signature.bind(*args, **kwargs).arguments)

    return call


def handlers(line: EvaluatorLine) -> dict[str, Callable[..., Any]]:
    """The server's end of the line: name of a request → what answers it, called with its arguments by name."""
    return {name: _handler(line, request) for name, request in REQUESTS.items()}


def _handler(line: EvaluatorLine, request: Request) -> Callable[..., Any]:
    def answer(**arguments: Any) -> Any:
        return getattr(getattr(line, request.task), request.method)(**arguments)

    return answer
