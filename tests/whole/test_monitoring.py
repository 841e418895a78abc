"""Prometheus scrapes a guard and a search; every query of the board has data, and the alerts are tried by promtool."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import prometheus_client
import pytest
import yaml

from bitfront import verbs
from studies.events import Quiet
from studies.guard import Guard, GuardOptions
from studies.guard.metrics import GuardMetrics, LayerErrors
from studies.judging.standing import Standing
from studies.options.config import SearchConfig
from studies.store.records import StoredEvaluation
from tests.support.command_line import quick, write_inputs
from tests.support.exported_folder import write_export
from tests.support.networks import images
from tests.support.paths import ROOT
from tests.support.servers.databases import free_port
from tests.support.servers.prometheus import MissingPrometheusError, Prometheus, find_program, run_prometheus

FILES = ROOT / "examples" / "monitoring"
BOARD = json.loads((FILES / "grafana/dashboards/bitfront.json").read_text(encoding="utf-8"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = sorted({target["expr"] for panel in PANELS for target in panel["targets"]})
LONG_S = 300
REQUIRED = "BITFRONT_REQUIRE_PROMETHEUS"


def program(name: str) -> str:
    """Path of a program of Prometheus; skips where there is none, unless CI forbids that."""
    try:
        return find_program(name)
    except MissingPrometheusError as error:
        if os.environ.get(REQUIRED):
            pytest.fail(f"{REQUIRED} is set, and {error}")
        pytest.skip(str(error))


class HeldSearch(Quiet):
    """A search that stands still once it has a pick, until it is let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def evaluation(self, record: StoredEvaluation, standing: Standing, total: int) -> None:  # type: ignore[override]
        if standing.picks.best is not None:
            self.go_on.wait()


@contextmanager
def searching(folder: Path, port: int) -> Iterator[None]:
    """A search on the fake backend with its metrics on a port, held in the middle."""
    write_inputs(folder)
    config = SearchConfig(
        str(folder / "model.onnx"),
        str(folder / "data.npz"),
        backend="fake",
        trials=4,
        recover="none",
        storage=f"sqlite:///{folder / 'bitfront.db'}",
        metrics_port=port,
    )
    held, failed = HeldSearch(), list[BaseException]()

    def search() -> None:
        try:
            verbs.search(config, held)
        except BaseException as error:
            failed.append(error)

    with quick():
        thread = threading.Thread(target=search)
        thread.start()
        try:
            yield
        finally:
            held.go_on.set()
            thread.join(LONG_S)
    assert not thread.is_alive()
    assert failed == []


class Service:
    """A guard whose fast engine is a little wrong, with its metrics on a port."""

    def __init__(self, folder: Path) -> None:
        self._sent = 0
        layers = LayerErrors.open(write_export(folder), every_s=0)
        sensor = lambda: {"temperature_c": 61.0}  # noqa: E731
        self.guard = Guard(self._fast, self._safe, GuardOptions(share=1, window=4, queue=1000), sensor=sensor)
        registry = prometheus_client.CollectorRegistry()
        self.metrics = GuardMetrics(self.guard, layers, registry=registry)
        self._server, self._thread = prometheus_client.start_http_server(0, addr="127.0.0.1", registry=registry)
        self.port = self._server.server_port

    def _safe(self, inputs: Any) -> dict[str, Any]:
        return {"y": np.asarray(inputs["image"]).reshape(1, -1)[:, :10]}

    def _fast(self, inputs: Any) -> dict[str, Any]:
        return {"y": self._safe(inputs)["y"] + np.float32(0.01)}

    def send(self, count: int) -> None:
        for _ in range(count):
            self._sent += 1
            self.guard.run({"image": images(1, seed=self._sent)})
        self.guard.drain()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        self.guard.close()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Prometheus, Service]]:
    program("prometheus")
    service, port = Service(tmp_path_factory.mktemp("export")), free_port()
    targets = {"bitfront-guard": service.port, "bitfront-search": port}
    try:
        with (
            searching(tmp_path_factory.mktemp("search"), port),
            run_prometheus(tmp_path_factory.mktemp("prometheus"), targets) as prometheus,
        ):
            yield prometheus, service
    finally:
        service.close()


@pytest.mark.slow
def test_every_query_of_the_board_has_data(scraped: tuple[Prometheus, Service]) -> None:
    prometheus, service = scraped
    waiting, end = set(QUERIES), time.monotonic() + LONG_S
    while waiting:
        assert time.monotonic() < end, sorted(waiting)
        service.send(4)
        for query in sorted(waiting):
            found = prometheus.query(query.replace("$__rate_interval", "1m"))
            if found and any(np.isfinite(value) for _, value in found):
                waiting.discard(query)
        time.sleep(0.2)


@pytest.mark.slow
def test_what_is_scraped_is_what_the_guard_and_the_search_know(scraped: tuple[Prometheus, Service]) -> None:
    prometheus, service = scraped
    service.send(4)
    requests = service.guard.state().requests
    wanted = {
        "bitfront_guard_requests_total": requests,
        "bitfront_guard_request_duration_seconds_count": requests,
        'bitfront_guard_state{state="closed"}': 1,
        'bitfront_guard_state{state="open"}': 0,
        "bitfront_guard_temperature_celsius": 61,
        "bitfront_search_wanted_evaluations": 4,
        "count(bitfront_quantization_error)": 7,
        "max(bitfront_quantization_error) == bool scalar(bitfront_quantization_error_max)": 1,
    }
    end = time.monotonic() + LONG_S
    while (found := {query: first_value(prometheus, query) for query in wanted}) != wanted:
        assert time.monotonic() < end, found
        time.sleep(0.2)


def first_value(prometheus: Prometheus, query: str) -> float | None:
    rows = prometheus.query(query)
    return rows[0][1] if rows else None


@pytest.mark.slow
def test_every_metric_has_a_type_and_a_help(scraped: tuple[Prometheus, Service]) -> None:
    prometheus, _ = scraped
    end = time.monotonic() + LONG_S
    while len(rows := prometheus.get("/api/v1/metadata")) < 20:
        assert time.monotonic() < end, rows
        time.sleep(0.2)
    ours = {name: entries[0] for name, entries in rows.items() if name.startswith("bitfront_")}
    assert all(entry["help"].endswith(".") for entry in ours.values()), ours
    for name in (name for name, entry in ours.items() if entry["type"] == "counter"):
        assert prometheus.query(f"{name.removesuffix('_total')}_total"), name


@pytest.mark.slow
def test_promtool_accepts_the_configuration_and_tries_the_alerts() -> None:
    tool = program("promtool")
    for words in (
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        ("test", "rules", "alerts_test.yml"),
    ):
        done = subprocess.run([tool, *words], cwd=FILES, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


# -- without Prometheus ------------------------------------------------------------------------------------------------


def test_panels_of_the_board_have_places_and_ids_of_their_own() -> None:
    panels = BOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in panels)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


def test_the_board_asks_the_data_source_that_is_provisioned() -> None:
    (source,) = yaml.safe_load((FILES / "grafana/provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    assert {target["datasource"]["uid"] for panel in PANELS for target in panel["targets"]} == {source["uid"]}
    (provider,) = yaml.safe_load((FILES / "grafana/provisioning/dashboards/bitfront.yaml").read_text())["providers"]
    assert provider["options"]["path"]


def test_every_alert_is_tried_where_it_fires_and_where_it_stays_silent() -> None:
    rules = yaml.safe_load((FILES / "alerts.yml").read_text(encoding="utf-8"))
    tries = yaml.safe_load((FILES / "alerts_test.yml").read_text(encoding="utf-8"))["tests"]
    tried = {(row["alertname"], bool(row["exp_alerts"])) for each in tries for row in each["alert_rule_test"]}
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert tried == {(alert, fires) for alert in alerts for fires in (True, False)}


@pytest.mark.slow
def test_alerts_and_board_ask_for_metrics_that_the_docs_list() -> None:
    listed = set(re.findall(r"`(bitfront_\w+)[`{]", (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")))
    rules = yaml.safe_load((FILES / "alerts.yml").read_text(encoding="utf-8"))
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]] + QUERIES
    asked = {name for text in expressions for name in re.findall(r"bitfront_\w+", text)}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} <= listed
