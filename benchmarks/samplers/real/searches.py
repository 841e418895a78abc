"""One real search by one method, and the fronts of all methods measured again in one study.

All studies of a network are in one database. So the first one calibrates and recovers, and the others take that over:
an assignment is the same engine in every search.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.samplers.real.networks import DECODERS, Files, Network
from bitfront import verbs
from studies.judging.standing import Standing
from studies.options.read_options import read_config
from studies.store.store import Store

METHODS = {
    "guided": ("guided", 40),
    "one-shot": ("benchmarks.samplers.real.one_shot_kind:OneShotThenClimb", 40),
    "tpe": ("tpe", 120),
}
"""Method → its `--sampler`, and its evaluations."""

_AGAIN = "again"  # the study in which the fronts of all methods are measured once more


@dataclass(frozen=True)
class Searches:
    """The searches of one network in one work folder; each goes on where it was stopped."""

    network: Network
    work: Path

    @property
    def storage(self) -> str:
        return f"sqlite:///{(self.work / f'{self.network.name}.db').resolve()}"

    def search(self, method: str, seed: int, trials: int) -> dict[str, Any]:
        """Search to the end; every evaluation, see `rows`."""
        files, start = Files(self.network, self.work), time.monotonic()
        sampler = METHODS[method][0]
        options = {"data": files.search, "sampler": sampler, "seed": seed, "keep-engines": "none"}
        now = self._continued(f"{method}-{seed}", trials, options)
        return {**rows(now, self.storage), "trials": trials, "command_s": round(time.monotonic() - start, 1)}

    def measure_again(self, codes: Sequence[str], uniform: int) -> dict[str, Any]:
        """Measure these mixes in one study: losses on fresh samples, latencies twice, in turn with one another.

        The first latency of each is measured beside FP32, the second also beside five others. The second counts, or
        the last one that is not doubtful.

        Args:
            codes: of the mixes, one digit a decision.
            uniform: how many uniform assignments every study begins with.
        """
        files, start = Files(self.network, self.work), time.monotonic()
        options = {"data": files.fresh, "sampler": "random", "keep-engines": "all"}
        now = self._continued(_AGAIN, uniform, options) if not self._exists(_AGAIN) else self._standing(_AGAIN)
        missing = sorted(set(codes) - {row[3] for row in rows(now, self.storage)["rows"]})
        if missing:
            self._enqueue(now, missing)
            now = self._continued(_AGAIN, len(now.table) + len(missing), options)
        verbs.remeasure(_AGAIN, [int(trial) for trial in now.table.trial[:]], storage=self.storage)
        return {**rows(self._standing(_AGAIN), self.storage), "command_s": round(time.monotonic() - start, 1)}

    def _continued(self, study: str, trials: int, options: dict[str, Any]) -> Standing:
        """Begin a study or go on with it."""
        if self._exists(study):
            return verbs.resume(study, {"trials": trials}, storage=self.storage).standing
        network, files = self.network, Files(self.network, self.work)
        common = {
            "model": network.case.model,
            "calibration-data": files.calibration,
            "final-data": files.final,
            "study": study,
            "storage": self.storage,
            "trials": trials,
            "metric": network.case.metric,
            "recover": network.recover,
            "backend": network.backend,
            "threads": 1,
            "batch": network.batch,
            "sensitivity-time": "60s",
        }
        decoder = {"decode": DECODERS[network.case.metric]} if network.case.metric in DECODERS else {}
        given = {name: str(value) for name, value in {**common, **options, **decoder}.items()}
        return verbs.search(read_config(given)).standing

    def _exists(self, study: str) -> bool:
        return verbs.exists(study, storage=self.storage)

    def _standing(self, study: str) -> Standing:
        return verbs.front(study, storage=self.storage).standing

    def _enqueue(self, now: Standing, codes: Sequence[str]) -> None:
        """Let the study's next trials be these; those that wait already are not enqueued twice."""
        study = optuna.load_study(study_name=now.target.optuna_study, storage=self.storage)
        trials = study.get_trials(deepcopy=False)
        names = sorted(trials[0].params)
        waiting = {_code(t.system_attrs["fixed_params"]) for t in trials if t.state is optuna.trial.TrialState.WAITING}
        for code in codes:
            if code not in waiting:
                study.enqueue_trial({name: int(digit) for name, digit in zip(names, code, strict=True)})


def rows(now: Standing, storage: str) -> dict[str, Any]:
    """Evaluations with a latency and a loss, in the order in which they were made.

    `rows`: [latency over FP32's, loss, whether the loss is of every sample and groups ran as requested, code of every
    decision]; `uniform`: places of the uniform assignments among them. A pick whose biases were corrected for its own
    mix has the loss from before, as all other mixes have.
    """
    base = now.measures.row_of("baseline:fp32")
    assert base is not None, "a search without its FP32 baseline"
    table, measured = now.table, np.isfinite(now.measures.latency_ms) & np.isfinite(now.table.loss)
    order = [row for row in np.argsort(table.id, kind="stable").tolist() if measured[row]]
    ratio = now.measures.latency_ms / now.measures.latency_ms[base]
    codes, loss = _codes(now, storage), _losses(now, storage)
    columns = zip(ratio.tolist(), loss.tolist(), now.measures.complete.tolist(), table.trial[:].tolist(), strict=True)
    found = [[round(over_fp32, 5), lost, whole, codes.get(trial, "")] for over_fp32, lost, whole, trial in columns]
    return {
        "rows": [found[row] for row in order],
        "uniform": sorted(order.index(row) for row in now.measures.baselines if measured[row]),
        "band": now.target.band,
        "ranges": now.target.ranges_digest,
    }


def _codes(now: Standing, storage: str) -> dict[int, str]:
    """Trial → its codes, one digit a decision."""
    study = optuna.load_study(study_name=now.target.optuna_study, storage=storage)
    return {trial.number: _code(trial.params) for trial in study.get_trials(deepcopy=False)}


def _code(params: dict[str, Any]) -> str:
    return "".join(str(params[name]) for name in sorted(params))


def _losses(now: Standing, storage: str) -> Any:
    """(n,) losses without corrections of single picks."""
    loss = np.array(now.table.loss, dtype=float)
    with Store.open(storage, write=False) as store:
        for record in store.evaluations.mix_biases(now.target.id):
            if record.bias.kept:
                loss[now.table.id == record.evaluation_id] = record.bias.before.loss
    return loss
