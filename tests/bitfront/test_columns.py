"""Columns of a Hugging Face data set, and of batches that are dicts.

The real package is tried where it is installed. `Rows` has as much of `datasets.Dataset` and `IterableDataset` as is
used: `column_names`, `format`, `select_columns`, `with_format`, `iter` and, of the former, `len`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from bitfront.columns import take_columns, unread_labels_text
from search.errors import DataError

IDS = np.arange(140).reshape(70, 2)
COLUMNS = {"input_ids": IDS, "attention_mask": 1 - IDS, "label": np.arange(70), "text": np.full(70, "t")}


class Rows:
    """Columns that are given out as lists, unless as arrays of NumPy."""

    def __init__(self, columns: Mapping[str, Any], kind: str | None = None, known: bool = True) -> None:
        self._columns = columns
        self.column_names = list(columns) if known else None
        self.format = {"type": kind}

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def select_columns(self, names: list[str]) -> Rows:
        return Rows({name: self._columns[name] for name in names}, self.format["type"])

    def with_format(self, kind: str) -> Rows:
        assert "text" not in self._columns, "columns that nobody asked for are not made into arrays"
        return Rows(self._columns, kind)

    def iter(self, batch_size: int) -> Iterator[dict[str, Any]]:
        for start in range(0, len(self), batch_size):
            rows = {name: column[start : start + batch_size] for name, column in self._columns.items()}
            if self.format["type"] != "numpy":
                rows = {name: list(column) for name, column in rows.items()}
            yield rows


def real(columns: Mapping[str, Any]) -> Any:
    return pytest.importorskip("datasets").Dataset.from_dict(columns)


def read(data: Any, inputs: Any) -> dict[str, Any]:
    batches = list(take_columns(data, inputs))
    assert len(batches) == len(take_columns(data, inputs)) == 3, "32 rows at a time"
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


@pytest.mark.parametrize("make", [Rows, real])
def test_columns_are_named_as_the_inputs_are(make: Callable[..., Any]) -> None:
    found = read(make(COLUMNS), ["attention_mask", "input_ids"])
    assert found.keys() == {"attention_mask", "input_ids", "labels"}
    for name, column in (("input_ids", IDS), ("attention_mask", 1 - IDS), ("labels", COLUMNS["label"])):
        np.testing.assert_array_equal(found[name], column)


@pytest.mark.parametrize("make", [Rows, real])
def test_columns_of_other_names_are_mapped(make: Callable[..., Any]) -> None:
    found = read(make(COLUMNS), {"tokens": "input_ids", "labels": "attention_mask"})
    assert found.keys() == {"tokens", "labels"}
    np.testing.assert_array_equal(found["labels"], 1 - IDS)


@pytest.mark.parametrize("make", [Rows, real])
def test_one_column_is_the_only_input_whatever_its_name(make: Callable[..., Any]) -> None:
    with_labels = list(take_columns(make(COLUMNS), ["input_ids"]))
    np.testing.assert_array_equal(np.concatenate([x for x, _ in with_labels]), IDS)
    np.testing.assert_array_equal(np.concatenate([y for _, y in with_labels]), COLUMNS["label"])
    alone = list(take_columns(make({"input_ids": IDS}), ["input_ids"]))
    np.testing.assert_array_equal(np.concatenate(alone), IDS)


def test_a_transform_of_the_users_stays() -> None:
    found = read(Rows(COLUMNS, "custom"), {"tokens": "input_ids"})
    np.testing.assert_array_equal(found["tokens"], IDS)


def test_real_streams_and_transforms_are_read() -> None:
    data = real(COLUMNS)
    stream = list(take_columns(data.to_iterable_dataset(), {"tokens": "input_ids"}))
    np.testing.assert_array_equal(np.concatenate([batch["tokens"] for batch in stream]), IDS)
    doubled = data.with_transform(lambda rows: {"twice": [2 * np.array(row) for row in rows["input_ids"]]})
    found = list(take_columns(doubled, {"tokens": "twice"}))
    np.testing.assert_array_equal(np.concatenate([batch["tokens"] for batch in found]), 2 * IDS)


def test_batches_of_a_loader_are_chosen_from() -> None:
    loader = [{"input_ids": IDS[:4], "unused": None, "labels": IDS[:4, 0]}]
    (batch,) = take_columns(loader, {"tokens": "input_ids"})
    np.testing.assert_array_equal(batch["tokens"], IDS[:4])
    np.testing.assert_array_equal(batch["labels"], IDS[:4, 0])


def test_other_data_stay_as_they_are() -> None:
    for data in ("data.npz", [1], {"image": IDS}):
        assert take_columns(data, None) is data


@pytest.mark.parametrize(
    ("data", "inputs", "says"),
    [
        (Rows(COLUMNS), None, r"Its columns are input_ids, attention_mask, label, text: give inputs=\[…\]"),
        (Rows(COLUMNS), "input_ids", r"expected a list of columns, got 'input_ids'. Give inputs=\['input_ids'\]"),
        (Rows(COLUMNS), ["ids"], "expected columns of the data, got 'ids'. There are input_ids"),
        (Rows(COLUMNS, "custom", known=False), ["ids"], "expected columns of the data, got 'ids'. There are input_ids"),
        ({"train": Rows(COLUMNS), "test": Rows(COLUMNS)}, ["x"], r"the splits train, test. Give one.*data\['train'\]"),
        (Rows({"x": np.array([[1], [1, 2]], object)}), ["x"], "'x': expected numbers in rows of one shape. Pad"),
        (Rows({"x": [[1], [1, 2]]}, "custom"), ["x"], "reading the column 'x': .*Pad its rows to one length"),
        ([(IDS, IDS)], ["x"], "reading batch 0 of the data: inputs chooses from a dict of columns, got tuple"),
        ("data.npz", ["x"], "inputs: expected a data set of Hugging Face or batches, got str"),
    ],
)
def test_what_cannot_be_chosen_is_named(data: Any, inputs: Any, says: str) -> None:
    with pytest.raises(DataError, match=says):
        list(take_columns(data, inputs))


def test_splits_and_ragged_rows_of_the_real_package_are_named() -> None:
    splits = pytest.importorskip("datasets").DatasetDict(train=real(COLUMNS))
    with pytest.raises(DataError, match=r"Give one of them: data\['train'\]"):
        take_columns(splits, None)
    with pytest.raises(DataError, match="Pad its rows to one length"):
        list(take_columns(real({"x": [[1], [1, 2]]}), ["x"]))


def test_a_column_that_looks_like_the_labels_and_is_not_read_is_named() -> None:
    columns = {"input_ids": IDS, "target": np.arange(70)}
    text = unread_labels_text(take_columns(Rows(columns), ["input_ids"]))
    assert "If the column 'target' holds them" in text
    assert "'labels': 'target'" in text
    for read_too in (Rows(COLUMNS), Rows({**columns, "label": np.arange(70)})):
        assert not unread_labels_text(take_columns(read_too, ["input_ids"]))
    assert not unread_labels_text(take_columns(Rows(columns), {"input_ids": "input_ids", "labels": "target"}))
    assert not unread_labels_text(columns)


def test_numbers_keep_the_type_of_their_column() -> None:
    """Read as NumPy by the package, all of them would be int64 and float32."""
    datasets = pytest.importorskip("datasets")
    kinds = {"ids": "int32", "bytes": "uint8", "half": "float16", "whole": "int64", "single": "float32"}
    columns = {name: [[1, 2], [3, 4]] * 40 for name in kinds}
    features = datasets.Features({name: datasets.Sequence(datasets.Value(kind)) for name, kind in kinds.items()})
    found = read(datasets.Dataset.from_dict(columns, features), list(kinds))
    assert {name: str(array.dtype) for name, array in found.items()} == kinds
