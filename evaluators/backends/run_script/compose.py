"""Joining the parts of `run.py`: the inputs and settings of the engine, its class, and the command."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from search.graph.shapes import Profile, TensorSpec

RUN_SCRIPT = "run.py"
_PARTS = Path(__file__).parent
_MARK = "# -- part of run.py --\n"

_HEAD = '''\
"""Run the engine in this folder, as bitfront measured it: its outputs' shapes and a latency.

    python run.py                                    random inputs
    python run.py --data samples.npz --out out.npz   your own: one array for each input, samples first

It needs {needs}, and nothing of bitfront.
Copy the class `Engine` with the settings above it into your program.
"""
'''


def run_script(
    engine_part: str,
    needs: str,
    settings: Mapping[str, Any],
    inputs: Sequence[TensorSpec],
    profiles: Mapping[str, Profile],
) -> str:
    """The text of `run.py`.

    Args:
        engine_part: file of this folder that has the class `Engine`.
        needs: the packages that it imports, in words.
        settings: constants that the class reads, name → value that Python can read back; with `ENGINE`, its file.
        inputs: at the measured shapes.
        profiles: MIN, OPT, MAX of inputs that stay dynamic.
    """
    imports, parts = set[str](), []
    for name in (engine_part, "command.py"):
        head, _, body = (_PARTS / name).read_text(encoding="utf-8").partition(_MARK)
        import_lines = {line for line in head.splitlines() if line.startswith(("import ", "from "))}
        imports |= {line for line in import_lines if not line.startswith("from evaluators")}
        parts.append(body.strip("\n"))
    constants = {**settings, "INPUTS": {spec.name: _input_facts(spec, profiles) for spec in inputs}}
    blocks = [_HEAD.format(needs=needs), *_import_blocks(imports), _assignments(constants), *parts]
    return "\n".join(blocks[:-2]) + "\n\n\n" + "\n\n\n".join(blocks[-2:]) + "\n"


def _input_facts(spec: TensorSpec, profiles: Mapping[str, Profile]) -> dict[str, Any]:
    low, _, high = profiles.get(spec.name, (spec.shape,) * 3)
    return {"dtype": spec.dtype, "measured": list(spec.shape), "least": list(low), "most": list(high)}


def _import_blocks(imports: set[str]) -> list[str]:
    """Blocks of imports: of `__future__`, of the standard library and of numpy; each block has plain imports first."""
    future = {line for line in imports if "__future__" in line}
    others = {line for line in imports if "numpy" in line}
    blocks = [sorted(block, key=_import_order) for block in (future, imports - future - others, others)]
    return ["\n".join(block) + "\n" for block in blocks if block]


def _import_order(line: str) -> tuple[bool, str]:
    return line.startswith("from"), line


def _assignments(constants: Mapping[str, Any]) -> str:
    lines = []
    for name, value in constants.items():
        rows = [f"    {_literal(key)}: {_literal(each)},\n" for key, each in value.items()] if _is_table(value) else []
        lines.append(f"{name} = {{\n{''.join(rows)}}}" if rows else f"{name} = {_literal(value)}")
    return "\n".join(lines)


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping) and bool(value)


def _literal(value: Any) -> str:
    """Python's spelling of a plain value on one line, with the quotes that formatters use."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_literal(key)}: {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(map(_literal, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
    return repr(value)
