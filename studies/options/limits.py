"""The limits: one row for each measure that a user may bound, in a table that everything else uses.

A row says what the limit is called, which measure it bounds and on which side, and how its bound is read and written.
Feasibility, early stop, picks, messages, reports and the command line know no limit by name; they read this table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, TypeVar

from search.errors import ConfigError
from search.extensions import load_registered
from search.values import Evaluation
from studies.options import quantities
from studies.options.option import Option, ValueKind
from studies.options.quantities import Amount
from studies.options.value_kinds import AMOUNT, DROP, LATENCY, RATE, SIZE

LATENCY_MS, LOSS, METRIC_VALUE = "latency_ms", "loss", "metric_value"  # columns in a table of evaluations

UNITS: Mapping[str, Callable[[float], str]] = {
    "ms": quantities.format_ms,
    "s": quantities.format_duration_s,
    "bytes": quantities.format_bytes,
    "number": lambda number: f"{number:.4g}",
}
GROUP = "bitfront.limits"  # of entry points, by which other packages register theirs
Bound = float | Amount
Scale = TypeVar("Scale", bound="MetricScale")


@dataclass(frozen=True)
class MetricScale:
    """What the values of a study's metric mean.

    Attributes:
        unit: say `dB`; empty for ratios and plain numbers.
        ratio: whether values are shares of one, so that 1 % is 0.01; of others a drop may be a percentage of FP32's.
        relative: whether outputs are compared with those of FP32, so that FP32 always has the least loss.
    """

    name: str
    unit: str = ""
    ratio: bool = False
    higher_is_better: bool = True
    relative: bool = False

    @classmethod
    def of(cls: type[Scale], metric: Mapping[str, Any]) -> Scale:
        """The scale of a metric as a study stores it."""
        return cls(metric["name"], metric["unit"], metric["ratio"], metric["higher_is_better"], metric["relative"])

    def text(self, value: float | None, digits: int = 4) -> str:
        """A value or a loss in the metric's unit; a dash where there is none."""
        known = value is not None and math.isfinite(value)
        return quantities.format_metric(value or 0.0, self.unit, self.ratio, digits) if known else "–"

    @property
    def values_text(self) -> str:
        """`shares of one`, `in dB` or `plain numbers`."""
        return "shares of one" if self.ratio else f"in {self.unit}" if self.unit else "plain numbers"


@dataclass(frozen=True)
class Limit:
    """One row of the table: a measure that may be bounded.

    Attributes:
        name: of its bound in `Limits`, in configurations and in JSON; it ends in the unit, where that is fixed.
        option: what it is called on the command line and in TOML.
        column: the measure, by the name of its column in a table of evaluations.
        measure: the same measure of one evaluation; None if it was not reached.
        word: what messages call the measure.
        help, metavar: for help and reference.
        kind: how its bound is read and written.
        unit: one of `UNITS`, or `metric` for that of the study's metric.
        least: True if the bound is the least that is allowed, False if it is the most, None if the direction
            of the metric decides.
        subject: how a limit begins in words; `{metric}` is the metric's name.
        early: the field of the evaluator's limits by which it stops early; empty if it does not.
        per_sample: whether its bound is written for one sample, and bounds the measure of a whole batch.
        difference: whether it bounds how far a metric is from FP32, and not the metric itself.
    """

    name: str
    option: str
    column: str
    measure: Callable[[Evaluation], float | None]
    word: str
    help: str
    metavar: str
    kind: ValueKind
    unit: str
    least: bool | None = False
    subject: str = ""
    early: str = ""
    per_sample: bool = False
    difference: bool = False

    @property
    def bounds_accuracy(self) -> bool:
        """Whether it bounds the loss or the metric itself, which are estimates with an error."""
        return self.unit == "metric"

    def sign(self, higher_is_better: bool) -> float:
        """1 where a greater measure is worse, else -1: `sign · (measure - bound)` is above zero beyond the limit."""
        return -1.0 if (higher_is_better if self.least is None else self.least) else 1.0

    def format(self, bound: float, metric: MetricScale) -> str:
        """The bound with its unit: `2.5 ms`."""
        return metric.text(bound) if self.unit == "metric" else UNITS[self.unit](bound)

    def text(self, bound: float, metric: MetricScale) -> str:
        """The limit in words: `latency ≤ 2.5 ms`."""
        side = "≤" if self.sign(metric.higher_is_better) > 0 else "≥"
        return f"{(self.subject or self.word).format(metric=metric.name)} {side} {self.format(bound, metric)}"

    def as_loss(self, bound: float, reference: float | None, higher_is_better: bool) -> float | None:
        """The loss that the bound allows, where it bounds the accuracy.

        Args:
            reference: the metric of uniform FP32; None if it was not measured yet.
        """
        if not self.bounds_accuracy or (reference is None and not self.difference):
            return None
        return bound if reference is None or self.difference else self.sign(higher_is_better) * (bound - reference)


LIMITS: dict[str, Limit] = {}


def register_limit(limit: Limit) -> Limit:
    """Add a row to the table, behind those that are there.

    Raises:
        ConfigError: a limit has this name, this option or this word already, or its unit is not known.
    """
    doing = f"registering the limit {limit.name} (--{limit.option})"
    for row in LIMITS.values():
        if limit.name == row.name or limit.option == row.option or limit.word == row.word:
            raise ConfigError(
                f"{doing}: expected a name, an option and a word of its own, got one of the limit {row.name} "
                f"(--{row.option}), which already exists. Choose others, or remove the package that registers it."
            )
    if "_" in limit.option:
        raise ConfigError(f"{doing}: expected an option with hyphens, got underscores. Write them as hyphens.")
    if limit.unit not in (*UNITS, "metric"):
        raise ConfigError(f"{doing}: expected a unit of {', '.join(UNITS)} or metric, got {limit.unit!r}. Name one.")
    return LIMITS.setdefault(limit.name, limit)


LATENCY_BUDGET = register_limit(
    Limit(
        name="latency_budget_ms",
        option="latency-budget",
        column=LATENCY_MS,
        measure=lambda evaluation: None if evaluation.latency is None else evaluation.latency.value_ms,
        word="latency",
        help="Longest allowed time of one inference of the whole batch, for example 2.5ms or 800us.",
        metavar="TIME",
        kind=LATENCY,
        unit="ms",
        early="latency_ms",
    )
)
MAX_DROP = register_limit(
    Limit(
        name="max_drop",
        option="max-drop",
        column=LOSS,
        measure=lambda evaluation: None if evaluation.accuracy is None else evaluation.accuracy.loss,
        word="loss",
        subject="loss of {metric}",
        help="Largest allowed loss of accuracy against FP32: 1% (a point of a share, otherwise 1 % of FP32's value), "
        "0.01, or 0.05px in the metric's unit.",
        metavar="LOSS",
        kind=DROP,
        unit="metric",
        early="drop",
        difference=True,
    )
)
ACCURACY_LIMIT = register_limit(
    Limit(
        name="accuracy_limit",
        option="accuracy-limit",
        column=METRIC_VALUE,
        measure=lambda evaluation: None if evaluation.accuracy is None else evaluation.accuracy.value,
        word="accuracy",
        subject="{metric}",
        help="Worst allowed value of the metric itself, for example 75% or 30dB.",
        metavar="VALUE",
        kind=AMOUNT,
        unit="metric",
        least=None,
        early="value",
    )
)
for _word, _help in (
    ("memory", "Largest memory that an engine may use, for example 512MB or 2GiB."),
    ("size", "Largest size of the engine's file, for example 25MB."),
):
    register_limit(
        Limit(
            name=f"max_{_word}_bytes",
            option=f"max-{_word}",
            column=f"{_word}_bytes",
            measure=attrgetter(f"{_word}_bytes"),
            word=_word,
            help=_help,
            metavar="SIZE",
            kind=SIZE,
            unit="bytes",
        )
    )
MIN_FPS = register_limit(
    Limit(
        name="rate_budget_ms",
        option="min-fps",
        column=LATENCY_MS,
        measure=lambda evaluation: None if evaluation.latency is None else evaluation.latency.value_ms,
        word="rate",
        subject="latency",
        help="Smallest allowed rate in samples a second, batches run one after the other, for example 400.",
        metavar="RATE",
        kind=RATE,
        unit="ms",
        per_sample=True,
        early="latency_ms",
    )
)


def add_installed_limits() -> None:
    """Add the limits that installed packages register by entry points, each a `Limit`; again changes nothing.

    Raises:
        ConfigError: one cannot be imported, is no `Limit`, or has the name or option of another.
    """
    for name, limit in load_registered(GROUP, ConfigError):
        if not isinstance(limit, Limit):
            raise ConfigError(f"loading the limit {name}: expected a Limit, got {limit!r}. Correct its package.")
        if LIMITS.get(limit.name) is not limit:
            register_limit(limit)


def limit_options() -> tuple[Option, ...]:
    """The rows of the option table that set a limit."""
    return tuple(
        Option(
            limit.option,
            "limits",
            limit.kind,
            limit.help,
            limit.metavar,
            verbs=("search", "resume", "front", "export", "report", *(("evaluate",) * limit.bounds_accuracy)),
            panel="Limits",
            item=limit.name,
            clearable=True,
            type=Bound,
            from_json=lambda stored: Amount(**stored) if isinstance(stored, Mapping) else stored,
        )
        for limit in LIMITS.values()
    )


class Limits(Mapping[str, float]):
    """The bounds that evaluations must keep to be feasible: limit name → bound in the limit's unit, those set alone.

    `Limits(latency_budget_ms=2.5, max_drop=0.01)`; a bound of None is none. `Amount(0.05, percent=True)` is 5 % of the
    metric of uniform FP32: NaN until `with_fp32` says what that is.

    Attributes:
        of_fp32: whether any is such a percentage.

    Raises:
        ConfigError: there is no such limit.
    """

    def __init__(self, **bounds: Bound | None) -> None:
        check_names(bounds)
        self._given = {name: bound for name in LIMITS if (bound := bounds.get(name)) is not None}
        self.of_fp32 = Amount in map(type, self._given.values())
        self._resolve(math.nan)

    def __getitem__(self, name: str) -> float:
        return self._bounds[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._bounds)

    def __len__(self) -> int:
        return len(self._bounds)

    def __hash__(self) -> int:
        return hash(tuple(self._bounds.items()))

    def __repr__(self) -> str:
        return f"Limits({', '.join(f'{name}={bound!r}' for name, bound in self._bounds.items())})"

    def with_fp32(self, value: float) -> Limits:
        """These limits with the metric of uniform FP32 that percentages mean; NaN if it is not known."""
        limits = Limits(**self._given)
        limits._resolve(value)
        return limits

    def _resolve(self, fp32: float) -> None:
        self._fp32 = fp32
        self._bounds = {
            name: bound.value * abs(fp32) if isinstance(bound, Amount) else bound for name, bound in self._given.items()
        }

    def rows(self) -> list[tuple[Limit, float]]:
        """The limits that are set, each with its bound, but percentages of a metric that is not known yet."""
        return [(LIMITS[name], bound) for name, bound in self._bounds.items() if not math.isnan(bound)]

    def share_text(self, metric: MetricScale, whose: str = "FP32's") -> str:
        """What the percentages of FP32's metric allow, in words; empty if there are none or it is not known yet.

        Raises:
            ConfigError: that metric is 0 or infinite.
        """
        if problem := self.share_problem(whose):
            raise ConfigError(f"{problem}. Write the loss in the unit of the metric.")
        value = metric.text(self._fp32)
        return "; ".join(
            f"--{limit.option} {amount} of {whose} {value} allows a loss of {limit.format(bound, metric)}"
            for limit, bound in self.rows()
            if isinstance(amount := self._given[limit.name], Amount)
        )

    def share_problem(self, whose: str = "FP32's") -> str:
        """Why percentages of FP32's metric allow nothing; empty if they do, or it is not known yet."""
        percentages = [
            f"--{LIMITS[name].option} {bound}" for name, bound in self._given.items() if isinstance(bound, Amount)
        ]
        if not percentages or (self._fp32 != 0 and not math.isinf(self._fp32)):
            return ""
        return f"{percentages[0]}: it is a percentage of {whose} own value of the metric, which is {abs(self._fp32):g}"

    @property
    def bound_accuracy(self) -> bool:
        """Whether any of them bounds the loss or the metric itself."""
        return any(LIMITS[name].bounds_accuracy for name in self._given)

    @property
    def needs_reference(self) -> bool:
        """Whether the loss that they allow is known only with the metric of uniform FP32."""
        rows = [(LIMITS[name], bound) for name, bound in self._bounds.items()]
        return any(limit.bounds_accuracy and (not limit.difference or math.isnan(bound)) for limit, bound in rows)

    def most(self, column: str) -> float | None:
        """The narrowest upper bound of a measure; None if it has none."""
        rows = self.rows()
        return min((bound for limit, bound in rows if limit.column == column and not limit.least), default=None)

    def widen(self, column: str, factor: float) -> Limits:
        """These limits, with every bound of a measure multiplied."""
        return Limits(
            **{name: bound * (factor if LIMITS[name].column == column else 1) for name, bound in self._bounds.items()}
        )

    def allowed_losses(self, reference: float | None, higher_is_better: bool) -> list[float]:
        """The losses that the limits allow, as far as they can be told.

        Args:
            reference: the metric of uniform FP32; None if it was not measured yet.
        """
        losses = [limit.as_loss(bound, reference, higher_is_better) for limit, bound in self.rows()]
        return [loss for loss in losses if loss is not None]

    def early(self, latency_band: float) -> dict[str, float]:
        """Bounds by which the evaluator stops early, by its own names; latencies with the relative tie band added."""
        bounds: dict[str, float] = {}
        for limit, bound in self.widen(LATENCY_MS, 1 + latency_band).rows():
            if limit.early:  # of two that bound the same from above, the narrower
                bounds[limit.early] = min(bound, bounds.get(limit.early, bound))
        return bounds

    def to_json(self) -> dict[str, float | None]:
        """Every limit of the table by name, None if it is not set or not known yet."""
        known = {limit.name: bound for limit, bound in self.rows()}
        return {name: known.get(name) for name in LIMITS}


def check_names(bounds: Mapping[str, object]) -> None:
    """Raise ConfigError where a name is of no limit."""
    unknown = sorted(bounds.keys() - LIMITS.keys())
    if unknown:
        raise ConfigError(
            f"setting limits: expected some of {', '.join(LIMITS)}, got {', '.join(unknown)}; your own limits have "
            "to be registered in every process that reads the study"
        )
