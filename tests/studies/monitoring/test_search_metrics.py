"""Metrics of a search: what is counted on its way, and a port that cannot be had."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import prometheus_client
import pytest

from bitfront import verbs
from search.errors import ConfigError
from studies.events import Quiet
from studies.judging.standing import Standing
from studies.judging.status.study_status import study_status
from studies.monitoring import serve_metrics
from studies.monitoring.search_metrics import SearchMetrics
from studies.options.config import SearchConfig
from studies.store.records import StoredEvaluation
from studies.store.store import Store
from tests.support.command_line import DATABASE, copy_finished, invoke, quick, write_inputs
from tests.support.servers.databases import free_port
from tests.support.servers.local_pages import read_page

pytestmark = pytest.mark.slow


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


class Reader(Quiet):
    """Reads the metrics after every evaluation, as Prometheus may."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/metrics"
        self.pages: list[dict[str, float]] = []

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:  # type: ignore[override]
        lines = [line for line in read_page(self._url).decode().splitlines() if not line.startswith("#")]
        self.pages.append({line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines})


def value(page: dict[str, float], *words: str) -> float:
    """Of the one series whose name and labels hold the words."""
    (found,) = [number for name, number in page.items() if all(word in name for word in words)]
    return found


def test_a_search_counts_its_evaluations_and_shows_its_picks(here: Path) -> None:
    port = free_port()
    reader = Reader(port)
    config = SearchConfig("model.onnx", "data.npz", backend="fake", trials=5, metrics_port=port, recover="none")
    with quick():
        finished = verbs.search(config, reader)
    last = reader.pages[-1]
    assert [value(page, "bitfront_search_finished_evaluations") for page in reader.pages] == [1, 2, 3, 4, 5]
    assert value(last, 'evaluations_total{kind="",outcome="ok"') == 5
    assert value(last, "bitfront_search_evaluation_duration_seconds_count") == 5
    assert value(last, "bitfront_search_wanted_evaluations") == 5
    assert sum(number for name, number in last.items() if name.startswith("bitfront_search_stage{")) == 1
    assert value(last, "pick_latency_seconds", 'pick="best"') > 0
    assert finished.standing.measures.finished_count == 5
    with pytest.raises(OSError, match="refused"):
        read_page(f"http://127.0.0.1:{port}/metrics")


def test_of_many_workers_the_whole_study_is_told(here: Path) -> None:
    copy_finished(here)
    registry = prometheus_client.CollectorRegistry()
    metrics = SearchMetrics(Quiet(), prometheus_client, registry)
    with Store.open(f"sqlite:///{DATABASE}") as store:
        status = study_status(store, "small")
        (target,) = status.targets
        new = store.statistics.finished_since(target.target.id, 1e9)
    failed = new[0].with_values(status="failed", stage="build", kind="refused")
    metrics.overview(status, [*new, failed])
    name = {"target": f"{target.target.target.backend} {target.target.target.device}"}
    labels = {"outcome": "failed", "stage": "build", "kind": "refused"}
    counted = registry.get_sample_value
    assert counted("bitfront_search_evaluations_total", labels) == 1
    assert counted("bitfront_search_evaluations_total", {"outcome": "ok", "stage": "", "kind": ""}) == len(new) > 0
    assert counted("bitfront_search_finished_evaluations", name) == target.tally.finished
    assert counted("bitfront_search_live_workers", name) == 0
    best = target.picks["best"]
    assert counted("bitfront_search_pick_latency_seconds", {**name, "pick": "best"}) == best.latency_ms / 1000
    metrics.overview(replace(status, targets=(replace(target, picks={}),)), [])
    assert counted("bitfront_search_pick_latency_seconds", {**name, "pick": "best"}) is None


def test_a_port_that_is_taken_is_told_before_anything_is_made(here: Path, taken: int) -> None:
    before = sorted(here.iterdir())
    said = invoke("search", "model.onnx", "--data", "data.npz", "--backend", "fake", "--metrics-port", taken)
    assert said.exit_code == 2
    assert (
        f"error: --metrics-port {taken}: expected a free port of 127.0.0.1, got Address already in use" in said.stderr
    )
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize("verb", ["resume", "worker"])
def test_going_on_with_a_study_refuses_it_too(verb: str, here: Path, taken: int) -> None:
    said = invoke(verb, "missing", "--metrics-port", taken)
    assert said.exit_code == 2
    assert f"--metrics-port {taken}: expected a free port" in said.stderr


@pytest.mark.parametrize("port", ["0", "65536", "http"])
def test_what_is_no_port_is_refused(port: str, here: Path) -> None:
    said = invoke("search", "model.onnx", "--data", "data.npz", "--metrics-port", port)
    assert said.exit_code == 2
    assert "--metrics-port" in said.stderr


def test_the_port_is_not_stored_with_the_study() -> None:
    assert "metrics_port" not in SearchConfig("m.onnx", "d.npz", metrics_port=9100).to_json()


def test_without_a_port_events_pass_as_they_are() -> None:
    events: Any = Quiet()
    with serve_metrics(events, None) as found:
        assert found is events


def test_a_port_that_is_none_is_refused_from_python() -> None:
    for port in (70_000, "http"):
        with pytest.raises(ConfigError, match=r"--metrics-port .*: expected a free port"), serve_metrics(Quiet(), port):  # type: ignore[arg-type]
            pass
