"""One study of the trust benchmark: searched and exported by the command line, judged on fresh samples outside it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.command_line import bitfront
from benchmarks.trust import samples
from benchmarks.trust.fresh import Fresh
from benchmarks.trust.scores import Loss
from bitfront import verbs
from studies.artifacts.folder import Artifacts
from studies.judging.standing import Standing

EXAMPLE = ROOT / "examples" / "digits"
FRESH = 10_000
MOST_SCORED = 15  # mixes of a study that are scored beside `best`
_HOPELESS = 3.0  # standard errors beyond the limit in the search
_STUDY = "study"


@dataclass(frozen=True)
class Network:
    """How one network is searched; all that is chosen was chosen before any result was seen.

    Attributes:
        samples: of the study, all splits together; 0 where the example's own file is used.
        drop: most loss, a share of one.
    """

    metric: str
    samples: int
    batch: int = 16
    drop: float = 0.01
    trials: int = 24


NETWORKS = {
    "digits": Network("top1", 0, trials=20),
    "residual": Network("top1", 5000),
    "heads": Network("benchmarks.trust.scores:both_tops", 5000),
    "segmentation": Network("miou", 2000, batch=8),
    "encoder": Network("top1", 5000),
}


def model_of(network: str) -> Path:
    return EXAMPLE / "digits.onnx" if network == "digits" else samples.HERE / "data" / f"{network}.onnx"


def data_of(network: str, work: Path) -> Path:
    """The study data of a network, drawn where they are not there yet."""
    if network == "digits":
        return EXAMPLE / "digits.npz"
    path = work / f"{network}.npz"
    if not path.exists():
        draft = path.with_suffix(".draft.npz")
        drawn: dict[str, Any] = samples.draw(network, "study", NETWORKS[network].samples)
        np.savez(draft, **drawn)
        draft.replace(path)
    return path


def run(network: str, seed: int, work: Path, fresh: Fresh, trials: int | None = None) -> dict[str, Any]:
    """Search anew with this `--split-seed`, export the default pick, and judge both on fresh samples."""
    wanted, folder, start = NETWORKS[network], work / f"{network}-{seed}", time.monotonic()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    storage = f"sqlite:///{(folder / 'study.db').absolute()}"
    printed = bitfront(
        *("search", str(model_of(network)), "--data", str(data_of(network, work)), "--study", _STUDY),
        *("--storage", storage, "--metric", wanted.metric, "--max-drop", f"{wanted.drop:.6g}"),
        *("--batch", str(wanted.batch), "--trials", str(trials or wanted.trials), "--split-seed", str(seed)),
        *("--keep-engines", "all", "--backend", "onnxruntime"),
    )
    (folder / "search.txt").write_text(printed)
    searched = time.monotonic()
    (folder / "export.txt").write_text(
        bitfront("export", _STUDY, "--out", str(folder / "engine"), "--storage", storage, "--latency-tolerance", "100%")
    )
    exported = time.monotonic()
    artifacts = Artifacts(folder / "study.db.artifacts")
    figures = judged(storage, artifacts, folder / "engine", fresh, wanted.drop)
    seconds = {"search": searched - start, "export": exported - searched, "fresh": time.monotonic() - exported}
    shutil.rmtree(folder / "study.db.artifacts", ignore_errors=True)  # engines of every mix
    return {**figures, "seconds": {name: round(value, 1) for name, value in seconds.items()}}


def judged(storage: str, artifacts: Artifacts, engine: Path, fresh: Fresh, drop: float) -> dict[str, Any]:
    """What was said of the exported engine, what it loses on fresh samples, and which evaluated mix holds there."""
    manifest = json.loads((engine / "manifest.json").read_text())
    truth, final = fresh.loss(engine / "model.onnx"), manifest["final"]
    now = verbs.front(_STUDY, storage=storage).standing
    row, base = int(np.flatnonzero(now.table.trial == manifest["trial"])[0]), now.measures.row_of("baseline:fp32")
    assert base is not None, "an exported study without its FP32 baseline"
    best_ms, float_ms = float(now.measures.latency_ms[row]), float(now.measures.latency_ms[base])
    fastest = fastest_that_holds(now, artifacts, fresh, drop, {row: truth})
    uniform = {
        now.table.role[each].removeprefix("baseline:"): {
            "over_fp32": float(now.measures.latency_ms[each]) / float_ms,
            "search_loss": float(now.table.loss[each]),
        }
        for each in now.measures.baselines
    }
    return {
        "pick": manifest["pick"],
        "trial": manifest["trial"],
        "is_fp32": set(manifest["precision"].values()) == {"fp32"},
        "verdict": final.get("verdict"),
        "held": final["limits_hold"],
        "surely": final.get("verdict") in ("kept", "holds surely"),
        "tried": final.get("tried"),
        "search": {name: manifest["search"][name] for name in ("loss", "loss_low", "loss_high", "samples")},
        "final": {name: final[name] for name in ("loss", "loss_low", "loss_high", "samples")},
        "fresh": asdict(truth),
        "float": {
            "study": float(now.table.metric_value[base]),
            "samples": int(now.table.samples[base]),
            "fresh": fresh.float_value,
        },
        "uniform": uniform,
        "latency_ms": best_ms,
        "over_fp32": best_ms / float_ms,
        "fastest": {**fastest, "best_over_it": best_ms / fastest["latency_ms"] if fastest["latency_ms"] else None},
        "band": now.target.band,
        "evaluations": len(now.table),
    }


def fastest_that_holds(
    now: Standing, artifacts: Artifacts, fresh: Fresh, drop: float, known: dict[int, Loss]
) -> dict[str, Any]:
    """The fastest evaluated mix whose fresh loss is within the limit, scored in the order of latency.

    Mixes whose loss in the search lies far beyond the limit are not scored, nor are more than `MOST_SCORED`.

    Args:
        known: row → fresh loss of what was scored already.
    """
    scored = dict(known)
    for row in candidates(now, drop):
        if row not in scored:
            if len(scored) > MOST_SCORED:
                break
            scored[row] = fresh.loss(artifacts.path(str(now.table.artifact[row])))
        if scored[row].loss <= drop:
            fastest = {"trial": int(now.table.trial[row]), "latency_ms": float(now.measures.latency_ms[row])}
            return {**fastest, "fresh": asdict(scored[row]), "scored": len(scored)}
    return {"trial": None, "latency_ms": None, "scored": len(scored)}


def candidates(now: Standing, drop: float) -> Iterator[int]:
    """Rows that may hold on fresh samples, fastest first."""
    error = (now.table.loss_high - now.table.loss_low) / (2 * 1.96)
    possible = now.measures.complete & (now.table.loss - _HOPELESS * error <= drop)
    for row in np.argsort(now.measures.latency_ms, kind="stable"):
        if possible[row]:
            yield int(row)
