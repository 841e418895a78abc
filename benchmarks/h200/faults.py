"""Step `faults`: a real search of a small network with real faults provoked in its evaluator process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from rich.console import Console

from benchmarks.h200 import planted
from benchmarks.h200.setting import Setting, say
from search.errors import RunError
from studies import commands
from studies.progress import Lines
from studies.records import EvaluationRecord
from studies.standing import Standing

# What each has to end as. Files first, then processes, then the device, from harmless to poisonous: one that the
# process outlives though it should not leaves those before it judged.
EXPECTED = {
    "cut": ("failed", "refused"),
    "version": ("failed", "refused"),
    "killed_once": ("ok", ""),
    "killed": ("failed", "crashed"),
    "endless": ("failed", "timeout"),
    "memory": ("failed", "out_of_memory"),
    "illegal": ("failed", "crashed"),
    "illegal_in_build": ("failed", "crashed"),
}
# ONNX Runtime's session is opened by the build: it never reads the file again in the same evaluation.
_OF_FILES = ("cut", "version")
_KILL_AFTER_S = 1.0  # into a build that is repeated until then
_START_AND_END_S = 60.0
_BREAKS = 3
_SAMPLES = 128
# Only what the fault is about may meet its limit: without a device, memory is the process's own.
_OPTIONS = {
    "tensorrt": {"evaluation-timeout": "30s"},
    "onnxruntime": {"evaluation-timeout": "8s", "evaluation-memory": "900MB"},
}


def faults(setting: Setting, wanted: Sequence[str]) -> bool:
    """Search with a fault in every second evaluation; what each ended as, and that the one after it went well.

    False when some were not reached. A search that breaks off is resumed, and that it did is recorded.
    """
    folder = (setting.folder / "faults").absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_inputs(folder)
    os.environ |= {planted.FOLDER_VARIABLE: str(folder), "BITFRONT_FAULTS_BACKEND": setting.backend}
    wanted = [fault for fault in wanted if setting.backend == "tensorrt" or fault not in _OF_FILES]
    saboteur = Saboteur(folder / planted.PLANT, wanted, lambda found: setting.record("faults", {"found": found}))
    broke_off = _sabotaged(setting, folder, saboteur)
    setting.record("faults", {"healthy": saboteur.healthy, "broke_off": broke_off})
    bad = [each["fault"] for each in saboteur.found if not each["as_expected"]]
    counts = {"as expected": len(saboteur.found) - len(bad), "not": bad, "healthy in between": saboteur.healthy}
    say(json.dumps({**counts, "broke off": broke_off}))
    return len(saboteur.found) == len(wanted)


def _sabotaged(setting: Setting, folder: Path, saboteur: Saboteur) -> list[str]:
    """Search until every fault had its turn; why the search broke off in between, empty as it must be."""
    storage, model = f"sqlite:///{folder / 'faults.db'}", str(folder / "model.onnx")
    space = commands.layers({"model": model, "backend": setting.backend}).space
    saboteur.baselines = len(space.baselines())
    options = {
        "trials": str(saboteur.baselines + 1 + 2 * len(saboteur.waiting)),
        "time-limit": f"{max(30.0, setting.left_s() - _START_AND_END_S):.0f}s",
    }
    first = {
        **options,
        "model": model,
        "data": "benchmarks.h200.planted:samples",
        "storage": storage,
        "study": "faults",
        "backend": setting.backend,
        "sampler": "random",
        **_OPTIONS[setting.backend],
    }
    broke_off: list[str] = []
    while len(broke_off) < _BREAKS:
        try:
            if commands.exists("faults", storage):
                commands.resume("faults", options, storage, saboteur)
            else:
                commands.search(first, saboteur)
            break
        except RunError as error:
            broke_off.append(f"after {saboteur.last}: {error}"[:500])
    return broke_off


def write_inputs(folder: Path) -> None:
    """A small residual network of the test suite, with images."""
    from networks import images, residual_cnn, save

    save(residual_cnn(), folder / "model.onnx")
    np.savez(folder / "data.npz", image=images(_SAMPLES))


class Saboteur(Lines):
    """Plants the next fault when an evaluation is stored, so that it is there when the next one begins.

    The baselines and one more are left alone; from then on a fault and a healthy evaluation take turns.
    """

    def __init__(self, plant: Path, wanted: Sequence[str], keep: Callable[[list[dict[str, Any]]], None]) -> None:
        super().__init__(Console(highlight=False))
        self.baselines = 0
        self.waiting = list(wanted)
        self.last = "no fault"
        self.found: list[dict[str, Any]] = []
        self.healthy = 0
        self._plant = plant
        self._keep = keep
        self._fault = ""
        self._done = 0
        self._kills = 0

    def stage(self, trial: int, stage: str) -> None:
        if stage == "build" and self._kills > 0:
            self._kills -= 1
            threading.Timer(_KILL_AFTER_S, self._kill).start()

    def _kill(self) -> None:
        if self._fault == "killed_once":
            self._plant.unlink(missing_ok=True)
        for child in psutil.Process().children():
            if any("evaluators.serve" in part for part in child.cmdline()):  # under test it has other children too
                child.send_signal(signal.SIGKILL)

    def finished(self, record: EvaluationRecord, standing: Standing, total: int) -> None:
        super().finished(record, standing, total)
        self._done += 1
        if self._fault:
            self._note(record)
        elif self._done > self.baselines and record.status == "ok":
            self.healthy += 1
        rested = not self._fault and self._done > self.baselines
        self._fault = self.waiting.pop(0) if rested and self.waiting else ""
        self._kills = {"killed": 2, "killed_once": 1}.get(self._fault, 0)
        self._plant.unlink(missing_ok=True)
        if self._fault:
            self.last = self._fault
            self._plant.write_text("endless" if self._fault.startswith("killed") else self._fault)

    def _note(self, record: EvaluationRecord) -> None:
        failure = record.evaluation.failure
        line = {
            "fault": self._fault,
            "status": record.status,
            "stage": failure.stage.value if failure else "",
            "kind": failure.kind.value if failure else "",
            "message": failure.message[:300] if failure else "",
            "attempts": record.evaluation.attempts,
        }
        line["as_expected"] = (line["status"], line["kind"]) == EXPECTED[self._fault]
        self.found.append(line)
        self._keep(self.found)
        say(json.dumps(line))
