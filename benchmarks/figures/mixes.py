"""The example needs a mix: FP32, all INT8 and the designed mix, by bitfront's own lowering and evaluator process.

The designed mix keeps FP32 where examples/digits/README.md says that the streams were made uneven.

usage: python -m benchmarks.figures.mixes
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from benchmarks.example import BATCH, MODEL, evaluator, load_text
from bitfront.verbs.analyses import layers
from evaluators.process.job import Limits
from search.values import Answer, Assignment, Evaluation, Precision
from studies.options.config import SearchConfig

STREAMS = (
    *("features.0/project", "features.1/expand"),
    *("features.9/project", "features.10/expand", "features.10/project"),
    *("features.11/expand", "features.11/project", "head"),
)


def main() -> dict[str, float]:
    """Loss in top-1 to FP32 with `_low` and `_high`, its 95 % interval, and speed-up, of `int8` and of `mix`."""
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder, evaluator(Path(folder)) as keeper:
        for name, assignment in candidates().items():
            measured = keeper.evaluate(assignment, Path(folder) / f"{name}.engine", Limits())
            found |= figures(name, measured)
    print(f"one thread, batch {BATCH}; {load_text()}")
    return found


def candidates() -> dict[str, Assignment]:
    looked = layers(SearchConfig(str(MODEL), "", batch=BATCH))
    int8 = looked.space.uniform(Precision.INT8)
    kept = [g.id for g in looked.model.groups if any(f"/{stream}/" in f"{g.name}/" for stream in STREAMS)]
    if len(kept) != len(STREAMS):
        raise RuntimeError(f"{len(kept)} groups belong to the {len(STREAMS)} layers of the designed mix: {kept}")
    fp32 = looked.space.uniform(Precision.FP32)
    return {"fp32": fp32, "int8": int8, "mix": int8.replace(dict.fromkeys(kept, Precision.FP32))}


def figures(name: str, evaluation: Evaluation) -> dict[str, float]:
    latency, accuracy = evaluation.latency, evaluation.accuracy
    if latency is None or accuracy is None or latency.baseline_ms is None:
        raise RuntimeError(f"{name}: {evaluation.failure}")
    speedup = latency.baseline_ms / latency.raw_ms
    disobeyed = sum(row.answer is not Answer.OBEYED for row in evaluation.audit)
    half = 100 * (accuracy.loss_high - accuracy.loss_low) / 2
    print(
        f"{name:5} top-1 {accuracy.value:7.2%}  loss {100 * accuracy.loss:6.2f} ± {half:.2f} points on "
        f"{accuracy.samples} samples  {latency.raw_ms:6.3f} ms  {speedup:5.2f}x  {disobeyed} groups not obeyed  "
        f"{'; '.join(latency.warnings)}",
        flush=True,
    )
    return {
        f"{name}.loss": accuracy.loss,
        f"{name}.loss_low": accuracy.loss_low,
        f"{name}.loss_high": accuracy.loss_high,
        f"{name}.speedup": speedup,
        f"{name}.samples": accuracy.samples,
        f"{name}.disobeyed": disobeyed,
    }


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
