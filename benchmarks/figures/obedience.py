"""Whether ONNX Runtime runs what was asked, group by group: every uniform assignment and random mixes, built and
audited but not measured, of the example and of the networks that the tests are made of.

usage: python -m benchmarks.figures.obedience [--mixes 100]
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.example import BATCH, DATA, MODEL, load_text
from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend
from evaluators.backends.onnxruntime.builder import OnnxRuntimeBuilder
from evaluators.calibration.activations import collect
from evaluators.data import split
from evaluators.data.opening import open_data
from search.graph.model import Model, load
from search.space.choices import Space, make_space
from search.values import Answer, Assignment, AuditRow, Precision, Ranges
from tests.support.networks import NETWORKS, loaded, ranged


def main(mixes: int = 100) -> dict[str, float]:
    """`obeyed`, `not_obeyed`, `opaque` groups over all engines built, and `engines`."""
    backend, counts, engines = OnnxRuntimeBackend(threads=1), Counter[tuple[str, Precision, Answer]](), 0
    print(f"{'network':12} {'asked':5} {'engines':>8} {'groups':>8} " + " ".join(f"{a.value:>11}" for a in Answer))
    with tempfile.TemporaryDirectory() as folder:
        for name, (model, ranges) in _models():
            space = make_space(model, backend.capability(), ranges)
            assignments = _assignments(space, mixes)
            builder = backend.builder(model, ranges)
            for assignment in assignments:
                for row in audited(builder, assignment, Path(folder)):
                    counts[name, row.asked, row.answer] += 1
                    if row.answer is not Answer.OBEYED:
                        print(f"  {name}: {row.group} asked {row.asked.label}: {row.answer.value} ({row.kernel})")
            engines += len(assignments)
            for precision in space.precisions:
                found = [counts[name, precision, answer] for answer in Answer]
                cells = " ".join(f"{count:11}" for count in found)
                print(f"{name:12} {precision.label:5} {len(assignments):8} {sum(found):8} {cells}", flush=True)
    total = {answer: sum(count for key, count in counts.items() if key[2] is answer) for answer in Answer}
    print(f"{engines} engines: " + ", ".join(f"{total[a]} {a.value}" for a in Answer) + f"; {load_text()}")
    return {
        "engines": engines,
        "obeyed": total[Answer.OBEYED],
        "not_obeyed": total[Answer.NOT_OBEYED],
        "opaque": total[Answer.OPAQUE],
    }


def audited(builder: OnnxRuntimeBuilder, assignment: Assignment, folder: Path) -> tuple[AuditRow, ...]:
    engine = builder.build(builder.lower(assignment), folder / "candidate.engine")
    rows = builder.audit(engine, assignment).rows
    builder.load(engine.path).close()
    return rows


def _models() -> Iterator[tuple[str, tuple[Model, Ranges]]]:
    digits = load(MODEL, batch=BATCH)
    dataset = open_data(str(DATA), digits.inputs)
    indices = split(dataset.digest, len(dataset)).calibration[:128]
    yield "digits", (digits, collect(digits, dataset, indices, "minmax"))
    for name in NETWORKS:
        yield name, (loaded(name), ranged(name))


def _assignments(space: Space, mixes: int) -> list[Assignment]:
    """The uniform ones and random mixes, all distinct; groups that are offered one precision keep it."""
    rng, groups = np.random.default_rng(0), list(space.choices)
    found = dict.fromkeys(space.baselines.values())
    wanted = min(len(found) + mixes, space.size)
    while len(found) < wanted:
        mix = _random_assignment(groups, rng)
        codes = {v.id: v.precisions.index(max(mix[g] for g in v.groups)) for v in space.variables}
        found.setdefault(space.assignment(codes))
    return list(found)


def _random_assignment(groups: list[str], rng: np.random.Generator) -> Assignment:
    choices = rng.choice(2, len(groups), p=[0.4, 0.6])
    either = (Precision.FP32, Precision.INT8)
    return Assignment({group: either[choice] for group, choice in zip(groups, choices, strict=True)})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mixes", type=int, default=100)
    main(parser.parse_args().mixes)
