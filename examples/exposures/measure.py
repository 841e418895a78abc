"""Score ONNX files on fresh frames of the example, with ONNX Runtime alone and nothing of bitfront.

    python examples/exposures/measure.py examples/exposures/exposures.onnx demo/engine/model.onnx

The first file is what the others are compared with. The frames are of scenes that neither training nor the demo has
seen. A loss is the paired difference of top-1 to the first file, with its 95 % interval; the four frames of a scene
count as one cluster. Needs onnxruntime.
"""

import argparse
from pathlib import Path

import numpy as np
import onnxruntime as ort
import samples


def outputs(path: Path, raw: np.ndarray) -> np.ndarray:
    """(n,) the class that the file gives each frame."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    batch = session.get_inputs()[0].shape[0]
    step = batch if isinstance(batch, int) else 200
    parts = [session.run(None, {"raw": raw[first : first + step]})[0] for first in range(0, len(raw), step)]
    return np.concatenate(parts).argmax(1)


def loss_with_interval(right: np.ndarray, baseline: np.ndarray) -> tuple[float, float]:
    """Loss of top-1 against the baseline, and half the width of its 95 % interval; both (scenes, frames) bool."""
    lost = (baseline.astype(float) - right).mean(axis=1)
    return float(lost.mean()), float(1.96 * lost.std(ddof=1) / np.sqrt(len(lost)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+", help="ONNX files, the float model first")
    parser.add_argument("--scenes", type=int, default=4000, help="fresh scenes of four frames each; a multiple of 4")
    arguments = parser.parse_args()
    parts = list(samples.blocks(samples.FRESH_SEED, arguments.scenes))
    raw, labels = (np.concatenate([part[name] for part in parts]) for name in ("raw", "labels"))
    baseline = None
    for path in arguments.files:
        right = (outputs(path, raw) == labels).reshape(-1, samples.FRAMES)
        each = ", ".join(f"{share:.1%}" for share in right.mean(axis=0))
        print(f"{path}: top-1 {right.mean():.2%}; from the longest exposure to the shortest {each}")
        if baseline is None:
            baseline = right
            continue
        loss, half = loss_with_interval(right, baseline)
        print(f"  loses {100 * loss:.2f} ± {100 * half:.2f} points")


if __name__ == "__main__":
    main()
