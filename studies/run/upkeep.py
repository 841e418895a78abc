"""What a worker does now and then beside its trials: drift, engines that nobody needs, how good forecasts are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from studies.artifacts import leftovers
from studies.artifacts.folder import Artifacts
from studies.judging.standing import Standing
from studies.options.limits import Limits
from studies.run.noise import repeatability
from studies.store.records import RUNNING
from studies.store.store import Store
from studies.trials.forecasts import poor_text, quality_text
from studies.trials.proposals import Proposals

if TYPE_CHECKING:
    from search.values import Evaluation
    from studies.run.work import Work

_MOST_DRIFT = 0.1


def check_drift(work: Work, now: Standing) -> None:
    """Time the FP32 baseline again, as a further round of its own evaluation."""
    row = now.row_of("baseline:fp32")
    if row is None:
        return
    drift = repeatability.drift(work, now, row)
    if abs(drift) > _MOST_DRIFT:
        relative = "what slows it as much as the mixes is scaled out, other work on this processor is not: "
        how = f"{relative if work.ledger.target.target.relative else ''}latencies measured meanwhile may be off"
        usual = "its usual time" if work.ledger.target.target.relative else "the start"
        work.progress.note(f"the FP32 baseline runs {drift:+.0%} against {usual}; {how}")


def engine_of(work: Work, evaluation: Evaluation) -> Path | None:
    """The engine of an evaluation that may stand on the front; another one is thrown away."""
    if evaluation.artifact is None:
        return None
    path, accuracy = Path(evaluation.artifact), evaluation.accuracy
    wanted = work.problem.config.keep_engines
    if wanted == "all" or (wanted == "front" and accuracy is not None and accuracy.complete):
        return path
    path.unlink(missing_ok=True)
    return None


def prune(store: Store, artifacts: Artifacts, now: Standing, *, keep: str) -> None:
    """Let go of engines that are on no front any more, not picked and in no line for `best`.

    Args:
        keep: as `--keep-engines`.
    """
    if keep == "all":
        return
    # One that ran when the table was read may have an engine by now, and stand on the front.
    held = (now.table.artifact != "") & (now.table.status != RUNNING)
    kept = now.kept | _unlimited(now).kept if keep == "front" else np.zeros_like(held)
    released = store.files.release_engines([int(number) for number in now.table.id[held & ~kept]])
    leftovers.drop(store, artifacts, released)


def _unlimited(now: Standing) -> Standing:
    """Limits may be changed later, so what would be kept without them keeps its engines too."""
    return replace(now, limits=Limits())


class Quality:
    """Says when the sampler's forecasts turn poor, and when they are good again."""

    def __init__(self, work: Work, proposals: Proposals) -> None:
        self._work = work
        self._proposals = proposals
        self._poor = False

    def note_change(self) -> None:
        if self._proposals.poor == self._poor:
            return
        self._poor = self._proposals.poor
        found = self._proposals.quality()
        if found is not None and found.latency is not None:
            good = f"forecasts are good again: {quality_text(found.latency)}"
            self._work.progress.note(poor_text(found) if self._poor else good)

    def note_last(self) -> None:
        found = self._proposals.quality()
        for name, each in (("latency", found.latency), ("loss", found.loss)) if found is not None else ():
            if each is not None:
                self._work.progress.note(f"forecasts of the {name}: {quality_text(each)}")
