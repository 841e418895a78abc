"""Options of the model, the study, its storage, its duration and its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from evaluators.backends.registry import BACKENDS
from search.space.capability_rules import CapabilityRules
from studies.options import value_kinds as kinds
from studies.options.limits import Bound
from studies.options.option import Verbs, option
from studies.options.quantities import ShapeSpec
from studies.options.urls import DEFAULT_STORAGE, default_url

_BACKENDS = tuple(BACKENDS.shipped)


@dataclass(frozen=True)
class StudyFields:
    """Model, data, study, limits, time, target and workers; `SearchConfig` has them all."""

    model: str = option(
        kinds.TEXT,
        "The ONNX file of the model: in floats, or quantized already.",
        metavar="FILE",
        verbs=(*(verb for verb in Verbs.READING_FILES if verb != "inspect"), "drift"),
        argument=("search", "evaluate", "recover"),
        panel="Study",
        helps=dict.fromkeys(
            (*Verbs.READING_STUDIES, "drift"), "The model's file, if it has moved since the study was made."
        ),
    )
    data: str = option(
        kinds.TEXT,
        "Samples to calibrate on and to measure the accuracy with: a .npz or .npy file, a folder, or file.py:function.",
        metavar="DATA",
        verbs=(*Verbs.READING_FILES, "drift", "gate"),
        panel="Study",
        helps={
            **dict.fromkeys(Verbs.READING_STUDIES, "The study's data, if they have moved since it was made."),
            "drift": "The fresh samples: a .npz or .npy file, a folder, or file.py:function.",
            "resume": "The study's data, if they have moved since it was made; with --as the fresh samples.",
            "inspect": "Samples to calibrate a float model on. The ranges of their activations decide which layers may "
            "run in FP16.",
            "sensitivity": "Samples to run an ONNX file on. Of a study: its data, if they have moved since it was "
            "made.",
        },
    )
    study: str = option(
        kinds.STUDY,
        "Name of the study in its database.",
        "",
        metavar="NAME",
        panel="Study",
        default_text="the model's file name",
    )
    limits: Mapping[str, Bound] = field(default_factory=dict)
    trials: int = option(
        kinds.whole(),
        "How many different mixes of precisions are evaluated in total, including the baselines.",
        60,
        metavar="N",
        verbs=Verbs.JOINING,
        panel="How long",
        helps=dict.fromkeys(("resume", "worker"), "New total number of evaluations. [default: the study's own]"),
    )
    time_limit_s: float | None = option(
        kinds.DURATION,
        "Stop the command after this time, for example 30m or 1h30m. It counts from the start of the command, with "
        "calibration and waiting for other processes.",
        None,
        name="time-limit",
        metavar="TIME",
        verbs=Verbs.CONTINUING,
        clearable=True,
        panel="How long",
    )
    sensitivity_time_s: float | None = option(
        kinds.DURATION,
        "Time to spend on measuring how much each layer alone loses in a lower precision.",
        None,
        name="sensitivity-time",
        metavar="TIME",
        verbs=("search", "sensitivity", "evaluate"),
        panel="How long",
        default_text="5 % of the study, 60s at most",
    )
    recover_time_s: float | None = option(
        kinds.DURATION,
        "Time to spend on the recovery steps together, for example 10m.",
        None,
        name="recover-time",
        metavar="TIME",
        verbs=("search", "evaluate", "recover"),
        panel="How long",
        default_text="60s, or 5 % of the study if that is more; less under a short --time-limit",
    )
    patience: int | str | None = option(
        kinds.PATIENCE,
        "When to stop before all trials are done. auto: when no mix is expected to be better than what was found by "
        "more than can be measured, which only the sampler guided can tell. N: when N evaluations in a row have not "
        "improved the Pareto front. none: never.",
        kinds.AUTO,
        metavar="N",
        verbs=Verbs.CONTINUING,
        clearable=True,
        panel="How long",
    )
    storage: str = option(
        kinds.STORAGE,
        "URL of the database that keeps the study.",
        default_url,
        metavar="URL",
        panel="Study",
        default_text=DEFAULT_STORAGE,
        repr=False,
    )
    trust_functions: bool = option(
        kinds.TEXT,
        "Run the functions that the study names, such as its metric, also if they were never named on this machine.",
        False,
        flag=True,
        verbs=(*Verbs.READING_STUDIES, "drift"),
        panel="Study",
    )
    artifacts: str | None = option(
        kinds.PLACE,
        "Where engines are stored: a folder, s3://… or gs://….",
        None,
        metavar="PLACE",
        panel="Study",
        default_text="beside the database",
    )
    backend: str = option(
        kinds.BACKEND,
        f"The runtime that builds and runs engines: {', '.join(['auto', *_BACKENDS[:-1]])} or {_BACKENDS[-1]}.",
        "auto",
        metavar="NAME",
        verbs=Verbs.RUNNING,
        panel="Target",
    )
    backend_options: tuple[str, ...] = option(
        kinds.NAMED_VALUE,
        "An option of the backend, as NAME=VALUE. Can be repeated.",
        (),
        default_text="the backend's own defaults",
        name="backend-option",
        metavar="OPTION",
        verbs=Verbs.RUNNING,
        many=True,
        panel="Target",
        from_json=tuple,
    )
    capabilities: CapabilityRules | None = option(  # noqa: RUF009 - it makes a field
        kinds.CAPABILITIES,
        "File that lists what the target can run, if that is less than the backend supports.",
        None,
        metavar="FILE",
        verbs=Verbs.ON_HOST,
        clearable=True,
        panel="Target",
        from_json=kinds.capabilities_from_json,
    )
    device: str = option(
        kinds.TEXT,
        "Device that engines run on: cpu, cuda or cuda:1.",
        "auto",
        metavar="NAME",
        verbs=Verbs.RUNNING,
        panel="Target",
        default_text="the backend's own",
    )
    gpus: str | None = option(
        kinds.GPUS,
        "Start one worker process for each GPU of this host: all, a number of GPUs, or a list such as 0,2.",
        None,
        metavar="GPUS",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    workers: int | None = option(
        kinds.whole(most=1024),
        "Start this many worker processes on the CPU of this host.",
        None,
        metavar="N",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    builders: int | None = option(
        kinds.whole(least=0, most=64),
        "Start this many processes that only build engines, beside the one that measures them.",
        None,
        default_text="2 for TensorRT where 8 processors and 16 GiB are free, else 0",
        metavar="N",
        verbs=Verbs.JOINING,
        panel="Workers",
    )
    metrics_port: int | None = option(
        kinds.PORT,
        "Port on 127.0.0.1 where Prometheus can read the progress of the search.",
        None,
        metavar="PORT",
        verbs=Verbs.JOINING,
        panel="Workers",
    )
    lease_s: float = option(
        kinds.LEASE,
        "A worker that does not report for this time counts as lost, and another takes over its evaluation.",
        60.0,
        name="lease",
        metavar="TIME",
        default_text="60s",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    threads: int = option(
        kinds.whole(most=4096),
        "How many CPU threads one inference uses.",
        1,
        metavar="N",
        verbs=Verbs.RUNNING,
        panel="Target",
    )
    batch: int | None = option(
        kinds.whole(),
        "Batch size, where the first dimension of inputs is dynamic. It fixes the batch: engines take no other size.",
        None,
        metavar="N",
        verbs=("search", *Verbs.ANALYSES, "gate", "export"),
        panel="Target",
    )
    shapes: tuple[ShapeSpec, ...] = option(
        kinds.SHAPE,
        "Shape of a dynamic input, as NAME:32x3x224x224 or NAME:MIN:OPT:MAX. Can be repeated.",
        (),
        name="shape",
        metavar="SHAPE",
        verbs=("search", *Verbs.ANALYSES, "export"),
        many=True,
        panel="Target",
        from_json=kinds.shapes_from_json,
    )
    input_values: tuple[str, ...] = option(
        kinds.TEXT,
        "Value of an input that is the same for all samples and has no batch axis, as sr=16000. It becomes a "
        "constant of the model. Can be repeated.",
        (),
        name="input-value",
        metavar="NAME=VALUE",
        verbs=("search", *Verbs.ANALYSES, "export"),
        many=True,
        panel="Target",
        from_json=tuple,
    )
