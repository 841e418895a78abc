"""A study with everything that a report shows, made without a search."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from evaluators.diagnose.group_error import GroupError
from search.values import Precision
from studies.judging.findings.sensitivity_table import Sensitivities
from studies.judging.judged_target import FinalScore
from studies.judging.rules.verdicts import Verdict
from studies.options.diagnosis.thresholds import Thresholds
from studies.options.limits import Limits
from studies.show.report.rows import (
    Deployment,
    FailureRow,
    LayerReason,
    Mismatch,
    PickRow,
    ReportData,
    ReportMetric,
)
from studies.show.report.story import Story, StoryRow
from studies.trials.forecasts import Compared, Forecasts
from tests.support.records import PlantedPoint, group_record


def sample(groups: int = 8, trials: int = 40) -> ReportData:
    """A study with everything in it, seeded."""
    generator = np.random.default_rng(3)
    labels = ["fp32", "fp16", "int8"]
    rows, precisions = [], {}
    for trial in range(trials):
        codes = [trial] * groups if trial < 3 else sorted(generator.integers(0, 3, groups), reverse=trial % 2 == 0)
        int8 = sum(code == 2 for code in codes) / groups
        latency = 1.0 - 0.22 * sum(codes) / groups + generator.uniform(0, 0.08)
        loss = 0.04 * int8**2 + generator.uniform(0, 0.004) if trial else 0.0
        half = 0.002 + 0.1 * loss
        rows.append(
            PlantedPoint(
                trial, latency, 0.76 - loss, loss, loss - half, loss + half,
                role=f"baseline:{labels[trial]}" if trial < 3 else "",
                feasible=loss < 0.01, spread=0.004 + 0.002 * generator.random(),
                mix=f"all {labels[trial]}" if trial < 3 else f"{sum(c == 2 for c in codes)} int8",
                opaque=trial % 2, samples=500 if loss < 0.03 else 100, build_s=trial + 0.5, size_bytes=12_000_000,
            )
        )  # fmt: skip
        precisions[trial] = [labels[code] for code in codes]
    rows = mark_front(rows)
    rows.append(PlantedPoint(trials, status="failed"))
    best = next(row for row in rows if row.on_front)
    flips = ["3 of 500 samples (0.6 %) have another class than in FP32", "3 of the 490 are wrong: 4, 9, 77"]
    picked = FinalScore(Verdict.SURELY, tries=3, value=0.755, loss=0.004, low=0.001, high=0.007, scored=True)
    rows = [
        row.with_values(picks=("accurate", "fast"), final=picked) if row.trial == best.trial else row for row in rows
    ]
    best = best.with_values(final=picked, picks=("accurate", "fast"), speedup=1.31, opaque=2)
    return ReportData(
        study="resnet",
        target="onnxruntime 1.31 on AMD EPYC, 1 thread, 20th percentile",
        metric=ReportMetric("top1", ratio=True),
        limits=Limits(latency_budget_ms=0.8, max_drop=0.01, max_memory_bytes=512_000_000),
        model="resnet.onnx",
        created="2026-11-20 12:00",
        evaluations=rows,
        remarks={row.trial: ["the device was slowed down: power brake"] for row in rows},
        moves={row.trial: "3 of 9 layers, 0.125 ms (8.33 %)" for row in rows},
        picks=[
            PickRow("accurate", best, ties="ties with trial 7", flips=flips),
            PickRow("fast", best, flips=flips),
        ],
        groups=[group_record(f"g{i:03}", f"/layer{i}/conv1/Conv") for i in range(groups)],
        precisions=precisions,
        mismatches=[Mismatch(7, "g001", "/layer1/conv1/Conv", "int8", "fp32", "sm80_conv_kernel_nhwc")],
        opaque={best.trial: frozenset({"g001", "g003"})},
        unbuildable=[("g004", "/layer4/conv1/Conv", "int8")],
        audited=(311, 1, 8),
        failures=[FailureRow(trials, "build", "refused", "No supported formats for /layer1/Conv")],
        hypervolume=[(row.trial, 0.01 * math.log1p(row.trial)) for row in rows],
        forecasts=forecasts_of(rows, generator),
        diagnosis=diagnosis(groups),
        environment={"python": "3.11", "cpu": "AMD EPYC"},
        notes=["Latencies within 1 % of each other count as a tie."],
        warnings=["Clocks were not pinned."],
        story=Story(
            (
                StoryRow("FP32", "76.0 %", 1.0, 1.0, "", "#d5dbe3"),
                StoryRow("INT8", "72 %", 0.78, 0.78, "1.28 ×", "#1b4f8f"),
                StoryRow("bitfront", "75.6 %", best.latency_ms, best.latency_ms, "1.31 ×", "var(--accent)"),
            ),
            "On 500 samples that the search never saw, bitfront's mix loses 0.4 ± 0.3 % of top1 against FP32.",
            "1.31 × as fast as FP32; loses at most 0.7 % of top1",
        ),
        reasons=[LayerReason("/layer1/conv1/Conv", "fp32", "Alone in int8 it causes 3.1 times the average error.")],
        deployment=Deployment("bitfront export resnet --out engine", "import onnxruntime as ort"),
    )


def diagnosis(groups: int) -> Sensitivities:
    """The last group has channels of very different ranges in INT8."""
    known = {f"g{i:03}": group_record(f"g{i:03}", f"/layer{i}/conv1/Conv") for i in range(groups)}
    rows = [GroupError(group, Precision.INT8, 1e-5, 0.0, 35.0, 0.01, 0.98, 0.0, 64) for group in known]
    rows[-1] = replace(rows[-1], error=0.1, channel_ratio=25.0)
    return Sensitivities("resnet", tuple(rows), known, Thresholds())


def forecasts_of(rows: list[PlantedPoint], generator: np.random.Generator) -> Forecasts:
    """Latencies predicted within 2 %; losses far too low."""
    rows = [row for row in rows if row.is_measured and not row.role]
    trial, ms, loss = (np.array([getattr(row, name) for row in rows]) for name in ("trial", "latency_ms", "loss"))
    latency = Compared(trial, ms * (1 + 0.02 * generator.uniform(-1, 1, len(ms))), 0.02 * ms, ms)
    return Forecasts(latency, Compared(trial, loss / 10, np.full(len(loss), 1e-4), loss, scale=0.05))


def mark_front(rows: list[PlantedPoint]) -> list[PlantedPoint]:
    def beaten(row: PlantedPoint) -> bool:
        return any(r.latency_ms < row.latency_ms and r.loss <= row.loss for r in rows if r.feasible)

    return [row.with_values(on_front=row.feasible and not beaten(row)) for row in rows]
