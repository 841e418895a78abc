"""Step `threads`: what a build takes with so many threads of TensorRT's builder, each with a timing cache of its own.

python benchmarks/h200/threads.py JOB.json OUT 1 4 8 16      # in a process of its own; a JSON line per setting
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.h200.setting import Setting, say
from evaluators.backends.registry import open_backend
from evaluators.job import Job
from search.graph import model as models
from search.graph.model import Model
from search.space.choices import Space, make_space
from search.values import Assignment, Precision, Ranges

COUNTS = (1, 4, 8, 16)
LOWER_LEVEL = 2
_LAUNCHES = 200


def threads(setting: Setting, counts: Sequence[int] = COUNTS) -> bool:
    """Measure every number of threads, kept as soon as it is there; False where time was up before the last."""
    setting.open_data()
    job, out = setting.folder / "job.json", setting.folder / "threads.engine"
    job.write_text(json.dumps(asdict(setting.job(setting.folder / "process"))))
    found: list[dict[str, Any]] = []
    command = [sys.executable, str(Path(__file__)), str(job), str(out), *map(str, counts)]
    with (setting.folder / "log").open("ab") as log:
        running = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        assert running.stdout is not None
        for line in running.stdout:
            found.append(json.loads(line))
            setting.record("threads", {"measured": found})
            say(line.rstrip())
            if not setting.has_time():
                running.terminate()
    out.unlink(missing_ok=True)
    if running.returncode and setting.has_time():
        raise RuntimeError(f"building with threads ended with exit code {running.returncode}; see {log.name}")
    return len(found) == len(settings(counts))


def settings(counts: Sequence[int]) -> list[dict[str, int]]:
    """The most first, as the first builds of a process load kernels, and once more in its turn; then a lower level."""
    most = {"build_threads": max(counts)}
    return [most, *({"build_threads": count} for count in counts), {**most, "optimization_level": LOWER_LEVEL}]


def measured(job: Job, counts: Sequence[int], out: Path) -> Iterator[dict[str, Any]]:
    """For each setting `builds_s` of three mixes, the first of which times the kernels, and the engines' `ms`.

    `again_s`: the last mix once more, all of whose kernels are timed by then: what no timing cache saves.
    """
    model = models.load(Path(job.model))
    ranges = Ranges.from_json(json.loads(Path(job.ranges or "").read_text()))
    for number, changes in enumerate(settings(counts)):
        backend = open_backend(job.backend, job.device, {**job.options, "timing_cache": None, **changes})
        builder: Any = backend.builder(model, ranges)
        space = make_space(model, backend.capability(), ranges)
        line: dict[str, Any] = {**changes, "warm": number > 0, "builds_s": [], "ms": []}
        for assignment in mixes(space):
            engine, seconds = _built(builder, assignment, out)
            line["builds_s"].append(seconds)
            line["ms"].append(round(_ms(builder, engine.path, model), 5))
        line["again_s"] = _built(builder, assignment, out)[1]
        yield line


def _built(builder: Any, assignment: Assignment, out: Path) -> tuple[Any, float]:
    """The engine, and what its build took, seconds."""
    lowered, start = builder.lower(assignment), time.perf_counter()
    engine = builder.build(lowered, out)
    return engine, round(time.perf_counter() - start, 3)


def mixes(space: Space) -> list[Assignment]:
    """INT8 with its last third, its first third, and its middle third in FP16."""
    int8, fp16 = (space.codes(space.uniform(precision)) for precision in (Precision.INT8, Precision.FP16))
    names = [variable.id for variable in space.variables]
    third = max(1, len(names) // 3)
    found = []
    for start in (len(names) - third, 0, third):
        kept: Mapping[str, int] = {name: fp16[name] for name in names[start : start + third]}
        found.append(space.assignment({**int8, **kept}))
    return found


def _ms(builder: Any, engine: Path, model: Model) -> float:
    rng, session = np.random.default_rng(0), builder.load(engine)
    try:
        session.bind({spec.name: rng.normal(size=spec.shape).astype(spec.dtype) for spec in model.inputs})
        session.time(_LAUNCHES)
        return float(np.median(session.time(_LAUNCHES)))
    finally:
        session.close()


if __name__ == "__main__":
    given = Job(**json.loads(Path(sys.argv[1]).read_text()))
    for figures in measured(given, [int(word) for word in sys.argv[3:]], Path(sys.argv[2])):
        print(json.dumps(figures), flush=True)
