"""The evaluator process's end of the connection: all requests about one model, its data and one device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NoReturn

from evaluators.backends.registry import kind_named
from evaluators.metrics.contract import Metric
from evaluators.process.job import Job
from evaluators.process.line import EngineFileRequests
from evaluators.process.results import Description
from evaluators.process.tasks.builds import Builds
from evaluators.process.tasks.calibrations import Calibrations
from evaluators.process.tasks.candidates import CandidateTasks
from evaluators.process.tasks.diagnoses import Diagnoses
from evaluators.process.tasks.first_samples import FirstSamples
from evaluators.process.tasks.float_baseline import FloatBaseline
from evaluators.process.tasks.latency_meter import LatencyMeter
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel, PreparedBackend, Report
from evaluators.process.tasks.scores import Scores
from evaluators.process.tasks.timings import Timings
from search.errors import EvaluatorError


class Setup:
    """Implements `SetupRequests`.

    Args:
        data: None in a process that only builds.
    """

    def __init__(self, opened: OpenModel, data: OpenData | None) -> None:
        self._opened = opened
        self._data = data

    def describe(self) -> Description:
        """What was opened."""
        opened, data = self._opened, self._data
        description = Description(
            target=opened.target,
            model=opened.user_model.digest,
            capability=opened.backend.capability(),
            knobs=self.knobs(),
            engine_file=kind_named(opened.job.backend).engine_file,
            placement=opened.backend.placement.to_json(),
        )
        if data is None:
            return description
        clusters = {split: order.clusters for split, order in data.score_orders.items() if order.clusters is not None}
        return replace(
            description,
            data=data.describe_data(),
            metric=data.describe_metric(),
            score_clusters=clusters,
            labelled=data.data.has_labels,
        )

    def adopt(self, changes: Mapping[str, Any]) -> None:
        self._opened.adopt(changes)

    def knobs(self) -> dict[str, str]:
        return dict(self._opened.backend.knobs())

    def try_out(self) -> bool:
        if self._data is None:
            raise _only_builds()
        return FirstSamples(self._opened, self._data).try_out()


class Evaluator:
    """Implements `EvaluatorLine`.

    Args:
        job: what to open. Where it is `only_builds`, requests that need data raise EvaluatorError.
        report: told events: the stage that an evaluation reaches, and progress of long steps, or that there is some.
        handed: the metric of the job where it is a function of the keeper's process.
        prepared: the backend, where it was opened before.

    Attributes:
        opened, data: what it works on; there is no data where it only builds.

    Raises:
        InputError: model, data, metric, backend or device cannot be used.
    """

    def __init__(
        self, job: Job, report: Report, handed: Metric | None = None, prepared: PreparedBackend | None = None
    ) -> None:
        self.opened = opened = OpenModel(job, report, prepared)
        self.data = None if job.only_builds else OpenData(opened, handed)
        self.setup = Setup(opened, self.data)
        self.builds = Builds(opened)
        if (data := self.data) is not None:
            baseline = FloatBaseline(opened, data, self.builds)
            meter = LatencyMeter(opened, data, baseline)
            self.candidates = CandidateTasks(opened, data, self.builds, baseline, meter)
            self.timings = Timings(opened, data, meter)
            self.scores = Scores(opened, data, baseline, meter)
            self.calibrations = Calibrations(opened, data)
            self.diagnoses = Diagnoses(opened, data, baseline)

    def __getattr__(self, name: str) -> NoReturn:
        """Raise EvaluatorError for a kind of work that needs data, where there are none."""
        if name in ("candidates", "timings", "scores", "calibrations", "diagnoses"):
            raise _only_builds()
        raise AttributeError(f"an evaluator has no {name!r}")

    @property
    def engine_files(self) -> EngineFileRequests:
        raise EvaluatorError(
            "asking an evaluator process to run engine files without their model: it was opened for a model. Ask one "
            "whose job names `engine_files`."
        )


def _only_builds() -> EvaluatorError:
    return EvaluatorError(
        "asking an evaluator process to run engines: it was opened for building alone and has no data. Ask one that "
        "was opened without `only_builds`."
    )
