"""Latencies are measured in milliseconds: tests of what surrounds a measurement need no steady numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import psutil

from evaluators import lent_constants
from evaluators.calibration import graph_sessions
from evaluators.measure import blocks, latency
from search.graph import onnx_file
from search.values import Latency

SMALL_FILE_BYTES = 1000  # of constants in an ONNX file, where a test wants small models to be treated as large ones


def patch_evaluator() -> None:
    """Once in a process, before it opens anything; a toy precision even before anything else is imported."""
    _measure_quickly()
    from tests.support.evaluator_patches import planted_clock  # noqa: F401

    if "BITFRONT_TEST_DOUBTFUL" in os.environ:
        from tests.support.evaluator_patches import doubtful_latency  # noqa: F401
    if "BITFRONT_TEST_SLOW_START" in os.environ:
        from tests.support.evaluator_patches import slow_start  # noqa: F401
    if "BITFRONT_TEST_NO_EMULATION" in os.environ:
        from tests.support.evaluator_patches import no_emulation  # noqa: F401
    if "BITFRONT_TEST_HELD" in os.environ:
        from tests.support.evaluator_patches import held_stages  # noqa: F401
    if "BITFRONT_TEST_CUDA" in os.environ:
        from tests.support.evaluator_patches import named_cuda  # noqa: F401
    if "BITFRONT_TEST_SMALL_FILES" in os.environ:
        onnx_file._MOST_INSIDE = SMALL_FILE_BYTES
        lent_constants._MOST_COPIED = graph_sessions._MOST_COPIED = SMALL_FILE_BYTES
    if "BITFRONT_TEST_TENSORRT" in os.environ:
        from tests.support.evaluator_patches import pretended_tensorrt  # noqa: F401


def _measure_quickly() -> None:
    blocks.MAX_WARM_UP_S = 0.01
    latency.BLOCK_MS = 0.5
    measure_once, together_once = latency._measure_once, latency._together_once

    def once(session: Any, baseline: Any, plan: Any) -> Latency:
        quick = latency.replace(plan, seconds=0.005, min_samples=20)
        return latency.replace(measure_once(session, baseline, quick), warnings=())

    def all_once(everyone: Any, baseline: Any, rounds: int, plan: Any, alive: Any) -> Mapping[str, Latency]:
        latencies = together_once(everyone, baseline, 5, plan, alive)
        return {name: latency.replace(each, warnings=()) for name, each in latencies.items()}

    latency._measure_once = once
    latency._together_once = all_once  # type: ignore[assignment]
    latency._list_lasting_doubts = lambda *_: ()  # type: ignore[assignment, misc]
    cpu_percent = psutil.cpu_percent
    psutil.cpu_percent = lambda interval, percpu: cpu_percent(0.01, percpu)  # type: ignore[misc, assignment]
