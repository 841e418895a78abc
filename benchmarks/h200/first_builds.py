"""What makes TensorRT's first builds short: optimization level, tactic sources, iterations of timing, order.

python benchmarks/h200/first_builds.py MODEL.onnx --data DATA.npz --out builds.json --seconds 240

Each variant builds the uniform assignments and two mixes in a process of its own, since what a process has loaded and
timed makes its later builds shorter. Several variants run at once, since a build keeps one processor core busy and the
GPU little; `--parallel 1` runs them one after another. What is there when the time is up is written; a build under way
then counts as `at least` that long. At the end all engines are timed in turn, with nothing else running.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.h200.setting import say
from benchmarks.h200.threads import mixes
from evaluators import calibration, data, latency
from evaluators.backends.registry import open_backend
from evaluators.cores import usable_processors
from search.graph import model as models
from search.graph.model import Model
from search.space.choices import Space, make_space
from search.values import Assignment, Precision, Ranges

SAMPLES = 64  # of random data, where none are given
RESERVE_S = 25.0  # for timing the engines at the end
ROUNDS = 15
USUAL = ("fp32", "fp16", "int8")


@dataclass(frozen=True)
class Variant:
    """A way to build.

    Attributes:
        level: `builder_optimization_level`.
        without: tactic sources that are switched off; those that a version does not know are left out.
        avg: `avg_timing_iterations`; None for TensorRT's own default.
        order: of the uniform assignments; the mixes come last.
        probe: also measures what starting a builder takes, and whether Python goes on meanwhile.
    """

    level: int
    without: Sequence[str] = ()
    avg: int | None = None
    order: Sequence[str] = USUAL
    probe: bool = False


_EDGE, _JIT, _LIBRARIES = "EDGE_MASK_CONVOLUTIONS", "JIT_CONVOLUTIONS", ("CUBLAS", "CUBLAS_LT", "CUDNN")
VARIANTS: Mapping[str, Variant] = {  # the most telling first
    "level 2": Variant(2, probe=True),
    "level 2, no JIT": Variant(2, (_JIT,)),
    "level 1": Variant(1),
    "level 3": Variant(3),
    "level 2, FP16 first": Variant(2, order=("fp16", "int8", "fp32")),
    "level 2, no JIT, no edge mask": Variant(2, (_JIT, _EDGE)),
    "level 2, INT8 first": Variant(2, order=("int8", "fp16", "fp32")),
    "level 3, no JIT, no edge mask": Variant(3, (_JIT, _EDGE)),
    "level 2, no edge mask": Variant(2, (_EDGE,)),
    "level 2, average of 1": Variant(2, avg=1),
    "level 2, no libraries": Variant(2, _LIBRARIES),
    "level 0": Variant(0),
    "level 3, no JIT": Variant(3, (_JIT,)),
    "level 3, no edge mask": Variant(3, (_EDGE,)),
    "level 3, average of 1": Variant(3, avg=1),
}


# -- one variant, in a process of its own ------------------------------------------------------------------------------


def run_variant(model: Model, ranges: Ranges, variant: Variant, folder: Path) -> Iterator[dict[str, Any]]:
    """Build what a variant asks for; a line for the start and for each build."""
    start = time.perf_counter()
    import tensorrt as trt

    imported_s = time.perf_counter() - start
    start = time.perf_counter()
    backend = open_backend("tensorrt", "cuda", {"optimization_level": variant.level, "timing_cache": None})
    opened_s = time.perf_counter() - start
    line = {"import_s": imported_s, "backend_s": opened_s, **(_probe(trt) if variant.probe else {})}
    builder: Any = backend.builder(model, ranges)
    start = time.perf_counter()
    assert builder._builder is not None
    line["builder_s"] = time.perf_counter() - start
    _vary(builder, trt, variant)
    line["tactic_sources"] = _sources(trt, builder._config())
    yield {"start": _rounded(line)}
    for name, assignment in _wanted(make_space(model, backend.capability(), ranges), variant.order):
        out = folder / f"{len(list(folder.glob('*.plan')))}.plan"
        lowered, start = builder.lower(assignment), time.perf_counter()
        engine = builder.build(lowered, out)
        seconds = time.perf_counter() - start
        yield {"build": name, "seconds": round(seconds, 2), "busy_ms": _busy_ms(builder, engine.path, model),
               "engine": str(out), "digest": assignment.digest}  # fmt: skip


def _probe(trt: Any) -> dict[str, Any]:
    """What a builder's start takes, with its library of kernels read ahead outside Python's lock.

    `ticks`: how often another thread of Python got its turn while the first builder was made, of one every 10 ms.
    """
    found: dict[str, Any] = {}
    for library in sorted(Path(trt.__file__).parent.parent.glob("tensorrt*/libnvinfer_builder_resource.so*"))[:1]:
        start = time.perf_counter()
        with suppress(OSError):
            ctypes.CDLL(str(library))
            found["resource_s"] = time.perf_counter() - start
    ticks, over = [0], threading.Event()

    def tick() -> None:
        while not over.wait(0.01):
            ticks[0] += 1

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    first = trt.Builder(trt.Logger(trt.Logger.ERROR))
    found["first_builder_s"] = time.perf_counter() - start
    over.set()
    thread.join()
    assert first is not None
    return {**found, "ticks": ticks[0]}


def _vary(builder: Any, trt: Any, variant: Variant) -> None:
    """Let every configuration that a builder makes be that of a variant."""
    usual = builder._config

    def config() -> Any:
        made = usual()
        off = [getattr(trt.TacticSource, name) for name in variant.without if hasattr(trt.TacticSource, name)]
        if off:
            sources = made.get_tactic_sources()
            for source in off:
                sources &= ~(1 << int(source))
            made.set_tactic_sources(sources)
        if variant.avg is not None:
            made.avg_timing_iterations = variant.avg
        return made

    builder._config = config


def _sources(trt: Any, config: Any) -> list[str]:
    names = [name for name in (_EDGE, _JIT, *_LIBRARIES) if hasattr(trt.TacticSource, name)]
    return [name for name in names if config.get_tactic_sources() >> int(getattr(trt.TacticSource, name)) & 1]


def _wanted(space: Space, order: Sequence[str]) -> list[tuple[str, Assignment]]:
    uniform = [(name, space.uniform(Precision.parse(name))) for name in order]
    return [*uniform, *((f"mix {n}", mix) for n, mix in enumerate(mixes(space)[:2], 1))]


def _busy_ms(builder: Any, engine: Path, model: Model) -> float:
    """Latency now, which other variants under way may disturb."""
    session = builder.load(engine)
    try:
        session.bind(_inputs(model))
        session.time(50)
        return round(float(np.median(session.time(100))), 5)
    finally:
        session.close()


def _inputs(model: Model) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {spec.name: rng.normal(size=spec.shape).astype(spec.dtype) for spec in model.inputs}


def _rounded(figures: Mapping[str, Any]) -> dict[str, Any]:
    return {key: round(value, 2) if isinstance(value, float) else value for key, value in figures.items()}


# -- timing all engines at the end -------------------------------------------------------------------------------------


def time_all(model: Model, ranges: Ranges, engines: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Median latency of every engine, all in turn."""
    backend = open_backend("tensorrt", "cuda", {"timing_cache": None})
    builder: Any = backend.builder(model, ranges)
    sessions = {engine: builder.load(Path(engine)) for engine in engines}
    for session in sessions.values():
        session.bind(_inputs(model))
    for engine, samples in latency.interleaved(sessions, ROUNDS).items():
        yield {"engine": engine, "ms": round(float(np.median(samples)), 5)}


# -- all of them -------------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A variant under way."""

    name: str
    process: subprocess.Popen[str]
    reader: threading.Thread
    found: dict[str, Any] = field(default_factory=lambda: {"builds": []})
    since: float = field(default_factory=time.perf_counter)


class Experiment:
    """Runs variants, a few at a time, and keeps what they say."""

    def __init__(self, given: argparse.Namespace, folder: Path, ranges: Path, start: float) -> None:
        self.given, self.folder, self.ranges = given, folder, ranges
        self.end = start + given.seconds
        self.results: dict[str, dict[str, Any]] = {}

    def run(self, names: Sequence[str]) -> None:
        waiting, running = list(names), []
        until = self.end - RESERVE_S
        while time.perf_counter() < until and (waiting or running):
            while waiting and len(running) < self.given.parallel:
                running.append(self._start(waiting.pop(0)))
            time.sleep(0.2)
            running = [each for each in running if each.process.poll() is None]
        for each in running:
            each.process.kill()
            each.process.wait()
            each.found["stopped_after_at_least_s"] = round(time.perf_counter() - each.since, 1)
            say(f"{each.name}: stopped, {each.found['stopped_after_at_least_s']} s into what it was building")
        self.write()

    def _start(self, name: str) -> Running:
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir()
        command = [sys.executable, __file__, self.given.model, "--ranges", str(self.ranges), "--folder", str(folder)]
        command += ["--variant", name] + (["--batch", str(self.given.batch)] if self.given.batch else [])
        log = (self.folder / "log").open("ab")
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        running = Running(name, process, threading.Thread())
        self.results[name] = running.found
        running.reader = threading.Thread(target=self._read, args=(running,), daemon=True)
        running.reader.start()
        return running

    def _read(self, running: Running) -> None:
        assert running.process.stdout is not None
        for text in running.process.stdout:
            line = json.loads(text)
            if "start" in line:
                running.found["start"] = line["start"]
            else:
                running.found["builds"].append(line)
            running.since = time.perf_counter()
            say(f"{running.name}: {text.rstrip()}")
            self.write()
        if running.process.wait() not in (0, -9):
            running.found["failed"] = running.process.returncode
            say(f"{running.name}: ended with exit code {running.process.returncode}")
            say((self.folder / "log").read_text(errors="replace")[-3000:])

    def time_all(self) -> None:
        engines = {build["engine"]: build for found in self.results.values() for build in found["builds"]}
        if not engines:
            return
        names = self.folder / "engines.json"
        names.write_text(json.dumps(list(engines)))
        command = [sys.executable, __file__, self.given.model, "--ranges", str(self.ranges), "--engines", str(names)]
        command += ["--batch", str(self.given.batch)] if self.given.batch else []
        with suppress(subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=2 * RESERVE_S)
            if done.returncode:
                say(done.stderr[-3000:])
            for text in done.stdout.splitlines():
                line = json.loads(text)
                engines[line["engine"]]["ms"] = line["ms"]
        self.write()

    def write(self) -> None:
        given = {"model": Path(self.given.model).name, "parallel": self.given.parallel}
        text = json.dumps({**given, "variants": self.results}, indent=1)
        Path(self.given.out).write_text(text)

    def table(self) -> str:
        lines = ["variant | build | seconds | ms"]
        for name, found in self.results.items():
            lines += [f"{name} | {b['build']} | {b['seconds']} | {b.get('ms', '')}" for b in found["builds"]]
        return "\n".join(lines)


def calibrated(given: argparse.Namespace, model: Model, folder: Path) -> Path:
    """File of the ranges of a model, on the data given or on random ones."""
    source = given.data
    if source is None:
        source = str(folder / "random.npz")
        rng, rows = np.random.default_rng(0), max(SAMPLES, 2 * model.batch)
        arrays = {s.name: rng.normal(size=(rows, *s.shape[1:])).astype(s.dtype) for s in model.inputs}
        np.savez(source, **arrays)
    dataset = data.open_data(source, model.inputs)
    indices = np.arange(min(len(dataset), max(SAMPLES, model.batch)))
    ranges = calibration.collect(model, dataset, indices, "minmax", threads=usable_processors())
    path = folder / "ranges.json"
    path.write_text(json.dumps(ranges.to_json()))
    return path


def main() -> None:
    start = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--data")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--only", action="append", choices=list(VARIANTS), help="these variants alone")
    parser.add_argument("--variant", help=argparse.SUPPRESS)
    parser.add_argument("--engines", help=argparse.SUPPRESS)
    parser.add_argument("--ranges", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    model = models.load(Path(given.model), batch=given.batch)
    if given.ranges:
        ranges = Ranges.from_json(json.loads(Path(given.ranges).read_text()))
        lines = (
            run_variant(model, ranges, VARIANTS[given.variant], Path(given.folder))
            if given.variant
            else time_all(model, ranges, json.loads(Path(given.engines).read_text()))
        )
        for line in lines:
            print(json.dumps(line), flush=True)
        return
    if not given.out:
        parser.error("--out is missing: name the JSON file to write")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ranges_file = calibrated(given, model, folder)
        say(f"calibrated after {time.perf_counter() - start:.1f} s")
        experiment = Experiment(given, folder, ranges_file, start)
        experiment.run(given.only or list(VARIANTS))
        experiment.time_all()
    say(experiment.table())


if __name__ == "__main__":
    main()
