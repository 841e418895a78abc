"""A table as a class: its columns are attributes, and its instances are rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import Column, ForeignKey, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy.schema import SchemaItem

if TYPE_CHECKING:
    from typing_extensions import Self

DIGEST = String(64)
NAME = String(200)
WORD = String(40)
# MySQL picks the smallest BLOB that holds this many bytes: LONGBLOB. SQLite and PostgreSQL ignore the length.
BLOB = LargeBinary(2**32 - 1)


class _Field:
    """A column: asked of the table it is the column, asked of a row that has no value of it an error."""

    def __init__(self, column: Column[Any]) -> None:
        self._column = column

    def __get__(self, row: Base | None, table: type[Base]) -> Any:
        return self._column if row is None else row.read(self._column.name)


class Base:
    """A table with its columns as attributes, and, as an instance, one of its rows with their values.

    SQLAlchemy takes the class where it takes a table. A row is plain: it knows no connection, and is equal to others
    with the same values. SQLAlchemy's own declarative classes do the same and more, but importing and mapping them
    takes 0.1 s of every command. For mypy the columns are as of those.
    """

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    __tablename__: ClassVar[str]
    __table__: ClassVar[Table]
    __table_args__: ClassVar[tuple[SchemaItem, ...]] = ()
    __table_options__: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        if "__tablename__" not in vars(cls):  # a row with more to it
            return
        columns = {name: value for name, value in vars(cls).items() if isinstance(value, Column)}
        for name, column in columns.items():
            column.name = column.key = name
            setattr(cls, name, _Field(column))
        cls.__table__ = Table(
            cls.__tablename__, cls.metadata, *columns.values(), *cls.__table_args__, **cls.__table_options__
        )

    def __init__(self, **values: Any) -> None:
        vars(self).update(values)

    @classmethod
    def __clause_element__(cls) -> Table:
        return cls.__table__

    @classmethod
    def of(cls, row: Any) -> Self:
        """The row that a query of all columns gave, perhaps with more."""
        return cls(**row._mapping)

    def read(self, name: str) -> Any:
        """The value of a column that the row has not."""
        raise AttributeError(f"{type(self).__name__} has no value of {name!r}: it was not read")

    def values(self) -> dict[str, Any]:
        """What the row has of the columns of its table, by name."""
        return {name: value for name, value in vars(self).items() if name in self.__table__.c}

    def with_values(self, **values: Any) -> Self:
        """A copy of the row with other values."""
        return type(self)(**{**vars(self), **values})

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({values})"


def required_column(kind: Any, **options: Any) -> Any:
    return Column(kind, nullable=False, **options)


def optional(kind: Any, *items: Any, **options: Any) -> Any:
    return Column(kind, *items, nullable=True, **options)


def parent_key(column: str, **options: Any) -> Any:
    """A foreign key whose row goes when its parent goes."""
    return Column(Integer, ForeignKey(column, ondelete="CASCADE"), nullable=False, **options)
