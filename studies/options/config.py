"""What one search is asked to do: the configuration, whose fields are the option table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from search.errors import ConfigError
from search.sampler.shipped import SHIPPED as SAMPLERS
from search.space.range_rules import RangeRule
from search.space.rules import KeepRule
from studies.options import value_kinds as kinds
from studies.options.builder_options import builder_options
from studies.options.limits import Bound, limit_options
from studies.options.option import Option, Verbs, make_row, option, read_stored
from studies.options.quantities import ShapeSpec
from studies.options.urls import DEFAULT_STORAGE, default_url


@dataclass(frozen=True)
class SearchConfig:
    """Every option of `bitfront search`, each field with its row of the option table.

    `check_config` says whether the values can be used. `storage` may hold a password: it is left out of `repr` and
    `to_json`. `overrides` names the options of the configuration file that the command line replaced, `given` all that
    were given by one of the two.

    Attributes:
        study: empty for the name of the model's file.
        limits: name of a limit → its bound, as it was written; see `studies.options.limits`.
        gpus, workers: worker processes to start on this host, see `slots`; None: this process works itself.
        builders: processes that only build, beside the one that measures; with none that one builds too.
        lease_s: without a sign of life for so long a worker counts as lost, and others do its work.
        repair: how many repairs a proposal gets whose build is refused.
        backend_options: `NAME=VALUE` each, for backends whose options have no names of their own here.
        builder_options: what other backends are told, by keyword as it declares it; `final_` before a keyword for
            what exports are built with.
    """

    model: str = option(
        kinds.TEXT,
        "The ONNX model, in float32.",
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
            "layers": "Calibrate too: ranges decide on FP16.",
            "sensitivity": "Of a model: its data. Of a study: where they are now.",
        },
    )
    study: str = option(
        kinds.STUDY, "Name of the study.", "", metavar="NAME", panel="Study", default_text="the model's file name"
    )
    limits: Mapping[str, Bound] = field(default_factory=dict)
    trials: int = option(
        kinds.whole(),
        "Distinct evaluations in total, baselines included.",
        60,
        metavar="N",
        verbs=Verbs.JOINING,
        panel="How long",
        helps=dict.fromkeys(("resume", "worker"), "New total of evaluations. [default: the study's own]"),
    )
    time_limit_s: float | None = option(
        kinds.DURATION,
        "Stop after so long: 30m, 1h30m.",
        None,
        name="time-limit",
        metavar="TIME",
        verbs=Verbs.CONTINUING,
        clearable=True,
        panel="How long",
    )
    sensitivity_time_s: float | None = option(
        kinds.DURATION,
        "Of the sensitivity pass.",
        None,
        name="sensitivity-time",
        metavar="TIME",
        verbs=("search", "sensitivity", "evaluate"),
        panel="How long",
        default_text="5 % of the study, 60s at most",
    )
    patience: int | None = option(
        kinds.whole(),
        "Stop after N evaluations without hypervolume gain.",
        None,
        metavar="N",
        verbs=Verbs.CONTINUING,
        clearable=True,
        panel="How long",
    )
    storage: str = option(
        kinds.STORAGE,
        "Study database.",
        default_url,
        metavar="URL",
        panel="Study",
        default_text=DEFAULT_STORAGE,
        repr=False,
    )
    artifacts: str | None = option(
        kinds.PLACE,
        "Folder, s3://… or gs://… of engines.",
        None,
        metavar="PLACE",
        panel="Study",
        default_text="beside the database",
    )
    backend: str = option(
        kinds.BACKEND, "auto, tensorrt, onnxruntime, fake.", "auto", metavar="NAME", verbs=Verbs.RUNNING, panel="Target"
    )
    backend_options: tuple[str, ...] = option(
        kinds.NAMED_VALUE,
        "NAME=VALUE, as the backend declares it; repeatable.",
        (),
        name="backend-option",
        metavar="OPTION",
        verbs=Verbs.RUNNING,
        many=True,
        panel="Target",
        from_json=tuple,
    )
    device: str = option(
        kinds.TEXT,
        "cpu, cuda, cuda:1.",
        "auto",
        metavar="NAME",
        verbs=Verbs.RUNNING,
        panel="Target",
        default_text="the backend's own",
    )
    gpus: str | None = option(
        kinds.GPUS,
        "A worker process per GPU of this host: all, how many, or which: 0,2.",
        None,
        metavar="GPUS",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    workers: int | None = option(
        kinds.whole(most=1024),
        "So many worker processes on this host's processor.",
        None,
        metavar="N",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    builders: int = option(
        kinds.whole(least=0, most=64),
        "Processes that only build, beside the one that measures.",
        0,
        metavar="N",
        verbs=Verbs.JOINING,
        panel="Workers",
    )
    metrics_port: int | None = option(
        kinds.PORT, "Serve metrics on 127.0.0.1.", None, metavar="PORT", verbs=Verbs.JOINING, panel="Workers"
    )
    lease_s: float = option(
        kinds.LEASE,
        "A worker silent for so long counts as lost.",
        60.0,
        name="lease",
        metavar="TIME",
        default_text="60s",
        verbs=Verbs.CONTINUING,
        panel="Workers",
    )
    threads: int = option(
        kinds.whole(most=4096),
        "Processor threads of one inference.",
        1,
        metavar="N",
        verbs=Verbs.RUNNING,
        panel="Target",
    )
    batch: int | None = option(
        kinds.whole(),
        "Leading dimension of dynamic inputs.",
        None,
        metavar="N",
        verbs=("search", *Verbs.ANALYSES, "gate"),
        panel="Target",
    )
    shapes: tuple[ShapeSpec, ...] = option(
        kinds.SHAPE,
        "NAME:32x3x224x224, or NAME:MIN:OPT:MAX; repeatable.",
        (),
        name="shape",
        metavar="SHAPE",
        verbs=("search", *Verbs.ANALYSES),
        many=True,
        panel="Target",
        from_json=kinds.shapes_from_json,
    )
    metric: str | None = option(
        kinds.METRIC,
        "top1 top5 agreement cosine sqnr mse miou map file.py:function",
        None,
        verbs=Verbs.SCORING,
        panel="Data",
    )
    decode: str | None = option(
        kinds.METRIC,
        "How map reads boxes: yolov5, yolov8, module:function.",
        None,
        metavar="LAYOUT",
        verbs=Verbs.SCORING,
        panel="Data",
    )
    calibration_data: str | None = option(
        kinds.TEXT,
        "Data to calibrate on, apart.",
        None,
        metavar="DATA",
        verbs=(*Verbs.BUILDING, "worker"),
        panel="Data",
        helps={"worker": "Where these are on this host."},
    )
    final_data: str | None = option(
        kinds.TEXT,
        "Data for the final score, apart.",
        None,
        metavar="DATA",
        verbs=(*Verbs.BUILDING, "worker"),
        panel="Data",
        helps={"worker": "Where these are on this host."},
    )
    preprocess: str | None = option(
        kinds.FUNCTION,
        "file.py:function or module:function that reads one image file.",
        None,
        verbs=Verbs.SCORING,
        panel="Data",
    )
    split_seed: int = option(
        kinds.whole(least=0, most=2**32 - 1),
        "Of the division of the data; fixed once a study is made.",
        0,
        metavar="N",
        verbs=(*Verbs.CONTINUING, "evaluate", "recover"),
        panel="Data",
    )
    calibration: str = option(
        kinds.one_of("auto", "minmax", "percentile", "entropy", "mse"),
        "auto: one for each tensor.",
        "auto",
        metavar="METHOD",
        verbs=("search", *Verbs.ANALYSES),
        panel="Data",
    )
    calibration_select: str = option(
        kinds.SELECTION, "all, or KIND:N.", "all", metavar="WHICH", verbs=("search", *Verbs.ANALYSES), panel="Data"
    )
    ranges: tuple[RangeRule, ...] = option(
        kinds.RANGE,
        "Of tensors whose name matches: 'REGEX=LOW:HIGH'; repeatable.",
        (),
        name="range",
        metavar="RULE",
        verbs=("search", *Verbs.ANALYSES),
        many=True,
        panel="Data",
        from_json=kinds.ranges_from_json,
    )
    calibration_cache: str | None = option(
        kinds.TEXT, "Ranges of a TensorRT cache.", None, metavar="FILE", panel="Data"
    )
    recover: str = option(
        kinds.STEPS, "auto, none, or names of steps.", "auto", verbs=Verbs.RECOVERING, metavar="STEPS", panel="Data"
    )
    sampler: str = option(
        kinds.SAMPLER, f"{', '.join(SAMPLERS)}, or module:Class.", "guided", metavar="NAME", panel="Search"
    )
    reward: tuple[float, float] = option(
        kinds.WEIGHTS, "Weights of rl, of accuracy first.", (0.6, 0.4), metavar="W,W", panel="Search", from_json=tuple
    )
    granularity: str = option(
        kinds.one_of("group", "block"),
        "One choice per group or per block.",
        "group",
        metavar="KIND",
        verbs=("search", "layers"),
        panel="Search",
    )
    keep: tuple[KeepRule, ...] = option(
        kinds.KEEP,
        "Keep layers whose name matches: 'REGEX=fp32'; repeatable.",
        (),
        metavar="RULE",
        verbs=("search", *Verbs.ANALYSES),
        many=True,
        panel="Search",
        from_json=kinds.keep_from_json,
    )
    seed: int = option(kinds.whole(least=0, most=2**32 - 1), "Of the sampler.", 0, metavar="N", panel="Search")
    keep_engines: str = option(
        kinds.one_of("front", "all", "none"), "all, front or none.", "front", metavar="WHICH", panel="Study"
    )
    evaluation_timeout_s: float = option(
        kinds.DURATION,
        "Of one evaluation.",
        600.0,
        name="evaluation-timeout",
        metavar="TIME",
        verbs=Verbs.BUILDING,
        panel="How long",
    )
    evaluation_memory_bytes: int | None = option(
        kinds.SIZE,
        "Limit of the evaluator process.",
        None,
        name="evaluation-memory",
        metavar="SIZE",
        verbs=Verbs.BUILDING,
        clearable=True,
        panel="How long",
    )
    repair: int = option(
        kinds.whole(least=0, most=1000), "Repairs of a refused assignment.", 0, metavar="N", panel="Search"
    )
    builder_options: Mapping[str, Any] = field(default_factory=dict)
    quiet: bool = option(kinds.TEXT, "Print nothing but errors.", False, flag=True, verbs=(), panel="Study")
    overrides: tuple[str, ...] = field(default=(), compare=False)
    given: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.study:
            object.__setattr__(self, "study", Path(self.model).stem)

    def builder_option(self, keyword: str) -> Any:
        """The value of a backend's option, its default where it was not given; None for what no backend has."""
        defaults = (row.default for row in builder_options() if row.item == keyword)
        return self.builder_options.get(keyword, next(defaults, None))

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of all that belongs to the study, not to one run of it: `_NOT_STORED` says what is not."""
        data = asdict(self)
        for row in item_options():
            data[row.item] = data[row.field].get(row.item, row.default)
        data["keep"] = [{"pattern": rule.pattern, "precision": rule.precision.label} for rule in self.keep]
        return {name: value for name, value in data.items() if name not in (*_NOT_STORED, *_MAPPINGS)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any], storage: str = DEFAULT_STORAGE) -> SearchConfig:
        """The inverse of `to_json`; keys that it lacks take their defaults.

        Raises:
            ConfigError: an option or limit is not known here, `model`, `data` or `study` is missing, or a value has
                another form than `to_json` gives.
        """
        rows = {row.key: row for row in (*own_options(), *item_options()) if row.key not in _NOT_STORED}
        try:
            return cls(**{"study": data["study"], **read_stored(data, rows, _MAPPINGS)}, storage=storage)
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(
                f"reading a stored configuration: expected what SearchConfig.to_json writes, got {error}; "
                "the database row is damaged or was written by another program"
            ) from error

    def changed(self, changes: Mapping[str, Any], given: tuple[str, ...] = ()) -> SearchConfig:
        """This configuration with other values: by field, by limit, or by keyword of the backend's option.

        A limit or an option of a backend that is None is taken away.

        Args:
            given: names of the options that the changes come from.
        """
        items = {row.item: row for row in item_options()}
        values = {name: value for name, value in changes.items() if name not in items}
        for name in _MAPPINGS:
            told = {key: value for key, value in changes.items() if key in items and items[key].field == name}
            merged = {**getattr(self, name), **told}
            values[name] = {key: value for key, value in merged.items() if value != items[key].default}
        return replace(self, **values, given=tuple(sorted({*self.given, *given})))


_MAPPINGS = ("limits", "builder_options")
_NOT_STORED = ("storage", "gpus", "workers", "metrics_port", "overrides", "given")


def own_options() -> tuple[Option, ...]:
    """The rows of the fields of `SearchConfig`, in their order."""
    described = [each for each in fields(SearchConfig) if each.metadata]
    return tuple(make_row(each.name, each.default, each.metadata["option"]) for each in described)


def item_options() -> tuple[Option, ...]:
    """The rows of the limits, then those of the backends."""
    return (*limit_options(), *builder_options())
