"""Small changes of files, JSON values, ONNX models, database rows and options, drawn from a seed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import onnx

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 7, 2**31, 2**62, -(2**63), 0.5, -1e308, 1e-320, float("nan"), float("inf")),
    *("", "x", "\x1b[2J\x9b31m\u202e", "9" * 5000, "int8", "1.1.1.1", "../../etc", "\0", "é" * 300, "nan"),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, [1, "2", None], [2**62] * 3),
)


def mutate_bytes(data: bytes, random: Random) -> bytes:
    """Bytes with some of them changed, left out, repeated, or cut off."""
    content = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 8, 64))):
        place = random.randrange(len(content) or 1)
        kind = random.randrange(5)
        if kind == 0:
            content[place : place + 1] = random.randbytes(1)
        elif kind == 1:
            del content[place : place + random.randint(1, 16)]
        elif kind == 2:
            content[place:place] = content[place : place + random.randint(1, 64)] * random.choice((1, 2, 50))
        elif kind == 3:
            content[place:place] = random.choice((b"\0", b"\xff" * 8, b"[" * 200, b'"', b"\n\n", b"-1", b"9" * 40))
        elif random.random() < 0.3:
            del content[place:]
    return bytes(content)


def mutate_json(value: Any, random: Random) -> Any:
    """A value with one part of it replaced, left out or repeated."""
    if isinstance(value, dict | list) and value and random.random() < 0.85:
        keys: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = random.choice(keys)
        copy: Any = dict(value) if isinstance(value, dict) else list(value)
        if random.random() < 0.15:
            del copy[key]
        elif isinstance(copy, list) and random.random() < 0.15:
            copy.insert(key, copy[key])
        else:
            copy[key] = mutate_json(value[key], random)
        return copy
    return random.choice(VALUES)


def mutate_model(proto: onnx.ModelProto, random: Random) -> bytes:
    """An ONNX file with a few sizes, names, types, attributes or inputs changed."""
    mutant = onnx.ModelProto()
    mutant.CopyFrom(proto)
    graph = mutant.graph
    for _ in range(random.choice((1, 1, 2, 4))):
        node = random.choice(graph.node)
        names = [name for each in graph.node for name in (*each.input, *each.output)] or [""]
        kind = random.randrange(9)
        if kind == 0 and node.attribute:
            attribute = random.choice(node.attribute)
            if attribute.ints:
                attribute.ints[random.randrange(len(attribute.ints))] = random.choice((-1, 0, 2**31, 2**62, 3))
            attribute.i = random.choice((-1, 0, 1, 2**62))
        elif kind == 1:
            node.op_type = random.choice(
                ("Relu", "Range", "Tile", "Expand", "Loop", "MatMul", "Nothing", "Reshape", "")
            )
        elif kind == 2 and node.input:
            node.input[random.randrange(len(node.input))] = random.choice(names)
        elif kind == 3 and node.output:
            node.output[0] = random.choice((*names, "", "\x1b[31m", "n" * 10_000))
        elif kind == 4 and graph.initializer:
            tensor = random.choice(graph.initializer)
            if tensor.dims:
                tensor.dims[random.randrange(len(tensor.dims))] = random.choice((-1, 0, 1, 2**31, 2**62))
        elif kind == 5 and graph.initializer:
            random.choice(graph.initializer).data_type = random.randrange(24)
        elif kind == 6:
            value = random.choice((*graph.input, *graph.output))
            dims = value.type.tensor_type.shape.dim
            if dims:
                random.choice(dims).dim_value = random.choice((-1, 0, 1, 2**20, 2**62))
        elif kind == 7:
            node.name = random.choice(("", "\x1b]0;x\x07", "a.1.2.3" * 500, "(" * 900, node.name))
        else:
            graph.node.append(node)
    return mutant.SerializeToString()


def damage_row(database: Path, random: Random) -> str:
    """Change one value of one row of a study database; what was changed."""
    with sqlite3.connect(database) as connection:
        tables = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        filled = [t for t in sorted(tables) if t.startswith("bf_") and t != "bf_schema"
                  and connection.execute(f'select 1 from "{t}" limit 1').fetchone()]  # fmt: skip
        places = [(t, row[1]) for t in filled for row in connection.execute(f'pragma table_info("{t}")')]
        json_like = """select 1 from "{}" where "{}" glob '[[{{]*' limit 1"""
        nested = [place for place in places if connection.execute(json_like.format(*place)).fetchone()]
        table, column = random.choice(random.choice((places, nested)))
        known = [value for (value,) in connection.execute(f'select "{column}" from "{table}"')]
        place = random.randrange(len(known))
        value = _other_value(known[place], random)
        connection.execute("pragma ignore_check_constraints = on")
        try:
            connection.execute(
                f'update or ignore "{table}" set "{column}" = ? where "{column}" is ?', [value, known[place]]
            )
        except (sqlite3.IntegrityError, OverflowError, UnicodeEncodeError):
            return "nothing"
        return f"{table}.{column}: {str(known[place])[:60]!r} to {str(value)[:60]!r}"


def _other_value(value: Any, random: Random) -> Any:
    if isinstance(value, str) and value[:1] in "{[" and random.random() < 0.7:
        with suppress(ValueError):  # it was damaged before
            return json.dumps(mutate_json(json.loads(value), random))
    if isinstance(value, bytes) and random.random() < 0.7:
        return mutate_bytes(value, random)
    flat = [each for each in VALUES if not isinstance(each, list | dict)]
    return random.choice((*flat, b"\0\1\2", "{", '{"a": 1}', "[]"))


def make_option_text(random: Random) -> str:
    """What somebody may type as the value of an option."""
    words = [*"10-+.e%sh=:,x(?/é", "9" * 30, "ms", "GiB", "int8", "fp32", ".*", "a" * 3000, "\x1b[31m"]
    words += ["nan", "none", "all", "s3://", "file.py:f"]
    return "".join(random.choice(words) for _ in range(random.choice((1, 1, 2, 3, 5, 40))))
