"""A model that is opened on its target, with the builder that is kept for it."""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx_ir as ir

from evaluators.backends.nvidia import discovery
from evaluators.backends.registry import choose_backend, kind_named, open_backend
from evaluators.engine import Backend, Builder, Engine, RefusedError
from evaluators.measure.device_lock import device_lock, holder_text
from evaluators.process.job import Job, discard_on_error
from evaluators.process.line import ALIVE, MODEL_RUN, PROGRESS, STAGE, WAIT
from evaluators.process.tasks.candidate import check_room
from search.errors import BitfrontError, RunError, TargetError
from search.graph import model as models
from search.graph.model import Model
from search.space.capability_rules import CapabilityRules
from search.values import THREAD_CLOCK, Assignment, Ranges, Stage, TensorRange

Report = Callable[[str, Any], None]
_ALIVE_S = 0.2  # between two events that only say that the process is alive


@dataclass(frozen=True)
class PreparedBackend:
    """A backend that was opened before the model was known; `job` says with which options."""

    backend: Backend
    job: Job

    def is_of(self, job: Job) -> bool:
        """Whether it is what `open_backend_of` would give."""
        return all(
            getattr(self.job, name) == getattr(job, name)
            for name in ("backend", "device", "options", "capabilities", "beside")
        )


def prepare_backend(job: Job) -> PreparedBackend:
    """Open the backend of a job, with all that takes seconds on a GPU; raises as `open_backend_of` and `Backend.check`.

    On a processor no session is opened: its threads would not be where the process is bound to later.
    """
    backend = open_backend_of(job)
    if kind_named(choose_backend(job.backend)).runs_on_gpu(job.device):
        backend.check()
    return PreparedBackend(backend, job)


class OpenModel:
    """One model on one device, kept warm for a whole study.

    Args:
        job: what to open.
        report: told events: the stage that an evaluation reaches, and progress of long steps, or that there is some.
        prepared: a backend that is taken where it is that of the job.

    Raises:
        InputError: model, backend or device cannot be used.
    """

    def __init__(self, job: Job, report: Report, prepared: PreparedBackend | None = None) -> None:
        self.job = job
        self._report = report
        self._said_alive = 0.0
        model = models.load(Path(job.model), batch=job.batch, shapes=_shapes_of(job), values=job.input_values)
        model = model.with_shapes(job.known_shapes) if job.known_shapes else model
        self._user_model = model.with_decisions(job.decide)
        self.model = self._recover_model()
        self.backend = prepared.backend if prepared is not None and prepared.is_of(job) else open_backend_of(job)
        self.target = self.backend.target()
        self.folder = Path(job.folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._builder: Builder | None = None

    def load_as_given(self) -> ir.Model:
        """The user's file itself, at the shapes of the job."""
        job = self.job
        return models.load_as_given(Path(job.model), batch=job.batch, shapes=_shapes_of(job), values=job.input_values)

    @property
    def user_model(self) -> Model:
        """The user's model, clean; `model` is that with what recovery changed of its constants."""
        return self._user_model

    def _recover_model(self) -> Model:
        return (
            self._user_model.scale_constants(self.ranges.recovery.factors)
            if self.job.ranges is not None
            else self._user_model
        )

    @property
    def builder(self) -> Builder:
        """Made when it is first asked for.

        Raises:
            RunError: the model has not been calibrated yet.
        """
        if self._builder is None or self.job.ranges is None:
            self._builder = self.backend.builder(self.model, self.ranges)
        return self._builder

    @property
    def provisional_builder(self) -> Builder:
        """The builder; before the model is calibrated one with made-up ranges, by which it learns tactics' times.

        Its engines are those of the user's model, and compute nonsense where anything in them is in INT8.
        """
        if self.job.ranges is not None:
            return self.builder
        if self._builder is None:
            self._builder = self.backend.builder(self.model, _make_up_ranges(self.model))
        return self._builder

    @property
    def ranges(self) -> Ranges:
        """The calibrated ranges, read from their file; RunError where the model has not been calibrated yet."""
        path = self.job.ranges
        if path is None:
            raise RunError("evaluating a candidate: the model has not been calibrated yet")
        return Ranges.from_json(json.loads(Path(path).read_text(encoding="utf-8")))

    def adopt(self, changes: Mapping[str, Any]) -> None:
        """Continue a changed job: `ranges`, or an `optimization_level` in `options`."""
        self.job = replace(self.job, **changes)
        if "ranges" in changes:
            self._builder = None
            self.model = self._recover_model()
        if "options" in changes:
            self.backend.set_options(changes["options"])

    def build(self, lowered: Any, out: Path) -> Engine:
        """Build what the builder lowered; ArtifactError where its refusal is for lack of room on the disk."""
        try:
            return self.provisional_builder.build(lowered, out)
        except RefusedError as error:
            check_room(out, error)
            raise

    def build_audited(self, assignment: Assignment, out: Path) -> None:
        """Build the engine of an assignment and look at what was built; leaves nothing at `out` when that fails."""
        with discard_on_error(out):
            engine = self.build(self.builder.lower(assignment), out)
            self.builder.audit(engine, assignment)
        self.tell_alive()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While it is held, no other process measures on the device; reports that it waits for one.

        By the processor time of a thread nobody has to wait: two processes on cores of their own were seen to move each
        other's ratios by less than a measurement is off anyway.
        """
        if self.target.clock == THREAD_CLOCK:
            yield
            return
        device, waited = self.backend.lock_name, False

        def tell_wait(pid: int | None) -> None:
            nonlocal waited
            if not waited:  # the turn to wait comes before the wait itself
                self._report(WAIT, holder_text(pid, device))
            waited = True

        with device_lock(device, on_wait=tell_wait):
            if waited:
                self._report(WAIT, "")
            yield

    @contextmanager
    def model_run(self) -> Iterator[None]:
        """Around a run of the model while the job is being opened: the limits of time hold for it."""
        self._report(MODEL_RUN, True)
        yield
        self._report(MODEL_RUN, False)

    def tell_stage(self, stage: Stage) -> None:
        """Report that a candidate enters a stage."""
        self._report(STAGE, stage.value)

    def tell_progress(self, done: int, total: int) -> None:
        """Report how far a long step is."""
        self._report(PROGRESS, [done, total])

    def tell_alive(self) -> None:
        """Report now and then that something long goes on."""
        now = time.monotonic()
        if now >= self._said_alive + _ALIVE_S:
            self._said_alive = now
            self._report(ALIVE, None)


def _shapes_of(job: Job) -> dict[str, models.ShapeRequest]:
    return {name: models.ShapeRequest(*map(tuple, parts)) for name, parts in job.shapes.items()}


def _make_up_ranges(model: Model) -> Ranges:
    """A range for every tensor, different from one to the next as real ones are."""
    names = [value.name for node in model.graph.graph.all_nodes() for value in node.outputs if value.name]
    names += [value.name for value in model.graph.graph.inputs if value.name]
    sizes = {name: 1.0 + zlib.crc32(name.encode()) / 2**32 for name in names}
    tensors = {name: TensorRange(-size, size) for name, size in sizes.items()}
    return Ranges("made up", tensors, tensors, 0)


def open_backend_of(job: Job) -> Backend:
    """The backend that a job names; TargetError, or ConfigError, where it cannot be opened."""
    try:
        with _turn_of(job) if job.beside else nullcontext():
            rules = None if job.capabilities is None else CapabilityRules.from_json(job.capabilities)
            return open_backend(job.backend, job.device, job.options, rules)
    except BitfrontError:
        raise
    except Exception as error:
        raise TargetError(
            f"starting backend {job.backend}: {type(error).__name__}: {error}. Its installation may be broken: "
            "try `bitfront doctor`, or install it anew."
        ) from error


def _turn_of(job: Job) -> AbstractContextManager[None]:
    """The lock of a job's device, asked for once everything is imported that the backend needs."""
    kind = kind_named(choose_backend(job.backend))
    kind.prepare()
    device = job.device or kind.default_device
    gpu = kind.gpu_of(device)
    return device_lock(device if gpu is None else discovery.lock_name(gpu))
