"""Uniform FP32 on the target, the baseline of latencies and the reference of losses."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evaluators.diagnose.distributions import decibels
from evaluators.engine import Arrays, RefusedError, Session
from evaluators.measure import accuracy, resemblance
from evaluators.measure.flips import ClassRecorder
from evaluators.measure.output_noise import sample_noise
from evaluators.measure.scoring import NonFiniteError
from evaluators.process.tasks.builds import Builds
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from evaluators.stopwatch import time_spent
from search.errors import DataError, EvaluatorError
from search.space.choices import make_space
from search.values import REFERENCE, UNLIKE_FLOAT, Accuracy, Assignment

Classes = NDArray[np.int64]
_CLASSES = "classes.npy"
_FLOAT_OUTPUTS = "float-outputs.npz"  # of the float model, on the first batch
_LIKE_DB = 20.0  # TF32 leaves about 60 dB, BF16 40: below this it is another function


class FloatBaseline:
    """The uniform FP32 engine, or the nearest to it that the target has; built once, when it is first needed."""

    def __init__(self, opened: OpenModel, data: OpenData, builds: Builds) -> None:
        self._opened = opened
        self._data = data
        self._builds = builds
        self._session: Session | None = None

    @property
    def session(self) -> Session:
        """The engine, loaded, its inputs bound."""
        if self._session is None:
            self._session = self._build()
        return self._session

    @time_spent("reference")
    def _build(self) -> Session:
        opened = self._opened
        opened.folder.mkdir(parents=True, exist_ok=True)
        out = opened.folder / "baseline.engine"
        first = self._data.first_batch()
        try:
            self._builds.make(self._assignment, out)
            session = opened.builder.load(out)
            session.run(first)
        except RefusedError as error:
            raise EvaluatorError(f"building the FP32 baseline: the engine's builder refuses it: {error}") from error
        session.bind(first)
        return session

    @time_spent("reference")
    def reference(self, split: str) -> accuracy.ReferenceScores:
        """FP32 on one split, kept on disk so that a fresh process need not run it again.

        Raises:
            DataError: FP32 itself is not finite there.
        """
        return self._load_stored(split) or self._make(split, self.session)

    def score(self, assignment: Assignment, session: Session) -> Accuracy | None:
        """Score a candidate on the search split that is what the reference there is made of, and keep it as that.

        Returns:
            None where it is not, or where there is a reference already.

        Raises:
            DataError: as `reference`.
        """
        if assignment != self._assignment or self._load_stored("search") is not None:
            return None
        clusters = self._data.score_orders["search"].clusters
        return accuracy.reference_accuracy(self._data.metric, self._make("search", session), clusters)

    def doubts(self, assignment: Assignment, session: Session) -> list[str]:
        """What to note of an engine that is uniform FP32 and yet far from the float model that was tried first.

        Every loss is measured against this engine, so that nothing else would show it to be wrong.
        """
        file = self._opened.folder / _FLOAT_OUTPUTS
        if assignment != self._assignment or not file.exists():
            return []
        batch = self._opened.model.batch
        outputs = _excerpt(session.run(self._data.first_batch()), batch).arrays()
        rows, stored = resemblance.load(file)
        same = {name: array for name, array in stored.items() if name in outputs and outputs[name].shape == array.shape}
        if not same:
            return []
        level = decibels(float(np.median(sample_noise(outputs, same, len(rows)))))
        if level is not None and level >= _LIKE_DB:
            return []
        text = "not finite" if level is None else f"{level:.0f} dB"
        return [
            f"{UNLIKE_FLOAT}on the first batch, signal to noise is {text}; rounding leaves more than {_LIKE_DB:.0f} dB"
        ]

    @property
    def _assignment(self) -> Assignment:
        return make_space(self._opened.model, self._opened.backend.capability()).uniform(REFERENCE)

    def _folder(self, split: str) -> Path:
        return self._opened.folder / f"reference-{split}"

    def _load_stored(self, split: str) -> accuracy.ReferenceScores | None:
        data, stored = self._data, accuracy.load_reference(self._folder(split))
        samples = len(data.score_orders[split].indices)
        known = stored is not None and stored.metric == data.metric.name and stored.samples == samples
        return stored if known else None

    def _make(self, split: str, session: Session) -> accuracy.ReferenceScores:
        data, folder = self._data, self._folder(split)
        samples = len(data.score_orders[split].indices)
        try:
            # A search may stop after the first samples; elsewhere all are seen, in an order where neighbours are alike.
            stops = split == "search" and data.metric.kind == "per_sample"
            kept = resemblance.first_rows(samples) if stops else resemblance.spread_rows(samples)
            recorder = ClassRecorder(session)
            with closing(data.scored_batches(split)) as batches:
                made = accuracy.reference(recorder, data.metric, batches, folder, kept=kept)
            classes = recorder.classes(made.counts)
            (folder / _CLASSES).unlink(missing_ok=True)
            if classes is not None:
                np.save(folder / _CLASSES, classes, allow_pickle=False)
            return made
        except NonFiniteError as error:
            raise DataError(non_finite_text(split, error)) from error

    def classes(self, reference: accuracy.ReferenceScores) -> Classes | None:
        """(samples,) the class that FP32 gives each sample of a reference; None if its outputs are no classes."""
        file = reference.folder / _CLASSES
        return np.load(file, allow_pickle=False) if file.exists() else None


def keep_float_outputs(folder: Path, outputs: Arrays, batch: int) -> None:
    """Keep some of what the float model gave on the first batch, for `FloatBaseline.doubts` in any process."""
    resemblance.save(_excerpt(outputs, batch), folder / _FLOAT_OUTPUTS)


def _excerpt(outputs: Arrays, batch: int) -> resemblance.Excerpt:
    excerpt = resemblance.Excerpt(resemblance.first_rows(batch))
    excerpt.add(outputs, 0, batch)
    return excerpt


def non_finite_text(split: str, error: NonFiniteError) -> str:
    """What to say where FP32 itself gives NaN or infinity on some samples."""
    return (
        f"running the FP32 model on the {split} samples: {error}. Its outputs in FP32 have to be finite: find the "
        "samples that are out of its range and leave them out."
    )
