"""Options that say what outputs are scored with, which samples are used, and how ranges are found."""

from __future__ import annotations

from dataclasses import dataclass

from search.space.range_rules import RangeRule
from studies.options import value_kinds as kinds
from studies.options.option import Verbs, option


@dataclass(frozen=True)
class DataFields:
    """Metric, data sets and calibration; `SearchConfig` has them all."""

    metric: str | None = option(
        kinds.METRIC,
        "top1 top5 agreement cosine sqnr mse miou map file.py:function",
        None,
        verbs=Verbs.SCORING,
        panel="Data",
    )
    decode: str | None = option(
        kinds.METRIC,
        "How map reads boxes from the outputs: boxes, yolov5, yolov8 or module:function.",
        None,
        metavar="LAYOUT",
        verbs=Verbs.SCORING,
        panel="Data",
    )
    calibration_data: str | None = option(
        kinds.TEXT,
        "Separate data for calibration, in place of a part of --data.",
        None,
        metavar="DATA",
        verbs=(*Verbs.BUILDING, "worker"),
        panel="Data",
        helps={"worker": "Where these data are on this host."},
    )
    final_data: str | None = option(
        kinds.TEXT,
        "Separate data for the final score, in place of a part of --data.",
        None,
        metavar="DATA",
        verbs=(*Verbs.BUILDING, "worker"),
        panel="Data",
        helps={"worker": "Where these data are on this host."},
    )
    max_samples: int | None = option(
        kinds.whole(least=2),
        "Take at most so many samples of each data set.",
        None,
        metavar="N",
        verbs=(*Verbs.SCORING, "layers", "sensitivity"),
        panel="Data",
    )
    no_cache: bool = option(
        kinds.TEXT,
        "Keep no copy of what a function of --data gives: call it at every start.",
        False,
        flag=True,
        verbs=Verbs.CONTINUING,
        panel="Data",
    )
    preprocess: str | None = option(
        kinds.PREPROCESS,
        "How an image file is read: imagenet, unit, symmetric, file.py:function.",
        None,
        verbs=Verbs.SCORING,
        panel="Data",
    )
    split_seed: int = option(
        kinds.whole(least=0, most=2**32 - 1),
        "Seed that divides the data; fixed once the study is made.",
        0,
        metavar="N",
        verbs=(*Verbs.CONTINUING, "evaluate", "recover"),
        panel="Data",
    )
    calibration: str = option(
        kinds.one_of("auto", "minmax", "percentile", "entropy", "mse"),
        "How ranges are found: auto (chosen for each tensor), minmax, percentile, entropy or mse.",
        "auto",
        metavar="METHOD",
        verbs=("search", *Verbs.ANALYSES),
        panel="Data",
    )
    calibration_select: str = option(
        kinds.SELECTION,
        "Calibration samples to use: all, confident:N, diverse:N or worst:N.",
        "all",
        metavar="WHICH",
        verbs=("search", *Verbs.ANALYSES),
        panel="Data",
    )
    ranges: tuple[RangeRule, ...] = option(
        kinds.RANGE,
        "INT8 range of tensors whose name matches, as 'REGEX=LOW:HIGH'; repeatable.",
        (),
        name="range",
        metavar="RULE",
        verbs=("search", *Verbs.ANALYSES),
        many=True,
        panel="Data",
        from_json=kinds.ranges_from_json,
    )
    calibration_cache: str | None = option(
        kinds.TEXT, "Take ranges from a calibration cache of TensorRT.", None, metavar="FILE", panel="Data"
    )
    recover: str = option(
        kinds.STEPS,
        "How INT8 is made to lose less at no cost in latency: auto, none, or names of steps.",
        "auto",
        verbs=Verbs.RECOVERING,
        metavar="STEPS",
        panel="Data",
    )
