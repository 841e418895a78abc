"""TensorRT 11's strongly typed builder on a machine without a GPU, and what the project's own builder makes of it.

TensorRT's libraries cannot be had from PyPI, but two real pieces can: the Python bindings of TensorRT 11.4, and the
builder and ONNX parser of TensorRT-RTX 1.7 inside a plugin of ONNX Runtime. Both speak the same C interface, and
TensorRT-RTX builds without a GPU. So parser, strongly typed network and builder of 11.x really run, and a network
whose types do not agree is refused as TensorRT 11 refuses it. Kernels, their speed and the inspector need a GPU.

Needs x86-64 Linux with glibc 2.28, gcc, and once about 150 MB from PyPI, kept in $BITFRONT_STRONG_CACHE (default
~/.cache/bitfront-strong). The bindings have wheels for Python 3.8 to 3.14.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock

from tests.support.paths import ROOT

BINDINGS = ("tensorrt-cu13-bindings", "11.4.0.106")
LIBRARIES = ("onnxruntime-ep-nv-tensorrt-rtx-cu13", "0.5.0")


class UnavailableError(Exception):
    """Why the strong build cannot run here."""


def cache() -> Path:
    return Path(os.environ.get("BITFRONT_STRONG_CACHE") or Path.home() / ".cache" / "bitfront-strong")


def environment() -> dict[str, str]:
    """Variables of a process that finds the bindings and their libraries; fetches both on first use.

    Raises:
        UnavailableError: no network and nothing cached, no wheel for this Python or machine, no gcc.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with FileLock(cache() / ".lock"):
        bindings = _made(f"bindings-{BINDINGS[1]}-py{sys.version_info.major}{sys.version_info.minor}", _fetch_bindings)
        libraries = _made(f"libraries-{LIBRARIES[1]}", _link_libraries)
    # Every build takes and gives back hundreds of megabytes; kept instead, builds take half the time.
    keep = {"MALLOC_TRIM_THRESHOLD_": 1 << 31, "MALLOC_MMAP_THRESHOLD_": 1 << 31}
    variables = {**keep, "LD_LIBRARY_PATH": libraries, "PYTHONPATH": f"{bindings}:{ROOT}"}
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def _made(name: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache; it appears whole or not at all."""
    folder = cache() / name
    if not folder.exists():
        with tempfile.TemporaryDirectory(dir=cache()) as scratch:
            part = Path(scratch) / name
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder


def _fetch_bindings(folder: Path) -> None:
    _unpack(BINDINGS, folder)


def _link_libraries(folder: Path) -> None:
    """TensorRT's library names, as empty libraries that bring in TensorRT-RTX's."""
    _unpack(LIBRARIES, folder)
    package = folder / "onnxruntime_ep_nv_tensorrt_rtx"
    for name in ("libtensorrt_rtx.so", "libtensorrt_onnxparser_rtx.so"):
        (library,) = package.glob(f"{name}.*")
        library.rename(folder / f"{name}.1")
    _run("rm", "-r", package)
    (folder / "empty.c").write_text("int bitfront_nothing(void) { return 0; }\n")
    (folder / "plugin.c").write_text("int initLibNvInferPlugins(void *logger, const char *space) { return 1; }\n")
    for soname, source, needed in (
        ("libnvinfer.so.11", "empty.c", ["-l:libtensorrt_rtx.so.1"]),
        ("libnvonnxparser.so.11", "empty.c", ["-l:libtensorrt_onnxparser_rtx.so.1"]),
        ("libnvinfer_plugin.so.11", "plugin.c", []),
    ):
        link = ["gcc", "-shared", "-fPIC", f"-L{folder}", "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed"]
        _run(*link, "-o", folder / soname, f"-Wl,-soname,{soname}", folder / source, *needed)


def _unpack(package: tuple[str, str], folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", "--retries=3"]
    with tempfile.TemporaryDirectory(dir=cache()) as wheels:
        _run(*pip, "--only-binary=:all:", "-d", wheels, "==".join(package))
        (wheel,) = Path(wheels).glob("*.whl")
        _run(sys.executable, "-m", "zipfile", "-e", wheel, folder)


def _run(*command: object) -> None:
    words = [str(word) for word in command]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        raise UnavailableError(f"{words[0]} cannot be run: {error}") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"{' '.join(words[:4])} … failed: {last}")


# -- what tests ask ----------------------------------------------------------------------------------------------------


def start(networks: Sequence[str]) -> subprocess.Popen[str]:
    """A process that builds these networks, and prints what came of it as JSON."""
    command = [sys.executable, "-W", "error", "-m", "tests.support.tensorrt.strong_build", *networks]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), cwd=ROOT, **pipes)


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    out, err = process.communicate()
    assert process.returncode == 0, f"exit status {process.returncode}: {err[-3000:]}"
    return dict(json.loads(out.splitlines()[-1]))


# -- in the process that has TensorRT ----------------------------------------------------------------------------------


def build_all(names: Sequence[str]) -> dict[str, Any]:
    """Network → how many assignments were built, and the message for each that was refused."""
    import tensorrt_bindings

    sys.modules["tensorrt"] = tensorrt_bindings
    from evaluators.backends.tensorrt.api import import_tensorrt

    trt = import_tensorrt()
    with tempfile.TemporaryDirectory() as folder:
        built = {name: _build(trt, name, Path(folder)) for name in names}
        return {"version": trt.__version__, "networks": built, **_extras(trt, names, Path(folder))}


def _build(trt: Any, name: str, folder: Path) -> dict[str, Any]:
    from tests.support.assignments import mixes
    from tests.support.networks import loaded

    builder = _builder(trt, name)
    assignments = list(mixes(loaded(name)))
    errors = {_words(a): _error(lambda a=a: builder.build(builder.lower(a), folder / "plan")) for a in assignments}
    errors |= {
        f"written out: {_words(a)}": _error(lambda a=a: _build_explicit(builder, name, a, folder))
        for a in assignments[2:5]
    }
    # A probe builds a network of its own, every group's output exposed; only its session needs a GPU.
    builder._session = lambda engine, plan_bytes: plan_bytes
    errors |= {f"probe of {_words(a)}": _error(lambda a=a: builder.probe(a)) for a in assignments[2:4]}
    refused = {assignment: error for assignment, error in errors.items() if error}
    return {"asked": len(assignments), "refused": refused, "bytes": (folder / "plan").stat().st_size}


def _build_explicit(builder: Any, name: str, assignment: Any, folder: Path) -> None:
    """A mix of weak typing, as `export --typing strong` writes it."""
    from evaluators.backends.tensorrt.builder import LoweredBytes, model_bytes
    from studies.export.explicit import explicit_graph
    from tests.support.networks import loaded, ranged

    graph = explicit_graph(loaded(name), assignment, ranged(name))
    builder.build(LoweredBytes(assignment, model_bytes(graph)), folder / "plan")


def _words(assignment: Any) -> str:
    return " ".join(f"{group}:{precision.label}" for group, precision in assignment.items())


def _builder(trt: Any, name: str, **knobs: Any) -> Any:
    from evaluators.backends.tensorrt.builder import TensorRTBuilder
    from evaluators.backends.tensorrt.options import TensorRTOptions
    from tests.support.networks import loaded, ranged

    return TensorRTBuilder(trt, loaded(name), ranged(name), TensorRTOptions(typing="strong", **knobs))


def _error(build: Callable[[], Any]) -> str:
    """Empty, or the class and message of the project's own error."""
    from search.errors import BitfrontError

    try:
        build()
    except BitfrontError as error:
        return f"{type(error).__name__}[{getattr(error, 'group', None)}]: {error}"
    return ""


def _extras(trt: Any, names: Sequence[str], folder: Path) -> dict[str, Any]:
    """Check what needs one network only: knobs, planted faults, the listing."""
    if "residual" not in names:
        return {}
    from tests.support.tensorrt.make_listings import describe

    return {
        "planted": {
            name: _error(lambda make=make: _build_bytes(trt, make(), folder)) for name, make in PLANTED.items()
        },
        "dynamic": {
            words: _error(lambda profiled=profiled: _build_dynamic(trt, folder, profiled))
            for words, profiled in (("with a profile", True), ("without", False))
        },
        "knobs": _error(lambda: _build_with_knobs(trt, folder)),
        "timing_cache_bytes": sum(path.stat().st_size for path in folder.glob("timings")),
        "loaded": _error(lambda: _builder(trt, "residual").load(folder / "knobs")),
        "cut": _error(lambda: _load_cut(trt, folder)),
        "bounds": _bounds(trt, folder),
        "formats": _build_formats(trt, folder),
        "listing": json.loads(json.dumps(describe(trt))),
    }


def _build_dynamic(trt: Any, folder: Path, profiled: bool) -> None:
    """A batch of 1 to 8, measured at 4."""
    from evaluators.backends.tensorrt.builder import TensorRTBuilder
    from evaluators.backends.tensorrt.options import TensorRTOptions
    from search.graph.model import ShapeRequest, load
    from tests.support.assignments import uniform_and_mixed
    from tests.support.networks import ranged, residual_cnn, save

    low, best, high = ((n, 3, 16, 16) for n in (1, 4, 8))
    model = load(save(residual_cnn(batch="n"), folder / "n.onnx"), shapes={"image": ShapeRequest(low, best, high)})
    builder = TensorRTBuilder(trt, model, ranged("residual"), TensorRTOptions(typing="strong"))
    if not profiled:
        builder._set_profile = lambda config: None
    for assignment in uniform_and_mixed(model):
        builder.build(builder.lower(assignment), folder / "dynamic")


def _build_formats(trt: Any, folder: Path) -> dict[str, str]:
    """What came of networks in every precision that the capabilities file has, and in ten mixes of them.

    Two of the networks are built again with all that `--decide` takes.
    """
    import random

    from evaluators.backends.capabilities.restricted import shipped_capability
    from evaluators.backends.tensorrt.builder import TensorRTBuilder
    from evaluators.backends.tensorrt.options import TensorRTOptions
    from search.space.choices import make_space
    from search.values import FREE
    from tests.support.networks import loaded, ranged

    errors, rng = {}, random.Random(0)
    every = ("attention", *(op.lower() for op in FREE))
    for name, decided in [
        *((n, ()) for n in ("residual", "transformer", "row_products")),
        ("transformer", every),
        ("unet", every),
    ]:
        model = loaded(name).with_decisions(decided)
        builder = TensorRTBuilder(trt, model, ranged(name), TensorRTOptions(typing="strong"))
        space = make_space(model, shipped_capability("tensorrt"), ranged(name))
        tried = {precision.label: space.uniform(precision) for precision in space.precisions}
        for number in range(10):
            drawn = {group.id: rng.choice(space.precisions) for group in model.groups}
            tried[f"mix {number}"] = space.nearest(drawn)
        for words, assignment in tried.items():
            key = f"{name} {'decided ' if decided else ''}{words}"
            errors[key] = _error(lambda b=builder, a=assignment: b.build(b.lower(a), folder / "plan"))
    return errors


def _bounds(trt: Any, folder: Path) -> dict[str, float]:
    """Layer → how far it reaches, of those that the real parser made and no calibration knows.

    Weak typing is gone from this version, but not the layers and their bindings.
    """
    from evaluators.backends.tensorrt import api as tensorrt_api
    from evaluators.backends.tensorrt.builder import model_bytes
    from evaluators.backends.tensorrt.weak_typing.ranges import _Neighbours
    from search.graph.model import load
    from tests.support.networks import arithmetic, observed, save

    model, log = load(save(arithmetic(), folder / "arithmetic.onnx")), tensorrt_api.make_log(trt)
    parsed = tensorrt_api.parse_network(trt, trt.Builder(log), log, model_bytes(model.graph), strong=True)
    layers, ranges = tensorrt_api.layers_of(parsed[0]), observed(model)
    around = _Neighbours(trt, layers, ranges)
    known = {name: tensor_range.magnitude for name, tensor_range in ranges.tensors.items()}
    bounds = {
        layer.name: around.bound(layer, 0, [known.get(tensor.name, 0.0) for tensor in tensorrt_api.inputs_of(layer)])
        for layer in layers
    }
    return {**bounds, "logits": ranges.tensors["logits"].magnitude}


def _build_with_knobs(trt: Any, folder: Path) -> None:
    knobs: dict[str, Any] = {"tf32": False, "sparsity": True, "native_instancenorm": False, "optimization_level": 5}
    knobs["build_threads"] = 2
    from search.values import Precision
    from tests.support.assignments import uniform
    from tests.support.networks import loaded

    for _ in range(2):  # the second reads the timing cache of the first
        builder = _builder(trt, "residual", workspace_bytes=1 << 28, timing_cache=str(folder / "timings"), **knobs)
        builder.build(builder.lower(uniform(loaded("residual"), Precision.FP32)), folder / "knobs")
        assert builder.threads == 2


def _load_cut(trt: Any, folder: Path) -> None:
    plan = (folder / "knobs").read_bytes()
    (folder / "cut").write_bytes(plan[: len(plan) // 2])
    _builder(trt, "residual").load(folder / "cut")


def _build_bytes(trt: Any, data: bytes, folder: Path) -> None:
    from evaluators.backends.tensorrt.builder import LoweredBytes
    from search.values import Precision
    from tests.support.assignments import uniform
    from tests.support.networks import loaded

    assignment = uniform(loaded("residual"), Precision.FP32)
    _builder(trt, "residual").build(LoweredBytes(assignment, data), folder / "planted")


def _mixed_add() -> bytes:
    """A residual Add of a float and a half: what lowering must never write."""
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [
            helper.make_node("Cast", ["x"], ["half"], name="half", to=TensorProto.FLOAT16),
            helper.make_node("Add", ["x", "half"], ["y"], name="block.0/add"),
        ],
        "planted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4])],
    )
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)]).SerializeToString())


def _for_onnx_runtime() -> bytes:
    """Lowered for another engine: unsigned activations, INT32 biases behind DequantizeLinear."""
    import onnx_ir as ir

    from evaluators.lowering.lower import lower
    from evaluators.lowering.placement import ONNXRUNTIME_CPU
    from search.values import Assignment, Precision
    from tests.support.networks import loaded, ranged

    model = loaded("residual")
    everything = Assignment({group.id: Precision.INT8 for group in model.groups})
    return bytes(ir.to_proto(lower(model, everything, ranged("residual"), ONNXRUNTIME_CPU)).SerializeToString())


def _two_types() -> bytes:
    """A product of FP8 and INT8, which no precision stands for."""
    import onnx_ir as ir

    from evaluators.lowering.lower import lower
    from evaluators.lowering.placement import TENSORRT
    from search.values import Assignment, Precision
    from tests.support.networks import loaded, ranged

    model = loaded("row_products")
    written = {
        p: lower(model, Assignment({g.id: p for g in model.groups}), ranged("row_products"), TENSORRT)
        for p in (Precision.FP8, Precision.INT8)
    }
    graph, codes = written[Precision.FP8].graph, written[Precision.INT8].graph.initializers
    for form in ("", "/scale16", "/zero"):
        kept = graph.initializers[f"mid.w/fp8{form}"]
        kept.const_value = codes[f"mid.w/int8{form}"].const_value
        kept.type = ir.TensorType(codes[f"mid.w/int8{form}"].dtype)
    return bytes(ir.to_proto(written[Precision.FP8]).SerializeToString())


PLANTED = {
    "mixed_add": _mixed_add,
    "two_types": _two_types,
    "for_onnx_runtime": _for_onnx_runtime,
    "no_onnx": lambda: b"no onnx",
}


if __name__ == "__main__":
    print(json.dumps(build_all(sys.argv[1:])))
