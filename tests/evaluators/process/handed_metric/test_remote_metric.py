"""A metric of the keeper's process: outputs come through shared memory, and scores are those of the process itself."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluators.metrics.contract import MetricFacts
from evaluators.metrics.own.handed_metric import lend_metric, name_metric
from evaluators.metrics.own.imported_metric import make_own_metric
from evaluators.process.handed_metric.remote_metric import make_remote_metric
from evaluators.process.handed_metric.scorer import Scorer
from evaluators.process.handed_metric.shared_arrays import ArrayReader, ArrayWriter
from evaluators.process.job import StopLimits
from evaluators.process.keeper import EvaluatorProcess
from evaluators.process.requests import CALLS, call_handlers
from search.errors import ConfigError, MetricError
from search.values import Accuracy, Precision
from tests.support.command_line import quick
from tests.support.evaluator_jobs import Case, case


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    with quick():
        yield case(tmp_path_factory.mktemp("handed"))


def hits(outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> NDArray[Any]:
    return (outputs["logits"].argmax(axis=1) == labels).astype(float)


class Hits:
    """What `hits` gives, as one number over all batches; it keeps what it is given."""

    alive = 0

    def __init__(self) -> None:
        self._seen: list[tuple[NDArray[Any], NDArray[Any]]] = []
        Hits.alive += 1

    def __del__(self) -> None:
        Hits.alive -= 1

    def update(self, outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> None:
        self._seen.append((outputs["logits"], labels))

    def compute(self) -> float:
        return float(np.mean([(y.argmax(axis=1) == labels).mean() for y, labels in self._seen]))


def score(made: Case, metric: Any, assignment: Precision = Precision.INT8) -> Accuracy:
    """What a process finds of a uniform mix, whose metric is a name or a function of this process."""
    name = metric if isinstance(metric, str) else name_metric(metric)
    job = replace(made.job, metric=name, folder=str(made.folder / name))
    with EvaluatorProcess(job, made.folder / "log") as keeper:
        found = keeper.evaluate(made.uniform(assignment), made.out, StopLimits())
    assert found.accuracy is not None, found.failure
    return found.accuracy


def test_scores_are_those_that_the_process_would_give_itself(made: Case) -> None:
    pids: set[int] = set()

    def mine(outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> NDArray[Any]:
        pids.add(os.getpid())
        return hits(outputs, labels)

    mine.ratio = True  # type: ignore[attr-defined]
    name = name_metric(mine)
    with lend_metric(name, mine):
        found = score(made, mine)
    exact = score(made, "top1")
    assert pids == {os.getpid()}
    assert (found.value, found.loss, found.samples) == (exact.value, exact.loss, exact.samples)
    np.testing.assert_array_equal(found.scores, exact.scores)


def test_an_accumulator_keeps_what_it_was_given_and_is_dropped_in_the_end(made: Case) -> None:
    with lend_metric(name_metric(Hits), Hits):
        found = score(made, Hits)
    exact = score(made, "top1")
    assert found.value == pytest.approx(exact.value)
    gc.collect()
    assert Hits.alive == 0


def test_an_error_of_the_metric_comes_out_with_the_line_that_raised_it(made: Case) -> None:
    def fail(outputs: dict[str, NDArray[Any]], labels: NDArray[Any]) -> NDArray[Any]:
        raise ZeroDivisionError("mine")

    with (
        lend_metric(name_metric(fail), fail),
        pytest.raises(MetricError, match=r"raised ZeroDivisionError on samples 0 to .*: mine") as caught,
    ):
        score(made, fail)
    chain: list[BaseException] = [caught.value]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    assert isinstance(chain[-1], ZeroDivisionError)


def test_a_metric_that_is_not_lent_is_named_before_a_process_starts(made: Case) -> None:
    with pytest.raises(ConfigError, match="expected the Python function hits"):
        score(made, hits)


# -- shared memory -----------------------------------------------------------------------------------------------------


ARRAYS: dict[str, NDArray[Any]] = {
    "floats": np.arange(12, dtype=np.float32).reshape(3, 4),
    "halves": np.float16([1, 2]),
    "one": np.array(3),
    "none": np.empty((0, 7), np.int64),
    "truths": np.array([True, False]),
    "texts": np.array(["größer", "x"]),
    "text objects": np.array(["größer", "x"], object),
    "not contiguous": np.arange(12).reshape(3, 4).T[1:, ::2],
}


def test_arrays_come_out_as_they_went_in(tmp_path: Path) -> None:
    writer, reader = ArrayWriter(tmp_path), ArrayReader()
    small = np.zeros(1)
    (place,) = writer.write([small])
    assert reader.read(writer.file, place) == small
    kept: list[NDArray[Any]] = []
    for _ in range(2):  # the second time over the first
        places = writer.write(list(ARRAYS.values()))
        kept += [reader.read(writer.file, place) for place in places]
    for array, found in zip([*ARRAYS.values()] * 2, kept, strict=True):
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found, array)
        found.flags.writeable = True  # a copy


def test_what_is_neither_number_nor_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(MetricError, match="expected numbers or texts"):
        ArrayWriter(tmp_path).write([np.zeros(2, "V4")])


# -- the two ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [hits, Hits])
def test_the_remote_metric_has_the_facts_of_the_real_one(function: Callable[..., Any], tmp_path: Path) -> None:
    real = make_own_metric("hits@00000000", function)
    scorer = Scorer(real)
    remote = make_remote_metric(scorer.facts, scorer, tmp_path)
    for name in MetricFacts.__dataclass_fields__:
        assert getattr(remote, name) == getattr(real, name)
    assert (remote.is_own, remote.needs_reference) == (True, False)


def test_every_call_is_answered(tmp_path: Path) -> None:
    answers = call_handlers(Scorer(make_own_metric("Hits@00000000", Hits)))
    assert answers.keys() == CALLS.keys()
    assert answers["metric.start"](dropped=[]) == 1
    assert answers["metric.start"](dropped=[1]) == 2


def test_numbers_of_accumulators_that_are_gone_are_told(tmp_path: Path) -> None:
    told: list[list[int]] = []

    def start(dropped: list[int]) -> int:
        told.append(dropped)
        return len(told)

    facts = MetricFacts("Hits@00000000", "", True, False, "accumulating", True)
    line: Any = SimpleNamespace(metric=SimpleNamespace(start=start))
    remote = make_remote_metric(facts, line, tmp_path)
    remote.accumulator()
    gc.collect()
    kept = remote.accumulator()
    remote.accumulator()
    assert told == [[], [1], []]
    del kept
