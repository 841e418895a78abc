"""Search networks with TensorRT on a GPU and measure what came out, step by step; each goes on where it stopped.

    python -m benchmarks.h200.networks.train WORK                          # with PyTorch: the networks
    python -m benchmarks.h200.proof WORK resnet18 uniform search compare throughput mixes
    python -m benchmarks.h200.proof WORK resnet18 tpe nsga2 --trials 200
    python -m benchmarks.h200.proof WORK resnet18 prepare scaling
    python -m benchmarks.h200.proof WORK resnet18 collect table picture    # results and rows into the source tree

Steps: `uniform` (its first part alone: `baselines`), `search`, `compare`, `throughput`, `mixes`, `tpe`, `nsga2`,
`prepare` and `scaling` (over all GPUs of the host); `collect` copies results into benchmarks/results and evaluations
into benchmarks/data; `table` writes the tables of docs/benchmarks.md from them, `picture` fronts and hypervolume over
trials and over time. `--tiny --backend onnxruntime` tries everything but TensorRT itself on a small network.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from benchmarks import ROOT
from benchmarks.h200 import curves, fronts, mixing, rows, sampled, searching, tables, timing, wanted
from benchmarks.h200.setting import Setting, say
from benchmarks.page import write_section

TINY = "tiny"
_WRITERS = ("collect", "table", "picture")


def run(setting: Setting, step: str, arguments: argparse.Namespace) -> bool:
    """One step of the proof; False where it has to be called again."""
    steps: dict[str, Callable[[], bool | None]] = {
        "baselines": lambda: searching.baselines(setting),
        "uniform": lambda: searching.uniform(setting),
        "search": lambda: searching.search(setting, arguments.trials),
        "compare": lambda: searching.compare(setting),
        "mixes": lambda: mixing.mixes(setting, arguments.mixes, arguments.shard),
        "throughput": lambda: timing.throughput(setting, arguments.trials),
        "tpe": lambda: sampled.sampled(setting, "tpe", arguments.trials),
        "nsga2": lambda: sampled.sampled(setting, "nsga2", arguments.trials),
        "prepare": lambda: scaled(setting, arguments, once=True),
        "scaling": lambda: scaled(setting, arguments),
        "collect": lambda: collect(setting, arguments.into, arguments.again),
        "table": lambda: write_section("h200", tables.text(tables.read(arguments.into / "results"))),
        "picture": lambda: picture(arguments.into),
    }
    say(f"-- {setting.network}: {step}")
    done = steps[step]() is not False
    if step not in _WRITERS:
        setting.record("steps", {step: done})
    if not done:
        say(f"{step} is not done yet: call it again")
    return done


def attempt(setting: Setting, step: str, arguments: argparse.Namespace) -> bool:
    """A step; one that fails says why and leaves the others, which time on a GPU was lent for, their turn."""
    try:
        run(setting, step, arguments)
    except Exception:
        traceback.print_exc()
        return False
    return True


def scaled(setting: Setting, arguments: argparse.Namespace, *, once: bool = False) -> None:
    """Scaling over the GPUs of the host, or `once` only what it does once, on one GPU."""
    from benchmarks.h200 import scaling  # needs PostgreSQL

    plan = scaling.plan_of(setting, arguments.workers, arguments.each)
    scaling.prepare(plan)
    if not once:
        setting.record("scaling", scaling.scaling(plan))


def collect(setting: Setting, into: Path, again: bool) -> None:
    """Results and every evaluation of a network, as files that are kept with the source.

    Args:
        again: beside those of an earlier training, not in their place.
    """
    name = f"{setting.network}{wanted.AGAIN if again else ''}"
    training = setting.folder / "training.json"
    if training.exists():
        setting.record("training", json.loads(training.read_text()))
    if rows.studies(setting):
        mixing.record_obedience(setting)
    (into / "results").mkdir(parents=True, exist_ok=True)
    found = {**json.loads(setting.results.read_text()), "network": name}
    (into / "results" / f"h200_{name}.json").write_text(json.dumps(found, indent=1))
    if rows.studies(setting):
        say(f"{rows.dump(setting, into / 'data' / f'{name}.json')} evaluations")


def picture(into: Path) -> None:
    """Front and hypervolume of every collected network with more than one search: JSON, SVG and their table."""
    rows = fronts.read(into / "data", list(tables.NAMES))
    found = {name: each for name, of in rows.items() if len((each := fronts.judged(name, of))["searches"]) > 1}
    out = into / "results" / "fronts_h200.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    docs = ROOT / "docs" if into == ROOT / "benchmarks" else into
    (docs / "fronts.svg").write_text(curves.svg(found, rows, tables.NAMES))
    page, text = docs / "benchmarks.md", fronts.text(found, tables.NAMES)
    if page.exists():
        write_section("h200 fronts", text, page)
    say(text)


def write_tiny(setting: Setting) -> None:
    """A small network of the test suite and its own answers as labels, in place of a trained one."""
    import numpy as np

    from benchmarks.h200.networks import scenes
    from search.graph.model import load
    from tests.support.evaluator_jobs import float_labels
    from tests.support.networks import images, residual_cnn, save

    data = setting.folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    network = residual_cnn()
    model = load(save(network, setting.folder / "model.onnx"))
    for number, split in enumerate(scenes.COUNTS):
        pixels = images(96, seed=number)
        np.save(data / f"{split}-images.npy", pixels)
        np.save(data / f"{split}-labels.npy", float_labels(network, model, pixels))


def _shard(text: str) -> mixing.Shard:
    number, _, of = text.partition("/")
    if not (number.isdigit() and of.isdigit() and int(number) < int(of)):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N - 1, got {text!r}")
    return int(number), int(of)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path, help="folder of the networks, their studies and engines")
    parser.add_argument("network", help=f"resnet18, mobilenet_v2, vit_small; any other with --tiny, say {TINY}")
    parser.add_argument("steps", nargs="+")
    parser.add_argument("--minutes", type=float, default=8.5, help="begin nothing new after so long")
    parser.add_argument("--backend", default="tensorrt", choices=["tensorrt", "onnxruntime"])
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--trials", type=int, default=wanted.TRIALS)
    parser.add_argument("--mixes", type=int, default=100, help="how many, over all workers and calls")
    parser.add_argument("--shard", type=_shard, default=(0, 1), metavar="I/N", help="worker I of N, from 0, of mixes")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="of scaling")
    parser.add_argument("--each", type=int, default=14, help="evaluations of each worker of scaling")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE", help="of bitfront search")
    parser.add_argument("--again", action="store_true", help="collect beside what an earlier training gave")
    parser.add_argument("--into", type=Path, default=ROOT / "benchmarks", help="where results/ and data/ are")
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
