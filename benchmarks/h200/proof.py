"""The proof on a GPU: networks searched with TensorRT, step by step, each going on where the last one stopped.

    python benchmarks/h200/train.py WORK                          # with PyTorch: the networks
    python benchmarks/h200/proof.py WORK resnet18 uniform search compare export
    python benchmarks/h200/proof.py WORK resnet18 mixes repeat faults
    python benchmarks/h200/proof.py WORK resnet18 collect table    # results and rows into the source tree

Steps: `uniform`, `search`, `compare`, `mixes`, `repeat`, `export`, `faults`; `collect` copies results into
benchmarks/results and evaluations into benchmarks/data; `table` writes the tables of docs/benchmarks.md from them;
`pack` and `unpack` carry what a fresh machine needs to go on, in parts. Every step can be called again: it goes on.
`--tiny --backend onnxruntime` tries everything but TensorRT itself on a small network, without a GPU.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tarfile
import traceback
from collections.abc import Callable
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # started as a script: the small networks are those of the tests
    sys.path[:1] = [str(_ROOT), str(_ROOT / "tests")]

from benchmarks.h200 import engines, rows, searching, tables  # noqa: E402
from benchmarks.h200 import faults as faulty  # noqa: E402
from benchmarks.h200.setting import ROOT, Setting, say  # noqa: E402

TINY = "tiny"
_PART_BYTES = 15 * 2**20
_SMALL_BYTES = 2**20


def run(setting: Setting, step: str, arguments: argparse.Namespace) -> None:
    """One step of the proof."""
    steps: dict[str, Callable[[], object]] = {
        "uniform": lambda: searching.uniform(setting),
        "search": lambda: searching.search(setting, arguments.trials),
        "compare": lambda: searching.compare(setting),
        "mixes": lambda: engines.mixes(setting, arguments.mixes),
        "repeat": lambda: engines.repeat(setting, arguments.processes, arguments.rebuilds),
        "export": lambda: engines.export(setting),
        "faults": lambda: faulty.faults(setting, arguments.faults),
        "collect": lambda: collect(setting, arguments.into),
        "table": lambda: tables.write(tables.read(arguments.into / "results"), ROOT / "docs" / "benchmarks.md"),
        "pack": lambda: pack(setting, arguments.parts),
        "unpack": lambda: unpack(setting, arguments.parts),
    }
    say(f"-- {setting.network}: {step}, {setting.left_s() / 60:.1f} minutes left")
    steps[step]()


def attempt(setting: Setting, step: str, arguments: argparse.Namespace) -> bool:
    """A step; one that fails says why and leaves the others, which time on a GPU was lent for, their turn."""
    try:
        run(setting, step, arguments)
    except Exception:
        traceback.print_exc()
        return False
    return True


def collect(setting: Setting, into: Path) -> None:
    """Results and every evaluation of a network, as files that are kept with the source."""
    (into / "results").mkdir(parents=True, exist_ok=True)
    shutil.copyfile(setting.results, into / "results" / f"h200_{setting.network}.json")
    say(f"{rows.dump(setting, into / 'data' / f'{setting.network}.json')} evaluations")


def pack(setting: Setting, parts: Path) -> None:
    """All that a fresh machine needs, engines left out, as NETWORK.NN of at most 15 MiB each."""
    parts.mkdir(parents=True, exist_ok=True)
    archive = setting.folder / "packed.tar"
    with tarfile.open(archive, "w") as tar:
        for path in _to_keep(setting):
            tar.add(path, path.relative_to(setting.work))
    for stale in parts.glob(f"{setting.network}.[0-9][0-9]"):
        stale.unlink()
    with archive.open("rb") as source:
        for number in range(100):
            if not (piece := source.read(_PART_BYTES)):
                break
            (parts / f"{setting.network}.{number:02d}").write_bytes(piece)
    archive.unlink()


def unpack(setting: Setting, parts: Path) -> None:
    setting.work.mkdir(parents=True, exist_ok=True)
    joined = setting.work / f"{setting.network}.tar"
    with joined.open("wb") as sink:
        for part in sorted(parts.glob(f"{setting.network}.[0-9][0-9]")):
            sink.write(part.read_bytes())
    with tarfile.open(joined) as tar:
        tar.extractall(setting.work, filter="data")
    joined.unlink()


def _to_keep(setting: Setting) -> list[Path]:
    names = ("model.onnx", "training.json", "results.json", "stages.jsonl", "mixes.jsonl")
    found = [setting.folder / name for name in names] + [setting.data / "digits.npz"]
    found += sorted(setting.folder.glob("study.db*"))
    files = [path for path in found if path.is_file()]
    for folder in [path for path in found if path.is_dir()]:  # of artifacts the ranges, not the engines
        files += [p for p in folder.rglob("*") if p.is_file() and p.stat().st_size < _SMALL_BYTES]
    return files


def write_tiny(setting: Setting) -> None:
    """A small network of the test suite and its own answers as labels, in place of a trained one."""
    import numpy as np

    from benchmarks.h200 import scenes
    from jobs import float_labels
    from networks import images, residual_cnn, save
    from search.model import load

    data = setting.folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    network = residual_cnn()
    model = load(save(network, setting.folder / "model.onnx"))
    for number, split in enumerate(scenes.COUNTS):
        pixels = images(96, seed=number)
        np.save(data / f"{split}-images.npy", pixels)
        np.save(data / f"{split}-labels.npy", float_labels(network, model, pixels))


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder of the networks, their studies and engines")
    parser.add_argument("network", help=f"resnet18, mobilenet_v2, vit_small; any other with --tiny, say {TINY}")
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--minutes", type=float, default=8.5, help="begin nothing new after so long")
    parser.add_argument("--backend", default="tensorrt", choices=["tensorrt", "onnxruntime"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--trials", type=int, default=60)
    parser.add_argument("--mixes", type=int, default=100)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--rebuilds", type=int, default=5)
    parser.add_argument("--faults", nargs="+", choices=list(faulty.EXPECTED), default=list(faulty.EXPECTED))
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of bitfront search")
    parser.add_argument("--into", type=Path, default=ROOT / "benchmarks", help="where results/ and data/ are")
    parser.add_argument("--parts", type=Path, default=Path("parts"), help="folder of packed parts")
    arguments = parser.parse_args(words)
    options = dict(option.split("=", 1) for option in arguments.option)
    setting = Setting(arguments.work, arguments.network, arguments.backend, arguments.minutes, options)
    if arguments.tiny and not (setting.folder / "model.onnx").exists():
        write_tiny(setting)
    failed = [step for step in arguments.steps if not attempt(setting, step, arguments)]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
