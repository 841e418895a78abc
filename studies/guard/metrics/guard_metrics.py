"""The metrics of a guard for Prometheus."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from search.installation import install_command
from studies.guard.agreement import Arrays, is_float
from studies.guard.guard import Guard
from studies.guard.metrics.layer_errors import LayerErrors, RunningError
from studies.guard.options import GuardError
from studies.guard.state import BreakerState, GuardState

MOST_LAYERS = 20
BUCKETS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_OUTPUT_SAMPLES = 50
TEMPERATURE = "temperature_c"


class GuardMetrics:
    """Metrics of one guard, from the moment when this object is made.

    What the guard knows is read when Prometheus asks. A request costs two readings of the clock and one observation of
    a histogram.

    Examples:
        >>> metrics = GuardMetrics(guard, LayerErrors.open("engines/fast"))  # doctest: +SKIP
        >>> prometheus_client.start_http_server(9100, addr="127.0.0.1")  # doctest: +SKIP

    Args:
        guard: the guard, which then has no other observer.
        layers: the measurement of errors by layer; None for none.
        registry: of `prometheus_client`; None for its own one. One guard has one registry.
        buckets: upper bounds of the latency histogram in seconds.

    Raises:
        GuardError: `prometheus_client` is not installed.
    """

    def __init__(
        self,
        guard: Guard,
        layers: LayerErrors | None = None,
        *,
        registry: Any = None,
        buckets: Sequence[float] = BUCKETS_S,
    ) -> None:
        self._client = client = _import_client()
        self._guard, self._layers = guard, layers
        self._registry = registry or client.REGISTRY
        self._errors = RunningError(_OUTPUT_SAMPLES)
        self._duration = client.Histogram(
            "bitfront_guard_request_duration_seconds",
            "Time from a request to its answer, by the engine that answered it.",
            ["engine"],
            buckets=tuple(buckets),
            registry=self._registry,
        )
        self._failed = client.Counter(
            "bitfront_guard_request_failures_total",
            "Requests that neither engine could answer.",
            registry=self._registry,
        )
        self._disagreements = client.Counter(
            "bitfront_guard_disagreements_total",
            "Compared samples on which the two engines gave different classes, or outputs that agree less than the "
            "threshold.",
            registry=self._registry,
        )
        self._registry.register(self)
        guard.observe(self)

    def close(self) -> None:
        """Leave the guard and the registry."""
        self._guard.observe(None)
        for each in (self, self._duration, self._failed, self._disagreements):
            self._registry.unregister(each)

    # -- told by the guard -----------------------------------------------------------------------------------------

    def on_answer(self, engine: str, seconds: float) -> None:
        self._duration.labels(engine).observe(seconds)

    def on_failure(self) -> None:
        self._failed.inc()

    def on_comparison(self, inputs: Arrays, fast: Arrays, safe: Arrays, agrees: bool) -> None:
        if not agrees:
            self._disagreements.inc()
        for name in safe.keys() & fast.keys():
            if is_float(safe[name]):
                self._errors.add(name, fast[name], safe[name])
        if self._layers is not None:
            self._layers.offer(inputs)

    # -- asked by Prometheus ---------------------------------------------------------------------------------------

    def collect(self) -> Iterable[Any]:
        """Families of metrics, as a collector of `prometheus_client` gives them."""
        state = self._guard.state()
        yield from self._counters(state)
        yield from self._states(state)
        yield from self._sensors(state.sensors)
        yield self._gauge(
            "bitfront_guard_output_error",
            f"Noise over power of the fast engine's outputs against the safe one's, of the last {_OUTPUT_SAMPLES}.",
            self._errors.errors(),
            "output",
        )
        if self._layers is not None:
            yield from self._of_layers(self._layers)

    def _counters(self, state: GuardState) -> Iterable[Any]:
        for name, text, value in (
            ("bitfront_guard_requests", "Requests.", state.requests),
            ("bitfront_guard_compared_samples", "Samples on which both engines were compared.", state.compared),
            (
                "bitfront_guard_dropped_samples",
                "Samples that were not compared, because comparing was too slow for the requests.",
                state.dropped,
            ),
        ):
            yield self._client.metrics_core.CounterMetricFamily(name, text, value)

    def _states(self, state: GuardState) -> Iterable[Any]:
        states = {each.value: float(each is state.breaker) for each in BreakerState}
        yield self._gauge(
            "bitfront_guard_state", "1 for the current state of the circuit breaker, 0 for the others.", states, "state"
        )
        engines = {name: float(name == state.engine) for name in self._guard.engines}
        yield self._gauge(
            "bitfront_guard_serving", "1 for the engine that answers requests, 0 for the other.", engines, "engine"
        )
        agreement = {} if state.agreement is None else {"": state.agreement}
        yield self._gauge(
            "bitfront_guard_agreement_ratio", "Agreement of the two engines over the last full window.", agreement
        )

    def _sensors(self, sensors: Mapping[str, float]) -> Iterable[Any]:
        degrees = {"": sensors[TEMPERATURE]} if TEMPERATURE in sensors else {}
        yield self._gauge("bitfront_guard_temperature_celsius", "Value of the sensor.", degrees)
        others = {name: value for name, value in sensors.items() if name != TEMPERATURE}
        yield self._gauge("bitfront_guard_sensor", "Values of the sensor, by name.", others, "sensor")

    def _of_layers(self, layers: LayerErrors) -> Iterable[Any]:
        errors, clipped = layers.errors(), layers.saturation()
        error = "bitfront_quantization_error"
        text = "Noise over power of a group's output in the emulated mix against the float model"
        yield self._gauge(error, f"{text}; the {MOST_LAYERS} worst.", _worst(errors), "layer")
        yield self._gauge(f"{error}_max", f"{text}; the worst.", _largest(errors))
        ratio = "bitfront_saturation_ratio"
        text = "Share of a tensor's float values outside the range of INT8"
        yield self._gauge(ratio, f"{text}; the {MOST_LAYERS} worst.", _worst(clipped), "layer")
        yield self._gauge(f"{ratio}_max", f"{text}; the worst.", _largest(clipped))
        yield self._client.metrics_core.CounterMetricFamily(
            "bitfront_emulated_samples", "Samples that the errors of layers were computed on.", layers.runs
        )

    def _gauge(self, name: str, text: str, values: Mapping[str, float], label: str = "") -> Any:
        """A family of gauges; without a label of the one value there is."""
        family = self._client.metrics_core.GaugeMetricFamily(name, text, labels=[label] if label else [])
        for key, value in values.items():
            family.add_metric([key] if label else [], value)
        return family


def _worst(values: Mapping[str, float]) -> dict[str, float]:
    return dict(sorted(values.items(), key=lambda item: -item[1])[:MOST_LAYERS])


def _largest(values: Mapping[str, float]) -> dict[str, float]:
    return {"": max(values.values())} if values else {}


def _import_client() -> Any:
    try:
        return importlib.import_module("prometheus_client")
    except ImportError as error:
        raise GuardError(
            f"making metrics of a guard: prometheus_client is not installed ({error}). Install it: "
            f"{install_command('metrics')}"
        ) from error
