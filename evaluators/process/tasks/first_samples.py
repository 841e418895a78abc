"""Running the float model on a few samples, to find data that do not fit before anything is made."""

from __future__ import annotations

import math
import tempfile
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from evaluators.data import Dataset, Indices, batches
from evaluators.engine import Arrays, RefusedError, Session
from evaluators.measure import accuracy
from evaluators.measure.scoring import NonFiniteError
from evaluators.metrics.labels import check_labels
from evaluators.process.tasks.float_baseline import keep_float_outputs, non_finite_text
from evaluators.process.tasks.open_data import OpenData
from evaluators.process.tasks.open_model import OpenModel
from search.errors import DataError, MetricError, ModelError

_UNDECLARED = 32  # samples that tell whether scores are 0 or 1 alone


class FirstSamples:
    """See `SetupRequests.try_out`."""

    def __init__(self, opened: OpenModel, data: OpenData) -> None:
        self._opened = opened
        self._data = data
        batch = opened.model.batch
        # One whole batch, and one that is filled up where a split has such a one.
        self._few = batch + (max(order.left_over(batch) for order in data.score_orders.values()) or batch)

    def try_out(self) -> bool:
        """Run and score the first samples, as `SetupRequests.try_out` says."""
        self._data.choice.check()
        self._check_splits()
        opened, data = self._opened, self._data
        with (
            closing(opened.backend.float_session(opened.model)) as session,
            tempfile.TemporaryDirectory(dir=opened.folder) as folder,
        ):
            try:
                few = max(self._few, _UNDECLARED) if data.metric.undeclared else self._few
                searched = data.search_batches(data.search_indices[:few])
                reference = accuracy.reference(session, data.metric, searched, Path(folder))
                if data.metric.undeclared and np.isin(reference.scores, (0.0, 1.0)).all():
                    data.metric = data.metric.as_shares()
                self._try_labels(session, Path(folder))
                keep_float_outputs(opened.folder, session.run(data.first_batch()), opened.model.batch)
            except RefusedError as error:
                raise ModelError(f"running the float model on the first samples: {error}") from error
            except NonFiniteError as error:
                raise DataError(non_finite_text("first", error)) from error
        return data.metric.ratio

    def _try_labels(self, session: Session, folder: Path) -> None:
        """Check all labels for a built-in metric; score a few final samples by the user's own, as no less can tell."""
        data = self._data
        if data.metric.is_own:
            try:
                accuracy.reference(session, data.metric, data.final_batches(self._few), folder)
            except (DataError, MetricError) as error:
                raise type(error)(f"scoring the first final samples: {error}") from error
        elif data.metric.fit is not None:
            for name, dataset, indices in (
                ("search", data.data, data.search_indices),
                ("final", data.final_data, data.final_indices),
            ):
                run = partial(_run_first, session, dataset, batch=data.batch)
                check_labels(data.metric, run, dataset, indices, name)

    def _check_splits(self) -> None:
        data, batch = self._data, self._opened.model.batch
        gathers = data.metric.kind == "accumulating"
        for name, indices in (("search", data.search_indices), ("final", data.final_indices)):
            units = math.ceil(len(indices) / batch) if gathers else len(indices)
            blocks = data.score_orders[name].clusters
            if blocks is not None and len(np.unique(blocks)) < 2:
                raise DataError(
                    f"splitting the data: all clusters of the {name} samples fit into one batch, and metric "
                    f"{data.metric.name} needs two batches that share no cluster, for an interval. Give more data "
                    "or a smaller batch."
                )
            if units < 2:
                wanted = f"more than {batch} (one batch)" if gathers else "at least 2"
                raise DataError(
                    f"splitting the data: metric {data.metric.name} needs {wanted} {name} samples, for an interval; of "
                    f"all {len(data.data)} samples, the {name} ones are {len(indices)}. Give more data."
                )


def _run_first(session: Session, dataset: Dataset, indices: Indices, batch: int) -> Arrays:
    """Outputs of a batch with the first of some samples."""
    return session.run(next(batches(dataset, indices, batch)).inputs)
