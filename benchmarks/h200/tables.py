"""The tables of docs/benchmarks-tables.md from the results of the proof: pure functions of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.page import table

NAMES = {
    "resnet18": "ResNet-18",
    "mobilenet_v2": "MobileNetV2",
    "vit_small": "ViT-small, 6 blocks",
    "resnet18_again": "ResNet-18, trained again",
    "mobilenet_v2_again": "MobileNetV2, trained again",
    "resnet18_once_more": "ResNet-18, trained again, on another host",
}
_LABELS = {
    "fp32": "all FP32 (TF32)",
    "fp16": "all FP16",
    "int8": "all INT8",
    "free": "TensorRT's own choice",
    "pick": "the search's pick",
    "match": "the search's fastest at no more loss than TensorRT's own choice",
}
_BASELINES = 3
_ASKED = {"i": "INT8", "h": "FP16", "f": "FP32"}

Results = Mapping[str, Any]


def read(folder: Path) -> list[Results]:
    """Results of every network in `folder`, in the order of `NAMES`; other measurements on that GPU are passed over."""
    every = [json.loads(path.read_text()) for path in sorted(folder.glob("h200_*.json"))]
    found = [result for result in every if "network" in result]
    order = list(NAMES)
    return sorted(found, key=lambda r: order.index(r["network"]) if r["network"] in order else len(order))


def text(results: Sequence[Results]) -> str:
    """Every table, empty ones left out."""
    if not results:
        return "Nothing measured yet."
    parts = [networks(results), verdicts(results), throughput(results), shares(results), obedience(results)]
    parts += [scaling(results)]
    return "\n\n".join(part for part in parts if part)


def evaluations(result: Results) -> int:
    """Of the study that the search went on with, the uniform assignments included."""
    search = result.get("search", {})
    runs = search.get("runs", [])
    return search.get("total", sum(run["evaluations"] for run in runs) + (_BASELINES if runs else 0))


def networks(results: Sequence[Results]) -> str:
    rows: list[list[str]] = []
    for result in results:
        together = result.get("compare", result.get("uniform", {})).get("together", {})
        rows += [_network_row(result, label, together[label]) for label in _LABELS if label in together]
    head = "network, assignment|latency|spread|top-1 (final)|loss|build|moves|changes of precision"
    return table(head.split("|"), rows)


def _network_row(result: Results, label: str, measured: Mapping[str, float]) -> list[str]:
    uniform = result.get("uniform", {})
    built = uniform.get("free", {}) if label == "free" else uniform.get("rows", {}).get(label, {})
    chosen = result.get("compare", {}).get("chosen", {}).get(label, built)
    built = built or chosen
    return [
        f"{NAMES.get(result['network'], result['network'])}, {_LABELS[label]}{_mix(chosen.get('a', ''))}",
        f"{measured['ms']:.4f} ms",
        _percent(measured["spread"]),
        _percent(measured["value"]),
        f"{100 * measured['loss']:.2f} ± {50 * (measured['loss_high'] - measured['loss_low']):.2f} points",
        _seconds(built.get("build", built.get("build_s"))),
        _count(built.get("moves")),
        _count(chosen.get("changes")),
    ]


def verdicts(results: Sequence[Results]) -> str:
    rows: list[list[str]] = []
    for result in results:
        found = result.get("compare", {}).get("verdict", {})
        if found:
            int8 = found.get("pick_over_int8")
            won = found.get("won_back")
            met = int8 is not None and won is not None and won >= 0.95 and int8 <= 1.10
            rows.append(
                [
                    _name(result),
                    str(evaluations(result) or ""),
                    "INT8 loses nothing" if won is None else _percent(won),
                    _times(int8),
                    _times(found.get("pick_over_fastest")),
                    _times(found.get("free_over_match")),
                    "" if won is None else "met" if met else "missed",
                ]
            )
    head = "network|evaluations|INT8 loss won back by the pick|pick ÷ INT8|pick ÷ fastest uniform|"
    return table(f"{head}TensorRT's own choice ÷ search at no more loss|≥ 95 % at ≤ 1.10×".split("|"), rows)


def throughput(results: Sequence[Results]) -> str:
    rows: list[list[str]] = []
    for result in results:
        found = result.get("throughput", {})
        if found:
            steady = found.get("shares", {}).get("steady_per_hour")
            rows.append(
                [
                    _name(result),
                    f"{found['evaluations']} in {found['seconds']:.0f} s",
                    f"{found['per_hour']:.0f}",
                    "" if steady is None else f"{steady:.0f}",
                ]
            )
    return table("network, one search from its start|evaluations|an hour|the median one an hour".split("|"), rows)


def shares(results: Sequence[Results]) -> str:
    rows: list[list[str]] = []
    for result in results:
        s = result.get("throughput", {}).get("shares") or result.get("search", {})
        if "wall_s" in s:
            cells = [s[key] for key in ("build_s", "load_s", "latency_s", "run_s", "other_s", "between_s")]
            rows.append(
                [
                    _name(result),
                    f"{s['steady_per_hour']:.0f}",
                    *(f"{cell:.2f} s" for cell in cells),
                    _percent(s["other_share"]),
                ]
            )
    head = "network|the median evaluation an hour|parse, build|load, audit|latency|inference|rest|"
    return table(f"{head}of it between evaluations|share that is not TensorRT's".split("|"), rows)


def obedience(results: Sequence[Results]) -> str:
    rows: list[list[str]] = []
    for result in results:
        counts, mixes = result.get("obedience", {}).get("counts", {}), result.get("mixes", {})
        for code, name in _ASKED.items():
            found = [counts.get(f"{code} {answer}", 0) for answer in ("obeyed", "not obeyed", "opaque")]
            if sum(found):
                built = f"{mixes['built']} of {mixes['asked']}" if mixes.get("asked") else ""
                network = _name(result)
                rows.append([network, built, name, *(f"{n:,}" for n in found), _percent(found[0] / sum(found))])
    head = "network|mixes that build|groups asked|obeyed|not obeyed|opaque|obeyed"
    exceptions = [
        f"- {NAMES.get(result['network'], result['network'])}: {name} ({count}×)"
        for result in results
        for name, count in result.get("obedience", {}).get("exceptions", {}).items()
    ]
    listed = "\n\nNot obeyed:\n\n" + "\n".join(exceptions) if exceptions else ""
    return table(head.split("|"), rows) + listed


def scaling(results: Sequence[Results]) -> str:
    rows: list[list[str]] = []
    for result in results:
        found = result.get("scaling", {})
        for workers, run in found.get("runs", {}).items():
            against = found["against_one"].get(workers, {})
            rows.append(
                [
                    f"{NAMES.get(result['network'], result['network'])}, {workers}",
                    f"{run['an_hour']:.0f} (over {run['counted']})",
                    _times(against.get("ratio")),
                    "" if not against else f"{against['latency_median']:.4f}× over {against['assignments']}",
                    _percent(against.get("latency_within")),
                ]
            )
        rows += [
            [f"{NAMES.get(result['network'], result['network'])}, {w}", f"not measured: {why}", "", "", ""]
            for w, why in _left_out(found)
        ]
    head = "network, workers|evaluations an hour|of one worker's|latency of the same assignments|within 1.5 %"
    return table(head.split("|"), rows)


def _left_out(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    return list(found.get("left_out", {}).items())


def _name(result: Results) -> str:
    return NAMES.get(result["network"], str(result["network"]))


# -- cells -----------------------------------------------------------------------------------------------------------


def _mix(codes: str) -> str:
    counts = {name: codes.count(code) for code, name in _ASKED.items()}
    if sum(n > 0 for n in counts.values()) < 2:
        return ""
    return " (" + ", ".join(f"{n} {name}" for name, n in counts.items() if n) + ")"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %" if abs(share) < 0.1 else f"{100 * share:.1f} %"


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}×"


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f} s"


def _count(value: int | None) -> str:
    return "" if value is None else str(value)
