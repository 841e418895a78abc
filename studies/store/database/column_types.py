"""Column types for all kinds of databases, and the clock of the database."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import JSON, DateTime, Dialect, Double, Integer, Text, literal
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from search.values import Precision
from search.values.shape import check_shape

MYSQL_NAMES = ("mysql", "mariadb")
# What numbers may be: with these, sums, squares and ratios of them stay finite. Nothing that is measured comes near.
LARGEST = 1e100
SHORTEST_MS, LONGEST_MS = 1e-9, 1e12


class UtcDateTime(TypeDecorator[datetime]):
    """A time with microseconds, UTC in the database, aware in Python."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL_NAMES:
            from sqlalchemy.dialects.mysql import DATETIME

            return dialect.type_descriptor(DATETIME(fsp=6))
        return dialect.type_descriptor(DateTime())

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is not None and value.year < 2000:
            raise ValueError(f"expected a time since the year 2000, got {value}")
        return None if value is None else value.replace(tzinfo=timezone.utc)


class LongText(TypeDecorator[str]):
    """Text of any length; MySQL's plain TEXT ends at 64 KiB."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name in MYSQL_NAMES:
            from sqlalchemy.dialects.mysql import LONGTEXT

            return dialect.type_descriptor(LONGTEXT())
        return dialect.type_descriptor(Text())


class Number(TypeDecorator[float]):
    """A finite number within bounds; one that is read from a database and lies beyond them is an error."""

    impl = Double
    cache_ok = True

    def __init__(self, least: float = -LARGEST, most: float = LARGEST) -> None:
        super().__init__()
        self.least, self.most = least, most

    def process_result_value(self, value: Any, dialect: Dialect) -> float | None:
        if value is None:
            return None
        plain = isinstance(value, int | float) and not isinstance(value, bool)
        if not plain or not self.least <= value <= self.most:
            wanted = "a finite number" if self.least < 0 else f"a number from {self.least:g} to {self.most:g}"
            raise ValueError(f"expected {wanted}, got {str(value)[:60]!r}")
        return float(value)


MILLISECONDS = Number(SHORTEST_MS, LONGEST_MS)


class PrecisionId(TypeDecorator[Precision]):
    """A precision, stored as its id."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Precision | None, dialect: Dialect) -> int | None:
        return None if value is None else value.id

    def process_result_value(self, value: int | None, dialect: Dialect) -> Precision | None:
        return None if value is None else Precision.of_id(value)


class Json(TypeDecorator[Any]):
    """A JSON value that has the shape of a type wherever it is read.

    Args:
        shape: as for `check_shape`.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.shape = shape

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        if value is not None:
            check_shape(value, self.shape)
        return value


class JsonConfig(Json):
    """Stored options, as they are stored.

    Args:
        whole: whether all are there that a run cannot do without.
    """

    cache_ok = True

    def __init__(self, whole: bool = False) -> None:
        super().__init__(Mapping[str, Any])
        self.whole = whole

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        from studies.options.config import check_stored  # it knows all backends

        config = super().process_result_value(value, dialect)
        if config is not None:
            check_stored(config, whole=self.whole)
        return config


class JsonList(Json):
    """A tuple, stored as a JSON array; `shape` is that of its items."""

    cache_ok = True

    def __init__(self, shape: Any) -> None:
        super().__init__(tuple[shape, ...])

    def process_bind_param(self, value: Iterable[Any] | None, dialect: Dialect) -> list[Any] | None:
        return None if value is None else list(value)

    def process_result_value(self, value: Any, dialect: Dialect) -> tuple[Any, ...] | None:
        items = super().process_result_value(value, dialect)
        return None if items is None else tuple(items)


class JsonValue(Json):
    """A value of a class that has `to_json` and `from_json`; of a dataclass the JSON has its fields."""

    cache_ok = True

    def __init__(self, kind: type[Any]) -> None:
        super().__init__(kind if is_dataclass(kind) else Any)
        self.kind = kind

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else value.to_json()

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        data = super().process_result_value(value, dialect)
        return None if data is None else self.kind.from_json(data)


class utc_now(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """The database's own clock, UTC."""

    type = UtcDateTime()
    inherit_cache = True


@compiles(utc_now)
def _utc_now(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(utc_now, "sqlite")
def _utc_now_sqlite(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "strftime('%Y-%m-%d %H:%M:%f000', 'now')"


@compiles(utc_now, "postgresql")
def _utc_now_postgresql(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "timezone('utc', clock_timestamp())"


@compiles(utc_now, *MYSQL_NAMES)
def _utc_now_mysql(element: utc_now, compiler: SQLCompiler, **_: Any) -> str:
    return "utc_timestamp(6)"


class utc_ago(FunctionElement[datetime]):  # noqa: N801 - reads as the SQL function it is
    """So many seconds before now, by the database's own clock, UTC."""

    type = UtcDateTime()
    inherit_cache = True

    def __init__(self, seconds: float) -> None:
        super().__init__(literal(float(seconds), Double()))


@compiles(utc_ago, "sqlite")
def _utc_ago_sqlite(element: utc_ago, compiler: SQLCompiler, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', printf('-%.3f seconds', {seconds}))"


@compiles(utc_ago, "postgresql")
def _utc_ago_postgresql(element: utc_ago, compiler: SQLCompiler, **options: Any) -> str:
    return f"timezone('utc', clock_timestamp()) - make_interval(secs => {compiler.process(element.clauses, **options)})"


@compiles(utc_ago, *MYSQL_NAMES)
def _utc_ago_mysql(element: utc_ago, compiler: SQLCompiler, **options: Any) -> str:
    return f"utc_timestamp(6) - INTERVAL {compiler.process(element.clauses, **options)} * 1000000 MICROSECOND"
