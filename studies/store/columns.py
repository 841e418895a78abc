"""Evaluations as columns: judging a study takes a dozen numbers of every evaluation, and there may be many thousands.

Everything else is told of a few evaluations alone: the trial, the engine file, what the engine is made of. Those are
columns that are read on demand, and only for the requested rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from numpy.typing import NDArray

Ids = NDArray[np.int64]
ReadRows = Callable[[Sequence[int]], Mapping[int, Mapping[str, Any]]]
ReadColumn = Callable[[str], tuple[Sequence[int], Sequence[Any]]]

TEXTS = frozenset({"digest", "status", "stage", "kind", "role", "artifact"})
FLOATS = frozenset(
    {"raw_ms", "baseline_ms", "spread", "metric_value", "value", "loss", "loss_low", "loss_high"}
    | {"loss_upper", "resemblance", "build_s", "total_s"}
)
MOST_ROWS = 500  # of which details are read by their ids; of more the whole column is read
MOST_SINGLE = 50  # rows of one column that are asked for one by one, after which the whole column is read


def column_of(name: str, values: Sequence[Any]) -> NDArray[Any]:
    """A stored column as an array: NaN in floats, -1 in integers and an empty text for what was not reached."""
    if name in TEXTS:
        return np.array([value or "" for value in values], dtype=np.str_)
    if name in FLOATS:
        return np.array(values, dtype=np.float64)  # None becomes NaN
    return np.array([-1 if value is None else value for value in values], dtype=np.int64)


class Details:
    """What has been read of the details of one target's evaluations. A detail is as it was when it was read.

    Args:
        read_rows: evaluation ids → all details of each of them by name.
        read_column: the name of a detail → ids of all evaluations of the target that have it, and what it is.
    """

    def __init__(self, read_rows: ReadRows, read_column: ReadColumn) -> None:
        self._read_rows, self._read_column = read_rows, read_column
        self._rows: dict[int, Mapping[str, Any]] = {}
        self._columns: dict[str, tuple[Ids, NDArray[Any]]] = {}
        self._single = 0

    def read(self, ids: Sequence[int]) -> None:
        """Read all details of these evaluations at once, as far as that has not been done yet."""
        missing = [number for number in ids if number not in self._rows]
        if missing:
            self._rows.update(self._read_rows(missing))

    def of(self, name: str, ids: Ids) -> NDArray[Any]:
        """(n,) one detail of these evaluations."""
        numbers: list[int] = ids.tolist() if len(ids) <= MOST_ROWS else []
        if name in self._columns or len(ids) > MOST_ROWS or self._should_read_all(numbers):
            return self._of_column(name, ids)
        self.read(numbers)
        return column_of(name, [self._rows.get(number, {}).get(name) for number in numbers])

    def _should_read_all(self, numbers: list[int]) -> bool:
        """Whether rows are asked for one by one so often that all are read instead."""
        if len(numbers) == 1 and numbers[0] not in self._rows:
            self._single += 1
        return self._single > MOST_SINGLE

    def _of_column(self, name: str, ids: Ids) -> NDArray[Any]:
        if name not in self._columns:
            row_ids, values = self._read_column(name)
            known = np.array(row_ids, dtype=np.int64)
            order = np.argsort(known, kind="stable")
            self._columns[name] = known[order], column_of(name, [*values, None])[[*order, len(values)]]
        known, column = self._columns[name]  # the column's last value is that of an evaluation which has none
        places = np.searchsorted(known, ids)
        found_there = known[np.minimum(places, len(known) - 1)] == ids if len(known) else np.zeros(len(ids), bool)
        result: NDArray[Any] = column[np.where(found_there, places, len(known))]
        return result


class DetailColumn(NDArrayOperatorsMixin):
    """One detail of the rows of a table, used as a NumPy array: what is not asked for is not read.

    `column[row]` is one value; `column[rows]`, `column[:]` and operators on the column give arrays.
    """

    def __init__(self, details: Details, name: str, ids: Ids) -> None:
        self._details, self._name, self._ids = details, name, ids

    def only(self, rows: NDArray[np.bool_]) -> DetailColumn:
        """The column of some of the rows, not read yet."""
        return DetailColumn(self._details, self._name, self._ids[rows])

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[Any]:
        return iter(self[:])

    def __getitem__(self, rows: Any) -> Any:
        ids = self._ids[rows]
        return self._details.of(self._name, ids) if np.ndim(ids) else self._details.of(self._name, ids[None])[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        arrays = (np.asarray(value) if isinstance(value, DetailColumn) else value for value in inputs)
        return getattr(ufunc, method)(*arrays, **options)


class Columns:
    """Rows as columns of equal length, which are attributes by their names: arrays, tuples, and `DetailColumn`s."""

    def __init__(self, **columns: Any) -> None:
        vars(self).update(columns)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"there is no column {name!r} among {', '.join(vars(self))}")

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def known(self, name: str, row: int) -> float | None:
        """A number of a row; None where it is not known: NaN in columns of floats, negative in those of integers."""
        value = float(getattr(self, name)[row])
        return None if np.isnan(value) or (name not in FLOATS and value < 0) else value


class EvaluationTable(Columns):
    """Every evaluation of one target, in order of id; columns as of `bf_evaluation` and those that follow.

    Floats are float64 with NaN for what was not reached; integers int64 with -1 for it; texts empty for it.
    A `DetailColumn` is read when it is asked for, and then is as it is stored at that moment; `details` reads those of
    several rows at once. `trial` is the lowest Optuna number that the evaluation answers; `moves` are those of the
    engine's summary; `latency_ms` is derived from `raw_ms` and `baseline_ms`, see `evaluators.measure.latency_scale`;
    `doubts` counts what is doubtful in that measurement by itself. `loss_upper` is the first of the loss's bounds, see
    `Accuracy`.

    Not columns are:
        details: what has been read of the columns that are read on demand.
        again: all that was measured again, in order of evaluation and round: `evaluation_id`, `number` of the round
            from 1, `raw_ms`, `baseline_ms`, and whether it is `clean`: nothing is doubtful in it by itself.
        reference_ms: what the baseline usually takes; None on targets without one.
        revision: how often results of the target had been stored when this was read.
    """

    id: NDArray[np.int64]
    details: Details
    again: Columns
    reference_ms: float | None = None
    revision: int = 0

    def __len__(self) -> int:
        return len(self.id)

    def only(self, rows: NDArray[np.bool_]) -> EvaluationTable:
        """Some of the rows."""
        if rows.all():
            return self
        values = dict(vars(self))
        values |= {name: value[rows] for name, value in values.items() if isinstance(value, np.ndarray)}
        values |= {name: value.only(rows) for name, value in values.items() if isinstance(value, DetailColumn)}
        return EvaluationTable(**values)
