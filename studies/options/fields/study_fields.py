"""Options that say what is searched, for how long, where it is kept, and on what it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from search.space.capability_rules import CapabilityRules
from studies.options import value_kinds as kinds
from studies.options.limits import Bound
from studies.options.option import Verbs, option
from studies.options.quantities import ShapeSpec
from studies.options.urls import DEFAULT_STORAGE, default_url


@dataclass(frozen=True)
class StudyFields:
    """Model, data, study, limits, time, target and workers; `SearchConfig` has them all."""

    model: str = option(
        kinds.TEXT,
        "The ONNX model to search, in float32.",
        metavar="FILE",
        verbs=(*Verbs.READING_FILES, *Verbs.FRESH),
        argument=("search", "layers", "evaluate", "recover"),
        panel="Study",
        helps=dict.fromkeys((*Verbs.READING_STUDIES, *Verbs.FRESH), "Where the model file is now, if it has moved."),
    )
    data: str = option(
        kinds.TEXT,
        "Calibration and evaluation data: .npz, .npy, folder, file.py:function.",
        metavar="DATA",
        verbs=(*Verbs.READING_FILES, *Verbs.FRESH, "gate"),
        panel="Study",
        helps={
            **dict.fromkeys(Verbs.FRESH, "The fresh data: .npz, .npy, folder, file.py:function."),
            **dict.fromkeys(Verbs.READING_STUDIES, "Where the data are now, if they have moved."),
            "layers": "Data to calibrate on; their ranges decide where FP16 is offered.",
            "sensitivity": "For a model: its data. For a study: where its data are now.",
        },
    )
    study: str = option(
        kinds.STUDY, "Name of the study.", "", metavar="NAME", panel="Study", default_text="the model's file name"
    )
    limits: Mapping[str, Bound] = field(default_factory=dict)
    trials: int = option(
        kinds.whole(),
        "How many distinct mixes are evaluated in total, baselines included.",
        60,
        metavar="N",
        verbs=Verbs.JOINING,
        panel="How long",
        helps=dict.fromkeys(("resume", "worker"), "New total of evaluations. [default: the study's own]"),
    )
    time_limit_s: float | None = option(
        kinds.DURATION,
        "End the command after this time, for example 30m or 1h30m.",
        None,
        name="time-limit",
        metavar="TIME",
        verbs=Verbs.CONTINUING,
        clearable=True,
        panel="How long",
    )
    sensitivity_time_s: float | None = option(
        kinds.DURATION,
        "Time for measuring how sensitive each layer is.",
        None,
        name="sensitivity-time",
        metavar="TIME",
        verbs=("search", "sensitivity", "evaluate"),
        panel="How long",
        default_text="5 % of the study, 60s at most",
    )
    patience: int | None = option(
        kinds.whole(),
        "Stop after N evaluations that did not improve the front.",
        None,
        metavar="N",
        verbs=Verbs.CONTINUING,
        clearable=True,
        panel="How long",
    )
    storage: str = option(
        kinds.STORAGE,
        "URL of the study database.",
        default_url,
        metavar="URL",
        panel="Study",
        default_text=DEFAULT_STORAGE,
        repr=False,
    )
    artifacts: str | None = option(
        kinds.PLACE,
        "Where engines are kept: a folder, s3://… or gs://….",
        None,
        metavar="PLACE",
        panel="Study",
        default_text="beside the database",
    )
    backend: str = option(
        kinds.BACKEND,
        "What builds and runs engines: auto, tensorrt, onnxruntime or fake.",
        "auto",
        metavar="NAME",
        verbs=Verbs.RUNNING,
        panel="Target",
    )
    backend_options: tuple[str, ...] = option(
        kinds.NAMED_VALUE,
        "An option of the backend, as NAME=VALUE; repeatable.",
        (),
        name="backend-option",
        metavar="OPTION",
        verbs=Verbs.RUNNING,
        many=True,
        panel="Target",
        from_json=tuple,
    )
    capabilities: CapabilityRules | None = option(  # noqa: RUF009 - it makes a field
        kinds.CAPABILITIES,
        "File that says what the target runs, where that is less than the backend does.",
        None,
        metavar="FILE",
        verbs=Verbs.ON_HOST,
        clearable=True,
        panel="Target",
        from_json=kinds.capabilities_from_json,
    )
    device: str = option(
        kinds.TEXT,
        "Device that candidates run on: cpu, cuda or cuda:1.",
        "auto",
        metavar="NAME",
        verbs=Verbs.RUNNING,
        panel="Target",
        default_text="the backend's own",
    )
    gpus: str | None = option(
        kinds.GPUS,
        "Start a worker process per GPU of this host: all, a number, or a list such as 0,2.",
        None,
        metavar="GPUS",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    workers: int | None = option(
        kinds.whole(most=1024),
        "Start this many worker processes on the processor of this host.",
        None,
        metavar="N",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    builders: int = option(
        kinds.whole(least=0, most=64),
        "Start this many processes that only build, beside the one that measures.",
        0,
        metavar="N",
        verbs=Verbs.JOINING,
        panel="Workers",
    )
    metrics_port: int | None = option(
        kinds.PORT,
        "Port on 127.0.0.1 where Prometheus can read the progress.",
        None,
        metavar="PORT",
        verbs=Verbs.JOINING,
        panel="Workers",
    )
    lease_s: float = option(
        kinds.LEASE,
        "A worker that is silent for this time counts as lost.",
        60.0,
        name="lease",
        metavar="TIME",
        default_text="60s",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    threads: int = option(
        kinds.whole(most=4096),
        "How many processor threads one inference uses.",
        1,
        metavar="N",
        verbs=Verbs.RUNNING,
        panel="Target",
    )
    batch: int | None = option(
        kinds.whole(),
        "Batch size: the size of the leading dimension of dynamic inputs.",
        None,
        metavar="N",
        verbs=("search", *Verbs.ANALYSES, "gate"),
        panel="Target",
    )
    shapes: tuple[ShapeSpec, ...] = option(
        kinds.SHAPE,
        "Shape of a dynamic input, as NAME:32x3x224x224 or NAME:MIN:OPT:MAX; repeatable.",
        (),
        name="shape",
        metavar="SHAPE",
        verbs=("search", *Verbs.ANALYSES),
        many=True,
        panel="Target",
        from_json=kinds.shapes_from_json,
    )
