"""Write the listings `tests/data/tensorrt_api_*.json`: every public name of TensorRT's real Python bindings.

usage: python -m tests.support.tensorrt.make_listings [--check]

Needs Python 3.10 or 3.11: TensorRT 8.6.1 has wheels for no other.

The bindings come as wheels from PyPI. They are linked against TensorRT's libraries, which do not; stand-in libraries
that only export the wanted names let them be imported, so that their classes and signatures can be read. `--check`
writes nothing and exits 1 where a listing is not what the wheel says.
"""

from __future__ import annotations

import ctypes
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.support.paths import DATA, ROOT

WHEELS = {
    "8.6.1": "tensorrt-bindings==8.6.1",
    "10.16.1.11": "tensorrt-cu13-bindings==10.16.1.11",
    "11.4.0.106": "tensorrt-cu13-bindings==11.4.0.106",
}
# What the package's own start-up code leaves behind.
_LEFTOVERS = frozenset({"attr", "value", "common_enter", "common_exit"})
# Kept out: what objects of every class have, and what Python itself adds from 3.12 on.
_SKIPPED = frozenset(
    "__buffer__ __class__ __del__ __dict__ __doc__ __enter__ __entries __exit__ __getstate__ __members__ __module__ "
    "__release_buffer__ __repr__ __setstate__ __str__ __weakref__".split()
)


def listing_path(version: str) -> Path:
    return DATA / f"tensorrt_api_{version}.json"


# -- reading a module --------------------------------------------------------------------------------------------------


def describe(module: ModuleType) -> dict[str, Any]:
    """Everything public in the bindings: classes, functions, and names of members such as `float32`."""
    public = {n: v for n, v in vars(module).items() if not n.startswith("_") and n not in _LEFTOVERS}
    types = [value for value in public.values() if isinstance(value, type)]
    return {
        "version": module.__version__,
        "classes": {name: _class(cls) for cls in types for name, cls in _with_nested(cls)},
        "functions": {name: _signatures(value) for name, value in public.items() if _is_function(value)},
        "names": {name: _member(value) for name, value in public.items() if hasattr(type(value), "__members__")},
    }


def _with_nested(cls: type) -> Iterator[tuple[str, type]]:
    yield cls.__qualname__, cls
    for value in vars(cls).values():
        if isinstance(value, type) and value.__qualname__.startswith(f"{cls.__qualname__}."):
            yield from _with_nested(value)


def _class(cls: type) -> dict[str, Any]:
    listing: dict[str, Any] = {
        "bases": [base.__qualname__ for base in cls.__bases__ if not base.__module__.startswith("pybind11")],
        "methods": {},
        "readonly": {},
        "writable": {},
        "names": {},
    }
    if hasattr(cls, "__members__"):
        listing["members"] = {name: int(member) for name, member in cls.__members__.items()}
    for name, stored in vars(cls).items():
        value = stored.__func__ if isinstance(stored, staticmethod) else stored
        if name in _SKIPPED or "pybind11" in name or name in listing.get("members", ()):
            continue
        if isinstance(value, property):
            listing["writable" if value.fset is not None else "readonly"][name] = _property_type(value)
        elif isinstance(value, type):
            listing["names"][name] = value.__qualname__
        elif hasattr(type(value), "__members__"):
            listing["names"][name] = _member(value)
        elif _is_function(value):
            listing["methods"][name] = _signatures(value)
    return {key: value for key, value in listing.items() if value}


def _is_function(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _member(value: Any) -> str:
    return f"{type(value).__qualname__}.{value.name}"


def _property_type(member: property) -> str:
    for accessor, pattern in ((member.fget, r"\) -> (.+)"), (member.fset, r"arg1: (.+)\) -> None")):
        match = re.search(pattern, getattr(accessor, "__doc__", None) or "")
        if match:
            return _type(match[1])
    return "object"


def _signatures(function: Any) -> list[list[str]]:
    """One list for each overload: what it returns, then `name: type` or `name: type = ...` of its parameters."""
    doc = getattr(function, "__doc__", None) or ""
    lines = re.findall(r"^(?:\d+\. )?\w+\((.*)\) -> (.+)$", doc, re.MULTILINE)
    if "Overloaded function." in doc:
        lines = re.findall(r"^\d+\. \w+\((.*)\) -> (.+)$", doc, re.MULTILINE)
    if lines:
        return [[_type(returned), *map(_parameter, _split(inside))] for inside, returned in lines]
    if inspect.isfunction(function):
        return [["object", *(f"{name}: object" for name in inspect.signature(function).parameters)]]
    return []


def _parameter(text: str) -> str:
    name, _, rest = text.partition(": ")
    kind, default, _ = rest.partition(" = ")
    return f"{name}: {_type(kind)}{' = ...' if default else ''}" if rest else name


def _split(text: str) -> list[str]:
    parts, depth = [""], 0
    for i, letter in enumerate(text):
        depth += (letter in "[(<") - (letter in "])" or (letter == ">" and text[i - 1] != "-"))
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


def _type(text: str) -> str:
    """A type as the module's users write it; C++ names are those of classes whose bindings came later."""
    text = re.sub(r"tensorrt_bindings\.tensorrt\.", "", text.strip())
    text = re.sub(r"nv(?:infer1|onnxparser)::(?:v_\d+_\d+::)?(?:IParserError\b)", "ParserError", text)
    text = re.sub(r"nv(?:infer1|onnxparser|uffparser|caffeparser1)::(?:\w+::)?(\w+)", r"\1", text)
    return re.sub(r"\b(?:types|typing|typing_extensions|collections\.abc)\.", "", text)


# -- importing a wheel without its libraries ---------------------------------------------------------------------------


def read_wheel(requirement: str, folder: Path) -> dict[str, Any]:
    """The listing of a wheel from PyPI, read in a process of its own."""
    unpack(requirement, folder)
    link_stand_ins(folder / "tensorrt_bindings" / "tensorrt.so", folder / "lib")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder / "lib"), "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "tests.support.tensorrt.make_listings", "--describe"]
    return dict(
        json.loads(subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    )


def unpack(requirement: str, folder: Path) -> None:
    """Download a wheel for this Python and unpack it into `folder`."""
    with tempfile.TemporaryDirectory() as wheels:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--only-binary=:all:", "-d", wheels, requirement], check=True, capture_output=True)
        (wheel,) = Path(wheels).glob("*.whl")
        subprocess.run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(folder)], check=True)


def link_stand_ins(extension: Path, folder: Path) -> None:
    """Libraries of the names that the extension is linked against, exporting every function it calls of them."""
    folder.mkdir()
    listed = _lines("nm", "-D", "--undefined-only", extension)
    wanted = [line.split()[1] for line in listed if line.split()[0] == "U" and "@" not in line]
    python = ctypes.CDLL(None)
    source = folder / "stand_in.c"
    missing = [name for name in wanted if not hasattr(python, name)]
    source.write_text("".join(f"void *{name}(void) {{ return 0; }}\n" for name in missing))
    for line in _lines("readelf", "-d", extension):
        match = re.search(r"NEEDED.*\[(libnv\S+)\]", line)
        if match:
            out = folder / match[1]
            command = ["gcc", "-shared", "-fPIC", "-w", "-o", str(out), f"-Wl,-soname,{match[1]}", str(source)]
            subprocess.run(command, check=True)


def _lines(*command: object) -> list[str]:
    done = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def write(listing: dict[str, Any]) -> str:
    """JSON with sorted keys, a line for each class: small, and a difference between versions can be read."""
    parts = []
    for key in sorted(listing):
        value = listing[key]
        if isinstance(value, dict):
            rows = ",\n".join(f" {json.dumps(name)}: {_compact(value[name])}" for name in sorted(value))
            parts.append(f"{json.dumps(key)}: {{\n{rows}\n}}")
        else:
            parts.append(f"{json.dumps(key)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _compact(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def main(check: bool) -> int:
    stale = []
    for version, requirement in WHEELS.items():
        with tempfile.TemporaryDirectory() as folder:
            text = write({**read_wheel(requirement, Path(folder)), "wheel": requirement})
        if check and listing_path(version).read_text() != text:
            stale.append(version)
        elif not check:
            listing_path(version).write_text(text)
        print(f"{requirement}: {len(text)} bytes{', differs from its listing' if version in stale else ''}")
    return 1 if stale else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--describe"]:
        import tensorrt_bindings

        print(json.dumps(describe(tensorrt_bindings)))
    else:
        sys.exit(main(sys.argv[1:] == ["--check"]))
