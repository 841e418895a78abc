"""The evaluator process's end of the connection for engine files without their model."""

from __future__ import annotations

from evaluators.backends.registry import choose_backend, kind_named
from evaluators.process.engine_files.runs import EngineFileRuns
from evaluators.process.job import Job
from evaluators.process.results import Description
from evaluators.process.tasks.open_model import Report, open_backend_of


class EngineFileEvaluator:
    """Answers the requests `engine_files` of `EvaluatorLine`, and no others.

    Args:
        job: with `engine_files`.
        report: told now and then that the process is alive.

    Raises:
        InputError: backend or device cannot be used.
    """

    def __init__(self, job: Job, report: Report) -> None:
        self._kind = kind_named(choose_backend(job.backend))
        self._backend = open_backend_of(job)
        self.engine_files = EngineFileRuns(job, self._kind, self._backend, report)

    def describe(self) -> Description:
        """What was opened, which is the backend alone: engines and data are opened by the first request for them."""
        backend = self._backend
        return Description(
            target=backend.target(),
            model="",
            capability=backend.capability(),
            knobs=dict(backend.knobs()),
            engine_file=self._kind.engine_file,
            placement=backend.placement.to_json(),
        )
