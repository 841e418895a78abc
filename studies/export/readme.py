"""`README.md` of an export: what the engine is, its figures, and how to run it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from evaluators.backends.kind import SOURCE_FILE
from evaluators.backends.registry import known_kind
from evaluators.metrics.own.handed_metric import is_handed
from evaluators.metrics.registry import BUILT_IN
from search.values import THREAD_CLOCK, LossEstimate
from studies.export.explicit import EXPLICIT_FILE
from studies.judging.rounding import (
    bounded_text,
    estimate_text,
    half_width,
    latency_text,
    rate_text,
    shown_score_text,
    speedup_text,
    value_text,
)
from studies.judging.standing import Standing

README, FINAL_SAMPLES = "README.md", "final_samples.json"
_TOP1 = "top1"
_FILES = {
    "run.py": "runs the engine with its runtime and numpy alone: `python run.py --help`",
    "model.float.onnx": "your model in float32, with the weights as recovery changed them",
    EXPLICIT_FILE: "the mix with its types written out, for strongly typed networks of TensorRT 10 and 11",
    "layers.json": "the precision of each layer; `bitfront inspect` shows it",
    "profile.json": "the time of each layer",
    "ranges.json": "the calibrated ranges",
    "calibration.cache": "the same ranges as a calibration cache of TensorRT",
    "final_samples.json": "which rows of your data are the final samples, which the figures above are of",
    "manifest.json": "everything about this engine as JSON, with the digests of all files",
    "triton": "a model repository for the Triton Inference Server",
    "handover": "the mix for other tools",
}


def readme_text(
    manifest: Mapping[str, Any], now: Standing, engine_file: str, names: Collection[str], batch: str
) -> str:
    """The text, in Markdown.

    Args:
        manifest: what the manifest says, before its list of files.
        now: the study, for its metric.
        engine_file: name of the engine.
        names: what else lies in the folder.
        batch: that the batch is frozen, as a sentence; empty if it is not.
    """
    title = f"# {_plain(manifest['study'])}: trial {manifest['trial']}"
    chosen = manifest["pick"] if manifest["pick"].startswith("trial") else f"the pick `{manifest['pick']}`"
    blocks = [
        title,
        f"An engine that bitfront {manifest['bitfront']} chose and measured, {chosen} of study "
        f"`{_plain(manifest['study'])}`. The model was `{_plain(manifest['model']['path'])}`.",
        _table("figure", "value", _figures(manifest, now)),
        *_samples_text(manifest, now),
        *([f"{manifest['no_gain']}."] if manifest["no_gain"] else []),
        *([] if not manifest["warnings"] else ["\n".join(f"- **{text}**" for text in manifest["warnings"])]),
        "## Run it",
        _how_to_run(manifest, engine_file, names),
        *_how_to_check(manifest, names, now.study.config.get("decode")),
        *([] if not batch else [f"Mind that {batch}"]),
        _measurement_text(manifest["latency"]["doubts"], known=known_kind(manifest["target"]["backend"]) is not None),
        "## Files",
        _table("file", "what it is", _file_rows(manifest["target"]["backend"], engine_file, names)),
    ]
    return "\n\n".join(blocks) + "\n"


def _figures(manifest: Mapping[str, Any], now: Standing) -> list[tuple[str, str]]:
    latency, target, final = manifest["latency"], manifest["target"], manifest["final"]
    speedup, took = latency["speedup_over_fp32"], latency_text(latency["value_ms"], latency["tie_band"])
    faster = latency["speedup_over_file"]
    took += " (doubtful, see below)" if latency["doubts"] else ""
    versions = ", ".join(f"{name} {version}" for name, version in target["versions"].items())
    options = ", ".join(f"{name} {value}" for name, value in target["options"].items())
    batch = manifest["model"]["inputs"][0][2][0]
    statistic = latency["statistic"] + (" processor time" if latency.get("clock") == THREAD_CLOCK else "")
    return [
        ("latency", f"{took} for one batch of {batch} ({statistic})"),
        ("samples a second", rate_text(latency["samples_per_s"], missing="–")),
        ("speed against FP32", _speed_text(speedup, latency["speedup_doubtful"])),
        *([("speed against the file as given", f"{speedup_text(faster)} ×")] if faster else []),
        *_accuracy_rows("search data", manifest["search"], now),
        *_accuracy_rows("final data, which the search never saw", final, now, final["loss_text"]),
        ("limits on the final data", _limits_text(manifest)),
        ("precisions", _precisions_text(manifest["precision"])),
        ("size of the engine", f"{manifest['engine_bytes'] / 1e6:.3g} MB"),
        ("device", _plain(target["device"])),
        ("measured with", _plain(f"{target['backend']}: {versions}; {options}")),
    ]


def _speed_text(speedup: float | None, doubtful: bool) -> str:
    if speedup is None:
        return "–"
    return "not known, because a latency is doubtful" if doubtful else f"{speedup_text(speedup)} ×"


def _accuracy_rows(where: str, score: Mapping[str, Any], now: Standing, loss: str = "") -> list[tuple[str, str]]:
    if score.get("loss") is None:
        return []
    low, high, samples = score["loss_low"], score["loss_high"], f"{score['samples']:,} samples"
    if now.metric.relative:
        estimate = LossEstimate(score["loss"], low, high, score["samples"], score["value"])
        text = bounded_text(score["value"], score["metric_bound"], now.metric) if loss else ""
        return [(f"{score['metric']} on the {where}", f"{text or shown_score_text(estimate, now.metric)} on {samples}")]
    value = value_text(score["value"], half_width(low, high), now.metric)
    loss = loss or estimate_text(score["loss"], low, high, now.metric)
    return [(f"{score['metric']} on the {where}", f"{value}, loss {loss} on {samples}")]


def _samples_text(manifest: Mapping[str, Any], now: Standing) -> list[str]:
    """Why the metric is not the same on both data, where it differs by more than the losses are uncertain."""
    scores = manifest["search"], manifest["final"]
    if any(score.get("value") is None for score in scores):
        return []
    halves = [half_width(score["loss_low"], score["loss_high"]) for score in scores]
    apart = abs(scores[0]["value"] - scores[1]["value"])
    if not apart > max(halves):
        return []
    shown = [value_text(score["value"], half, now.metric) for score, half in zip(scores, halves, strict=True)]
    return [
        f"The {now.metric.name} of {shown[0]} and of {shown[1]} are of different samples, which are not equally hard. "
        "Compare the losses instead: each is the difference to FP32 on the same samples."
    ]


def _measurement_text(doubts: Sequence[str], *, known: bool) -> str:
    """What the latency is valid for, and what was doubtful when it was measured.

    Args:
        known: whether this installation knows the backend, and so what is to be said of all its numbers.
    """
    none = " Nothing was doubtful in that measurement." if known else ""
    doubt = f" It is doubtful: {'; '.join(doubts)}." if doubts else none
    return (
        f"The latency was measured on the device named above.{doubt} On another device the mix still runs if its "
        "operators do, but another mix may be faster there."
    )


_VERDICTS = {
    "kept": "with 95 % certainty",
    "likely": "by the estimate of the loss, but not with 95 % certainty",
    "missed": "this engine does **not** keep the limits",
}


def _limits_text(manifest: Mapping[str, Any]) -> str:
    if manifest["final"]["limits_hold"] is None:
        return "none were given"
    verdict = manifest["final"]["verdict"]
    return f"{verdict}, {_VERDICTS[verdict]}"


def _precisions_text(precisions: Mapping[str, str]) -> str:
    counts = Counter(precisions.values())
    return ", ".join(f"{count} of {len(precisions)} layers in {label.upper()}" for label, count in counts.most_common())


def _how_to_run(manifest: Mapping[str, Any], engine_file: str, names: Collection[str]) -> str:
    batch = ", ".join(f"'{_plain(name)}': array" for name, *_ in manifest["model"]["inputs"])
    if "run.py" not in names:
        return "bitfront knows no way to run engines of this backend without it."
    return (
        "```\npython run.py                                    # random inputs: outputs' shapes and a latency\n"
        "python run.py --data samples.npz --out out.npz   # your own: one array for each input, samples first\n```\n\n"
        "The script sets the options that the latency was measured with. `bitfront` is not needed. Copy its class "
        f'`Engine` into your program: `Engine(Path("{engine_file}")).run({{{batch}}})` gives the outputs of a batch '
        "by name."
    )


_CHECK = """```python
import json, subprocess, sys
from pathlib import Path
from urllib.parse import unquote

import numpy as np


def parts(place):  # the arrays by name, and the numbers of their samples; samples of other shapes lie in form-*
    if not place.is_dir():
        yield np.load(place), None
        return
    for folder in (place, *sorted(place.glob("form-*"))):
        arrays = {unquote(file.stem): np.load(file, mmap_mode="r") for file in folder.glob("*.npy")}
        yield arrays, arrays.pop(".rows", None)


names, right = INPUTS, []
final = json.loads(Path("final_samples.json").read_text())
for data, numbers in parts(Path(final["data"])):
    numbers = np.arange(len(data[names[0]])) if numbers is None else numbers
    rows = np.flatnonzero(np.isin(numbers, final["rows"]))
    if not len(rows):
        continue
    np.savez("final.npz", **{name: data[name][rows] for name in names})
    subprocess.run([sys.executable, "run.py", "--data", "final.npz", "--out", "out.npz"], check=True)
    outputs = np.load("out.npz")
    labels = {name.removeprefix("labels."): data[name][rows] for name in data if name.split(".")[0] == "labels"}
    labels = labels.get("labels", labels)SCORE
```"""
_SCORE_TOP1 = """
    scores = next(outputs[name] for name in outputs.files if outputs[name].dtype.kind == "f")
    right.extend(scores.argmax(axis=1) == labels)
print("top1", np.mean(right))"""
# Of metrics over all samples; it needs bitfront.
_BEGIN = "\nfrom evaluators.metrics.registry import get_metric\n\nstate = get_metric({}).accumulator()"
_SCORE_ALL = """
    state.update(dict(outputs), labels, count=len(rows))
print("METRIC", state.compute())"""


def _how_to_check(manifest: Mapping[str, Any], names: Collection[str], decode: str | None = None) -> list[str]:
    """How to run the engine on the final samples, so that the accuracy above can be computed again.

    Args:
        decode: what gives boxes to the metric, where that is not the default.
    """
    if FINAL_SAMPLES not in names or "run.py" not in names:
        return []
    metric = str(manifest["final"]["metric"])
    script = _CHECK.replace("INPUTS", repr([name for name, _, _ in manifest["model"]["inputs"]]))
    over_all = metric in BUILT_IN and BUILT_IN[metric].kind == "accumulating"
    score = _SCORE_TOP1 if metric == _TOP1 else _SCORE_ALL.replace("METRIC", metric) if over_all else ""
    if over_all:
        call = f'"{metric}"' + ("" if decode is None else f", {json.dumps(decode)}")
        script = script.replace("\n\n\ndef parts", f"{_BEGIN.format(call)}\n\n\ndef parts")
    gives = "gives the engine's outputs on these samples, and their labels beside them"
    gives += ", and prints the accuracy" if score else ""
    gives += ", in an environment with bitfront" if over_all else ""
    return [
        "## Check the accuracy",
        f"The accuracy on the final data is that of {manifest['final']['samples']:,} samples. `{FINAL_SAMPLES}` has "
        "their rows, counted from 0, in the data that it names. If those are an `.npz` file or a folder of `.npy` "
        f"files, as bitfront writes it for a data loader, this script {gives}:",
        script.replace("SCORE", score),
        *([] if score else [_scored_text(metric)]),
    ]


def _scored_text(metric: str) -> str:
    """Which function computes the accuracy from the outputs and labels of the script."""
    place, _, name = metric.rpartition(":")
    if place:
        return f"The function or class `{name}` of `{place}` scores them: it is called with `outputs` and `labels`."
    if is_handed(metric):
        name = metric.partition("@")[0]
        return (
            f"The function or class `{name}` scores them, which your program gave to bitfront as `metric`: it is "
            "called with `outputs` and `labels`."
        )
    return (
        f"bitfront's own metric `{metric}` scores them. In an environment with bitfront, "
        f'`evaluators.metrics.registry.get_metric("{metric}")` has the function that does it.'
    )


def _file_rows(backend: str, engine_file: str, names: Collection[str]) -> list[tuple[str, str]]:
    """A row for each file that is there, those of the backend first."""
    kind = known_kind(backend)
    engine = {engine_file: "the engine: an ONNX file" if engine_file == SOURCE_FILE else "the engine"}
    about = {**engine, SOURCE_FILE: "the ONNX file that the engine was built from", **engine}
    about |= {**({} if kind is None else kind.export_files), **_FILES}
    return [(f"`{name}`", text) for name, text in about.items() if name in names]


def _table(first: str, second: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {first} | {second} |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    return "\n".join(lines)


def _plain(text: str) -> str:
    """Text that cannot end a table's cell, a line or a code span."""
    return re.sub(r"[|`\s]+", " ", text)
