"""The configuration of a search, whose fields are the rows of the option table, and that table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from search.errors import ConfigError
from search.sampler.shipped import SHIPPED as SAMPLERS
from search.space.rules import KeepRule
from search.values.shape import check_shape
from search.values.target import FREE
from studies.options import value_kinds as kinds
from studies.options.backend_options import builder_options, export_options
from studies.options.diagnosis.thresholds import threshold_options
from studies.options.fields.data_fields import DataFields
from studies.options.fields.study_fields import StudyFields
from studies.options.limits import limit_options
from studies.options.option import NAMED_AGAIN, Option, Verbs, make_row, option, read_stored
from studies.options.urls import DEFAULT_STORAGE

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

    from search.sampler.kinds import SamplerKind


@dataclass(frozen=True)
class SearchConfig(DataFields, StudyFields):
    """All options of `bitfront search`, each as a field with its row of the option table.

    `check_config` checks the values. `storage` may contain a password, so `repr` and `to_json` leave it out.
    `overrides` names the options of the configuration file that the command line replaced, `given` all options that
    were given.

    Attributes:
        study: the name of the study; empty for the name of the model's file.
        limits: bounds by name of the limit, as they were written; see `studies.options.limits`.
        gpus, workers: worker processes to start on this host, see `slots`; None if this process does the work.
        builders: the number of processes that only build, beside the one that measures; 0 if that one builds too, None
            for as many as pay.
        lease_s: the seconds without a heartbeat after which a worker counts as lost and others take over its work.
        own_sampler: a sampler that is an object of this process, which `sampler` then only says; it is not stored.
        backend_options: options as `NAME=VALUE`, for backends whose options have no names of their own here.
        builder_options: options of the shipped backends by keyword; `final_` before a keyword means exports.
    """

    sampler: str = option(
        kinds.SAMPLER,
        f"How mixes are proposed: {', '.join(SAMPLERS)}, or module:Class.",
        "guided",
        metavar="NAME",
        verbs=("search", *Verbs.NAMING_AGAIN),
        panel="Search",
        helps=NAMED_AGAIN,
    )
    reward: tuple[float, float] = option(
        kinds.WEIGHTS,
        "Weights of accuracy and latency in the reward of the sampler rl, as 0.6,0.4.",
        (0.6, 0.4),
        metavar="W,W",
        panel="Search",
        from_json=tuple,
    )
    granularity: str = option(
        kinds.one_of("group", "block"),
        "What is given a precision: each group of layers, or each block of a repeated structure.",
        "group",
        metavar="KIND",
        verbs=("search", "inspect"),
        panel="Search",
    )
    decide: tuple[str, ...] = option(
        kinds.one_of("attention", *(op.lower() for op in FREE)),
        "Also decide what a rule decides otherwise: attention, the products of activations; or the types of "
        "softmax, layernormalization, gelu, add or resize. Can be repeated.",
        (),
        metavar="WHAT",
        verbs=("search", "inspect", "evaluate"),
        many=True,
        panel="Search",
        from_json=tuple,
    )
    keep: tuple[KeepRule, ...] = option(
        kinds.KEEP,
        "Keep the layers whose name matches in one precision, as 'REGEX=fp32'. Can be repeated.",
        (),
        metavar="RULE",
        verbs=("search", *Verbs.ANALYSES),
        many=True,
        panel="Search",
        from_json=kinds.keep_from_json,
    )
    seed: int = option(
        kinds.whole(least=0, most=2**32 - 1), "Seed of the sampler's random numbers.", 0, metavar="N", panel="Search"
    )
    keep_engines: str = option(
        kinds.one_of("front", "all", "none"),
        "Which engines are stored: all, those of the Pareto front, or none.",
        "front",
        metavar="WHICH",
        panel="Study",
    )
    evaluation_timeout_s: float = option(
        kinds.DURATION,
        "Longest time that one evaluation may take.",
        600.0,
        name="evaluation-timeout",
        metavar="TIME",
        verbs=Verbs.BUILDING,
        panel="How long",
    )
    evaluation_memory_bytes: int | None = option(
        kinds.SIZE,
        "Largest memory of the process that builds and measures engines.",
        None,
        name="evaluation-memory",
        metavar="SIZE",
        verbs=Verbs.BUILDING,
        clearable=True,
        panel="How long",
    )
    builder_options: Mapping[str, Any] = field(default_factory=dict)
    quiet: bool = option(kinds.TEXT, "Print nothing but errors.", False, flag=True, verbs=(), panel="Study")
    own_sampler: BaseSampler | None = field(default=None, repr=False, compare=False)
    overrides: tuple[str, ...] = field(default=(), compare=False)
    given: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        if not self.study:
            object.__setattr__(self, "study", Path(self.model).stem)

    def builder_option(self, keyword: str) -> Any:
        """The value of a backend's option, its default where it was not given; None for what no backend has."""
        defaults = (row.default for row in builder_options() if row.item == keyword)
        return self.builder_options.get(keyword, next(defaults, None))

    def sampler_kind(self) -> SamplerKind:
        """The sampler of the search, before it is made.

        Raises:
            ConfigError, DataError: as for `sampler_named`.
        """
        from search.sampler.kinds import Handed  # it imports Optuna, which reading verbs do without
        from search.sampler.registry import sampler_named

        return sampler_named(self.sampler) if self.own_sampler is None else Handed(self.own_sampler)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values of all that belongs to the study, not to one run of it: `_NOT_STORED` says what is not."""
        data = asdict(replace(self, own_sampler=None))  # which need not be one that can be copied
        for row in item_options():
            data[row.item] = data[row.field].get(row.item, row.default)
        data["keep"] = [{"pattern": rule.pattern, "precision": rule.precision.label} for rule in self.keep]
        return {name: value for name, value in data.items() if name not in (*_NOT_STORED, *_MAPPINGS)}

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], storage: str = DEFAULT_STORAGE, *, lenient: bool = False
    ) -> SearchConfig:
        """The inverse of `to_json`; keys that it lacks take their defaults.

        Args:
            lenient: leave out options and limits that are not known here.

        Raises:
            ConfigError: an option or limit is not known here, `model`, `data` or `study` is missing, or a value has
                another form than `to_json` gives.
        """
        try:
            check_stored(data, whole=False)
            rows = {row.key: row for row in (*own_options(), *item_options()) if row.key not in _NOT_STORED}
            known = {key: value for key, value in data.items() if key in rows} if lenient else data
            return cls(**{"study": data["study"], **read_stored(known, rows, _MAPPINGS)}, storage=storage)
        except (TypeError, KeyError, ValueError) as error:
            raise ConfigError(
                f"reading a stored configuration: expected what SearchConfig.to_json writes, got {error}; "
                "the database row is damaged or was written by another program"
            ) from error

    def with_values(self, changes: Mapping[str, Any], option_names: tuple[str, ...] = ()) -> SearchConfig:
        """This configuration with other values: by field, by limit, or by keyword of the backend's option.

        A limit or an option of a backend that is None is taken away.

        Args:
            option_names: names of the options that the changes come from.
        """
        items = {row.item: row for row in item_options()}
        values = {name: value for name, value in changes.items() if name not in items}
        for name in _MAPPINGS:
            field_changes = {key: value for key, value in changes.items() if key in items and items[key].field == name}
            merged = {**getattr(self, name), **field_changes}
            values[name] = {key: value for key, value in merged.items() if value != items[key].default}
        return replace(self, **values, given=tuple(sorted({*self.given, *option_names})))


def check_stored(data: Mapping[str, Any], *, whole: bool) -> None:
    """Refuse stored options of which a value has another type than `SearchConfig.to_json` gives, or is out of bounds.

    Options that are not known here are left alone, and so are words: what they name may be installed elsewhere.

    Args:
        whole: whether all have to be there that have no default.

    Raises:
        ValueError: naming the option.
    """
    for name in _NEEDED if whole else ():
        if name not in data:
            raise ValueError(f"expected {name!r} among the options, which is missing")
    for row in (*own_options(), *item_options()):
        value = data.get(row.key)
        if value is None and (row.key not in data or row.default is None or row.clearable):
            continue
        check_shape(value, row.type, row.key)
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                row.kind.read(row.kind.write(value), row.shown)
            except ConfigError as error:
                raise ValueError(str(error)) from None


_NEEDED = ("study", "model", "data", "trials")
_MAPPINGS = ("limits", "builder_options")
_NOT_STORED = ("storage", "trust_functions", "gpus", "workers", "metrics_port", "own_sampler", "overrides", "given")


@cache
def own_options() -> tuple[Option, ...]:
    """The rows of the fields of `SearchConfig`, in order."""
    types = get_type_hints(SearchConfig, localns={"BaseSampler": object})
    described = [each for each in fields(SearchConfig) if each.metadata]
    return tuple(
        make_row(each.name, each.default, {**each.metadata["option"], "type": types[each.name]}) for each in described
    )


def item_options() -> tuple[Option, ...]:
    """The rows of the limits, then those of the backends."""
    return (*limit_options(), *builder_options())


_BEFORE_LIMITS = "study"
_BEFORE_BACKENDS = "evaluation_memory_bytes"


def option_rows() -> Iterator[Option]:
    """Every option that a search takes: of the configuration itself, of the limits, of the backends."""
    for row in own_options():
        yield row
        if row.field == _BEFORE_LIMITS:
            yield from limit_options()
        if row.field == _BEFORE_BACKENDS:
            yield from builder_options()


def option_table() -> Mapping[str, Option]:
    """The rows of `option_rows` by name, as files and the command line of `search` name them."""
    return {row.name: row for row in option_rows()}


def options_of(verb: str) -> tuple[Option, ...]:
    """The rows that a verb takes on the command line."""
    return tuple(row for row in (*option_rows(), *export_options(), *threshold_options()) if verb in row.verbs)
