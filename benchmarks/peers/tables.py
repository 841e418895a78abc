"""What the comparison showed, as tables in Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.page import table
from benchmarks.peers.cases import CASES, OF_TRUST

Figures = Mapping[str, Any]
NAMES = {
    "bitfront-none": "bitfront, calibration alone",
    "bitfront-auto": "bitfront, `--recover auto`",
    "nncf-fast": "NNCF, fast bias correction",
    "nncf-sequential": "NNCF, sequential bias correction",
    "nncf-smooth": "NNCF, SmoothQuant",
    "onnxruntime-minmax": "ONNX Runtime, minmax",
    "onnxruntime-entropy": "ONNX Runtime, entropy",
    "onnxruntime-percentile": "ONNX Runtime, percentile",
    "onnxruntime-reduced": "ONNX Runtime, minmax, weights of 7 bits",
    "onnxruntime-heads": "ONNX Runtime, minmax, heads by hand in float",
    "onnxruntime-first": "ONNX Runtime, minmax, four first layers in float",
    "onnxruntime-dynamic": "ONNX Runtime, dynamic",
    "quark": "Quark",
    "quark-recover": "Quark, equalization and bias correction",
}


def text(results: Figures) -> str:
    """All tables of what is done."""
    networks = [name for name in (*CASES, *OF_TRUST) if name in results["networks"]]
    tables = (float_table, loss_table, best_table, steps_table)
    parts = [each(results, networks) for each in tables]
    return "\n\n".join(part for part in parts if part)


def float_table(results: Figures, networks: list[str]) -> str:
    rows = []
    for name in networks:
        about = results["networks"][name]
        rows.append([name, about["kind"], about["metric"], percent(about["value"]), f"{about['samples']:,}"])
    return table(["network", "kind", "metric", "FP32", "samples scored"], rows)


def loss_table(results: Figures, networks: list[str]) -> str:
    """A row for every method, a column for every network: points lost, and half the width of the 95 % interval."""
    runs = results["runs"]
    methods = [method for method in NAMES if any(f"{name}/{method}" in runs for name in networks)]
    rows = [[NAMES[method], *(cell(runs.get(f"{name}/{method}")) for name in networks)] for method in methods]
    return table(["points lost by INT8", *networks], rows)


def best_table(results: Figures, networks: list[str]) -> str:
    """Against the best of the others on each network: how much more ours loses, on the same samples."""
    rows = []
    for own in ("bitfront-none", "bitfront-auto"):
        for name in networks:
            others = results.get("pairs", {}).get(name, {}).get(own)
            if others:
                rows.append([NAMES[own], name, *against_best(results["runs"], name, others)])
    return table(["", "network", "best of the others", "ours loses more by", ""], rows)


def steps_table(results: Figures, networks: list[str]) -> str:
    """What recovery kept, the seconds of every step that was tried, and the most memory of the process."""
    rows = []
    for name in networks:
        run = results["runs"].get(f"{name}/bitfront-auto", {})
        if "steps" in run:
            kept = [step["name"] for step in run["steps"] if step["kept"]]
            seconds = ", ".join(f"{step['name']} {step['seconds']:.0f} s" for step in run["steps"])
            rows.append([name, ", ".join(kept) or "nothing", seconds, f"{run['peak_bytes'] / 2**20:.0f} MiB"])
    return table(["network", "`--recover auto` kept", "tried", "peak memory"], rows)


def against_best(runs: Figures, name: str, others: Figures) -> list[str]:
    """Name of the best all-INT8 engine of others, the paired difference to it, and what that says."""
    foreign = [other for other in others if not other.startswith("bitfront")]
    if not foreign:
        return ["", "", ""]
    best = min(foreign, key=lambda other: float(runs[f"{name}/{other}"]["loss"]))
    more = others[best]
    verdict = "better" if more["high"] < 0 else "worse" if more["low"] > 0 else "no difference that can be told"
    return [NAMES[best], points(more), verdict]


def cell(run: Figures | None) -> str:
    if run is None:
        return ""
    if "failed" in run:
        return "gave up"
    kept = f" ({run['float_ops']} in float)" if run["float_ops"] else ""
    return points(run) + kept


def points(loss: Figures) -> str:
    return f"{100 * loss['loss']:.2f} ± {50 * (loss['high'] - loss['low']):.2f}"


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"
