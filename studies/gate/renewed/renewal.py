"""The result of `renew`, as values, as a table and in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from search.values import Accuracy
from studies.gate.check import LEVEL, GateCheck, GateVerdict, combine_verdicts
from studies.gate.renewed.gate_mixes import GatedMixes, RenewedMix
from studies.options.limits import MetricScale

COLUMNS = ("mix", "renewed", "loss_before", "loss_now", "drop", "verdict")


@dataclass(frozen=True)
class Renewal:
    """A study renewed on fresh data.

    Attributes:
        study: the new study; `renewed_from` the one before, which stays as it is.
        data: the fresh data.
        best: trial of the new study's pick `best`; None if no mix keeps the limits on the fresh data.
        folder: where that was exported; None if it was not asked for or did not pass.
    """

    study: str
    renewed_from: str
    data: str
    metric: MetricScale
    gated: GatedMixes
    best: int | None
    folder: Path | None = None

    @property
    def verdict(self) -> GateVerdict:
        """Whether the new study's pick may take the place of the old one's."""
        checks = [mix.check for mix in self.gated.mixes if mix.pair.best]
        checks += [self.gated.latency] if self.gated.latency is not None else []
        return combine_verdicts(checks) if checks else GateVerdict.FAILS

    def cells(self) -> list[dict[str, str]]:
        """The rows of the table as texts, the pick `best` first."""
        return [self._row(mix) for mix in sorted(self.gated.mixes, key=lambda mix: not mix.pair.best)]

    def lines(self) -> list[str]:
        """What the table does not say."""
        lines = [self._headline()]
        lines += [f"{_name(mix)}: {mix.check.reason}." for mix in self.gated.mixes if mix.pair.best]
        if self.gated.latency is not None:
            lines.append(f"latency: {self.gated.latency.verdict.value}, {self.gated.latency.reason}.")
        lines.append(
            f"Losses are against FP32 on the final split of {self.data}, which neither calibration nor the search saw. "
            f"A wrong verdict has a chance of at most {LEVEL:.0%} over all checks together."
        )
        return lines

    def to_json(self) -> dict[str, Any]:
        latency = self.gated.latency
        return {
            "study": self.study,
            "renewed_from": self.renewed_from,
            "data": self.data,
            "verdict": self.verdict.value,
            "best": self.best,
            "level": LEVEL,
            "mixes": [_mix_json(mix) for mix in self.gated.mixes],
            "latency": None if latency is None else latency.to_json(),
            "folder": None if self.folder is None else str(self.folder),
        }

    def _headline(self) -> str:
        passed = sum(mix.check.verdict is GateVerdict.HOLDS for mix in self.gated.mixes)
        count = f"{passed} of {len(self.gated.mixes)} mixes pass"
        if self.best is None:
            return f"fails: no mix of {self.study} keeps the limits on the fresh data; {count}."
        said = {
            GateVerdict.HOLDS: f"holds: the best of {self.study} may replace that of {self.renewed_from}",
            GateVerdict.FAILS: f"fails: keep the engine of {self.renewed_from}",
            GateVerdict.NOT_JUDGED: f"not judged: keep the engine of {self.renewed_from} until there are more data",
        }
        return f"{said[self.verdict]}; {count}."

    def _row(self, mix: RenewedMix) -> dict[str, str]:
        return {
            "mix": _name(mix),
            "renewed": "–" if mix.pair.again is None else f"trial {mix.pair.again}",
            "loss_before": self._loss(mix.before),
            "loss_now": self._loss(mix.now),
            "drop": self._bounds(mix.check),
            "verdict": mix.check.verdict.value,
        }

    def _loss(self, accuracy: Accuracy | None) -> str:
        return "–" if accuracy is None else self.metric.text(accuracy.loss)

    def _bounds(self, check: GateCheck) -> str:
        if check.low is None or check.high is None:
            return "–"
        return f"{self.metric.text(check.low)} to {self.metric.text(check.high)}"


def _name(mix: RenewedMix) -> str:
    return f"best: trial {mix.pair.trial}" if mix.pair.best else f"trial {mix.pair.trial}"


def _mix_json(mix: RenewedMix) -> dict[str, Any]:
    return {
        "trial": mix.pair.trial,
        "renewed": mix.pair.again,
        "best": mix.pair.best,
        "loss_before": None if mix.before is None else mix.before.loss,
        "loss_now": None if mix.now is None else mix.now.loss,
        "check": mix.check.to_json(),
    }
