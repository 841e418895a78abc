"""Options of the metric, the samples and the calibration."""

from __future__ import annotations

from dataclasses import dataclass

from search.space.range_rules import RangeRule
from studies.options import value_kinds as kinds
from studies.options.option import NAMED_AGAIN, Verbs, option


@dataclass(frozen=True)
class DataFields:
    """Metric, data sets and calibration; `SearchConfig` has them all."""

    metric: str | None = option(
        kinds.METRIC,
        "How accuracy is measured: top1, top5, agreement, cosine, sqnr, mse, miou, map or file.py:function.",
        None,
        default_text="top1, agreement or sqnr, by labels and outputs",
        verbs=(*Verbs.SCORING, *Verbs.NAMING_AGAIN),
        panel="Data",
        helps=NAMED_AGAIN,
    )
    decode: str | None = option(
        kinds.METRIC,
        "How the metric map reads boxes from the outputs: boxes, yolov5, yolov8 or file.py:function.",
        None,
        metavar="LAYOUT",
        verbs=(*Verbs.SCORING, *Verbs.NAMING_AGAIN),
        panel="Data",
        helps=NAMED_AGAIN,
    )
    calibration_data: str | None = option(
        kinds.TEXT,
        "Separate data to calibrate on. Without this option, a part of --data is used.",
        None,
        metavar="DATA",
        verbs=(*Verbs.BUILDING, *Verbs.NAMING_AGAIN),
        panel="Data",
        helps=dict.fromkeys(Verbs.NAMING_AGAIN, "Where these data are on this host."),
    )
    final_data: str | None = option(
        kinds.TEXT,
        "Separate data for the final check of the recommended mixes. Without this option, a part of --data is used.",
        None,
        metavar="DATA",
        verbs=(*Verbs.BUILDING, *Verbs.NAMING_AGAIN),
        panel="Data",
        helps=dict.fromkeys(Verbs.NAMING_AGAIN, "Where these data are on this host."),
    )
    max_samples: int | None = option(
        kinds.whole(least=2),
        "Use at most this many samples of each data set.",
        None,
        metavar="N",
        verbs=(*Verbs.SCORING, "inspect", "sensitivity"),
        panel="Data",
    )
    no_cache: bool = option(
        kinds.TEXT,
        "Keep no copy on disk of the data that a function gives, and no ranges for later searches of the same model. "
        "The function is then called at every start, and every new study calibrates.",
        False,
        flag=True,
        verbs=Verbs.CONTINUING,
        panel="Data",
    )
    preprocess: str | None = option(
        kinds.PREPROCESS,
        "How image files become arrays: imagenet, unit, symmetric or file.py:function.",
        None,
        verbs=(*Verbs.SCORING, *Verbs.NAMING_AGAIN),
        panel="Data",
        helps=NAMED_AGAIN,
    )
    split_seed: int = option(
        kinds.whole(least=0, most=2**32 - 1),
        "Seed that divides the data into parts. It cannot be changed once the study is made.",
        0,
        metavar="N",
        verbs=(*Verbs.CONTINUING, "evaluate", "recover"),
        panel="Data",
    )
    calibration: str = option(
        kinds.one_of("auto", "minmax", "mean", "percentile", "entropy", "mse"),
        "How INT8 ranges are found: auto (the best for each tensor), minmax, mean, percentile, entropy or mse.",
        "auto",
        metavar="METHOD",
        verbs=("search", *Verbs.ANALYSES),
        panel="Data",
    )
    calibration_select: str = option(
        kinds.SELECTION,
        "Which samples are used for calibration: all, confident:N, diverse:N or worst:N.",
        "all",
        metavar="WHICH",
        verbs=("search", *Verbs.ANALYSES),
        panel="Data",
    )
    ranges: tuple[RangeRule, ...] = option(
        kinds.RANGE,
        "INT8 range of the tensors whose name matches, as 'REGEX=LOW:HIGH'. Can be repeated.",
        (),
        name="range",
        metavar="RULE",
        verbs=("search", *Verbs.ANALYSES),
        many=True,
        panel="Data",
        from_json=kinds.ranges_from_json,
    )
    calibration_cache: str | None = option(
        kinds.TEXT,
        "Read INT8 ranges from a calibration cache of TensorRT.",
        None,
        metavar="FILE",
        verbs=("search", "export"),
        panel="Data",
    )
    recover: str = option(
        kinds.STEPS,
        "Steps that reduce the loss of INT8 at no cost in latency: auto, none, or names of steps.",
        "auto",
        verbs=Verbs.RECOVERING,
        metavar="STEPS",
        panel="Data",
    )
