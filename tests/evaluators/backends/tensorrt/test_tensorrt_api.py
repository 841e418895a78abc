"""The TensorRT backend by the path that each version takes, against what the real bindings of that version list.

Only the edge is replaced: the module `tensorrt` by a fake made from the listing, `cuda.bindings.runtime` by one whose
memory is ours. That the listings are the bindings is checked in `test_tensorrt_strong.py` and by
`python -m tests.support.tensorrt.make_listings --check`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from evaluators.backends.tensorrt import api as tensorrt_api
from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.builder import LoweredBytes
from evaluators.backends.tensorrt.options import TensorRTOptions
from evaluators.backends.tensorrt.session import open_plan
from evaluators.engine import DeviceError, OutOfMemoryError, RefusedError
from search.errors import BitfrontError, ConfigError
from search.graph.model import Model, ShapeRequest, load
from search.values import Answer, Precision
from tests.support.assignments import uniform_and_mixed
from tests.support.networks import feeds, loaded, ranged, residual_cnn, save
from tests.support.paths import ROOT
from tests.support.shared_libraries import GCC, compiled
from tests.support.tensorrt.fake_cuda import FakeCuda
from tests.support.tensorrt.fake_engine import FakeEngines
from tests.support.tensorrt.fake_tensorrt import FakeTensorRT, read_listing
from tests.support.tensorrt.make_listings import WHEELS
from tests.support.tensorrt.stand_in import PATHS, V8, V10, V11, standing_in

SOURCES = sorted((ROOT / "evaluators" / "backends" / "tensorrt").glob("*.py"))
INT8, FP16, FP32 = Precision.INT8, Precision.FP16, Precision.FP32


def exercise(engines: FakeEngines, typing: str, model: Model, folder: Path) -> None:
    """Everything that a study, an export and a profile ask of the backend."""
    # One that TensorRT's registry is asked to load; without a compiler test_tensorrt_plugins.py says what is left out.
    plugins = (str(compiled(folder / "plugin.so", "void *getCreators(int *count) { return 0; }")),) if GCC else ()
    options = TensorRTOptions(
        typing=typing,
        tf32=False,
        sparsity=True,
        native_instancenorm=typing == "weak",
        plugins=plugins,
        timing_cache=str(folder / "timings"),
    )
    backend, other = TensorRTBackend("cuda:0", options), TensorRTBackend("cuda:0", options)
    assert backend.target().versions["tensorrt"] == engines.trt.__version__
    assert backend.knobs()["typing"] == typing
    assert ("without_group" in backend.knobs()) == (typing == "weak")
    backend.device_state()
    backend.float_session(model).close()
    ranges, batch = ranged("residual"), feeds(model)
    for builder in (backend.builder(model, ranges), other.builder(model, ranges)):  # which write one timing cache
        for assignment in uniform_and_mixed(model):
            engine = builder.build(builder.lower(assignment), folder / "model.plan")
            audit = builder.audit(engine, assignment)
            assert {row.answer for row in audit.rows} == {Answer.OBEYED}, audit.rows
            session = builder.load(engine.path)
            session.bind(batch)
            assert session.time(3).tolist() == [0.25] * 3
            assert set(session.around()) == {"host_to_device", "device_to_host", "enqueue", "launch"}
            outputs = session.run(batch)
            session.close()
            assert [(n, a.shape, a.dtype) for n, a in outputs.items()] == [("logits", (4, 10), np.float32)]
            probe = builder.probe(assignment)
            assert set(probe.run(batch)) == {group.id for group in model.groups}
            probe.close()
        times = builder.profile(engine.path, batch, 2)
        assert {time.group for time in times} >= {group.id for group in model.groups}
        builder.write_source(assignment, folder / "source.onnx")
        assert builder.timing_cache()
    if typing == "weak":
        builder.build_free(folder / "free.plan")
    assert engines.cuda.launched > 0
    assert not engines.cuda.memory, "device memory was not given back"
    (folder / "cut.plan").write_bytes((folder / "model.plan").read_bytes()[:-20])
    with pytest.raises(RefusedError, match="parsing with TensorRT"):
        builder.build(LoweredBytes(assignment, b"no onnx"), folder / "never.plan")
    with pytest.raises(RefusedError, match=r"cut\.plan cannot be loaded: Serialization assertion failed"):
        builder.load(folder / "cut.plan")


def build_dynamic(typing: str, folder: Path) -> None:
    """An input that stays dynamic needs an optimization profile."""
    low, best, high = ((n, 3, 16, 16) for n in (1, 4, 8))
    path = save(residual_cnn(batch="n"), folder / "net.onnx")
    model = load(path, shapes={"image": ShapeRequest(low, best, high)})
    backend = TensorRTBackend("cuda", TensorRTOptions(typing=typing))
    backend.float_session(model).close()
    builder = backend.builder(model, ranged("residual"))
    for assignment in uniform_and_mixed(model):
        engine = builder.build(builder.lower(assignment), folder / "model.plan")
        audit = builder.audit(engine, assignment)
        assert {row.answer for row in audit.rows} == {Answer.OBEYED}, audit.rows  # formats need shapes
        session, probe = builder.load(engine.path), builder.probe(assignment)
        assert session.run(feeds(model))["logits"].shape == (4, 10)
        alone = open_plan(engine.path, "cuda", ())  # without the model, as a guard opens it
        assert alone.run(feeds(model))["logits"].shape == (4, 10)
        alone.close()
        assert {len(array) for array in probe.run(feeds(model)).values()} == {4}
        session.close()
        probe.close()


@functools.cache
def used(version: str, typing: str) -> frozenset[str]:
    """The listed names that a path used after everything was asked of it."""
    with tempfile.TemporaryDirectory() as folder, standing_in(version) as engines:
        exercise(engines, typing, loaded("residual"), Path(folder))
        build_dynamic(typing, Path(folder))
        return frozenset(engines.fake.used)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "typing"), PATHS)
def test_a_path_uses_only_what_its_version_lists(version: str, typing: str) -> None:
    names = used(version, typing)
    assert {"Builder.build_serialized_network", "IOptimizationProfile.set_shape", "IProfiler.__init__"} <= names
    assert "EngineInspector.execution_context" in names
    weak = {"ILayer.precision", "ITensor.set_dynamic_range"}
    assert (weak <= names) if typing == "weak" else not (weak & names)


@pytest.mark.parametrize(("version", "typing"), PATHS)
def test_the_builder_gets_the_processors_or_what_was_asked_for(version: str, typing: str, tmp_path: Path) -> None:
    model, ranges = loaded("residual"), ranged("residual")
    knobs, told = [], []
    with standing_in(version):
        for asked in (None, 3):
            backend = TensorRTBackend("cuda", TensorRTOptions(typing=typing, build_threads=asked))
            builder = backend.builder(model, ranges)
            engine = builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "model.plan")
            told.append(builder.audit(engine, uniform_and_mixed(model)[0]).summary.build_threads)
            assert builder._builder.max_threads == told[-1]
            knobs.append((backend.knobs(), backend.target().fingerprint))
    assert told == [len(os.sched_getaffinity(0)), 3]
    assert knobs[0] == knobs[1], "threads must not tell evaluations or targets apart"


def test_a_builder_that_cannot_be_told_its_threads_is_left_alone() -> None:
    class Old:
        __slots__ = ()

    assert tensorrt_api.set_threads(Old(), 8) is None


@pytest.mark.parametrize(
    ("version", "typing", "message"),
    [
        (V11, "weak", "--typing weak: TensorRT 11.4.0.106 no longer has weakly typed networks"),
        (V8, "strong", "--typing strong: TensorRT 8.6.1 has no strongly typed networks"),
    ],
)
def test_typing_that_a_version_lacks_is_refused(version: str, typing: str, message: str) -> None:
    with standing_in(version), pytest.raises(ConfigError, match=message) as error:
        TensorRTBackend("cuda", TensorRTOptions(typing=typing))
    assert "\n" not in str(error.value)


# -- names in the sources ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Spelled:
    """A name below the module, say `BuilderFlag.TF32`, where it is spelled."""

    name: str
    place: str
    conditional: bool


def spelled(source: str, place: str) -> list[Spelled]:
    """Every `trt.X`, `trt.X.Y`, `self.trt.X.Y` of a source."""
    found = []

    def visit(node: ast.AST, conditional: bool) -> None:
        if isinstance(node, ast.Attribute):
            name = _below_module(node)
            if name:
                found.append(Spelled(name, f"{place}:{node.lineno}", conditional))
                return
        inside = conditional or isinstance(node, ast.If | ast.IfExp)
        for child in ast.iter_child_nodes(node):
            visit(child, inside)

    visit(ast.parse(source), False)
    return found


def _below_module(node: ast.expr) -> str:
    """`BuilderFlag.TF32` of `self.trt.BuilderFlag.TF32`; empty for what does not start at the module."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        if node.attr in ("trt", "_trt"):
            break
        parts.append(node.attr)
        node = node.value
    rooted = isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id in ("trt", "tensorrt"))
    return ".".join(reversed(parts)) if rooted else ""


def is_listed(module: object, name: str) -> bool:
    for part in name.split(".")[:2]:
        if not hasattr(module, part):
            return False
        module = getattr(module, part)
    return True


def versions_of(path: Path) -> list[str]:
    """Versions whose path runs a file."""
    return {"weak.py": [V8, V10]}.get(path.name, [V8, V10, V11])


def misspelt(source: str, place: str, versions: list[str]) -> list[str]:
    """What a version that runs the source does not list; behind a condition one version that does is enough."""
    modules = {version: FakeTensorRT(version).module for version in versions}
    wrong = []
    for use in spelled(source, place):
        lacking = [version for version, module in modules.items() if not is_listed(module, use.name)]
        if lacking and not (use.conditional and len(lacking) < len(versions)):
            wrong.append(f"{use.place}: trt.{use.name} is not in TensorRT {', '.join(lacking)}")
    return wrong


@pytest.mark.slow
@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_every_name_below_the_module_is_listed(path: Path) -> None:
    assert misspelt(path.read_text(encoding="utf-8"), path.name, versions_of(path)) == []


@pytest.mark.slow
def test_every_listed_name_in_the_sources_was_used() -> None:
    """Else a path could be wrong in its keywords without any test calling it."""
    called = {name.rpartition(".")[2] for path in PATHS for name in used(*path)}
    owners = (
        "Builder EngineInspector IBuilderConfig ICudaEngine IExecutionContext ILayer INetworkDefinition "
        "IOptimizationProfile IPluginRegistry IProfiler ITensor ITimingCache OnnxParser ParserError Runtime"
    ).split()
    listed = {name for version in WHEELS for owner in owners for name in _attributes(version, owner)}
    listed -= {"metadata", "update"}  # of the audit's layers, of dictionaries: nothing here asks ILayer or ITimingCache
    trees = [ast.parse(path.read_text()) for path in SOURCES]
    written = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert (written & listed) - called == set()


def _attributes(version: str, owner: str) -> set[str]:
    listed = read_listing(version)["classes"].get(owner, {})
    return {name for kind in ("methods", "readonly", "writable") for name in listed.get(kind, ())}


# -- that the above can fail -------------------------------------------------------------------------------------------

WRONG_NAMES = """
def config(self, trt, config):
    config.set_flag(self.trt.BuilderFlag.FP17)
    trt.Bilder(None)
    if old:
        return trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH
    return trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED
"""


def test_planted_names_are_found() -> None:
    assert misspelt(WRONG_NAMES, "planted", [V8, V10, V11]) == [
        f"planted:3: trt.BuilderFlag.FP17 is not in TensorRT {V8}, {V10}, {V11}",
        f"planted:4: trt.Bilder is not in TensorRT {V8}, {V10}, {V11}",
        f"planted:7: trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED is not in TensorRT {V8}",
    ]


@pytest.mark.parametrize(
    ("version", "code", "error"),
    [
        (V11, "config.set_flag(trt.BuilderFlag.FP16)", "BuilderFlag.* has no attribute 'FP16'"),
        (V11, "trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH", "EXPLICIT_BATCH"),
        (V11, "builder.platform_has_fast_fp16", "platform_has_fast_fp16"),
        (V11, "engine.device_memory_size", "device_memory_size"),
        (V10, "config.max_workspace_size = 1", "max_workspace_size"),
        (V8, "config.builder_optimisation_level = 3", "builder_optimisation_level"),
        (V8, "config.set_flag(flags=trt.BuilderFlag.INT8)", "incompatible arguments"),
        (V8, "config.set_flag(1)", "incompatible arguments"),
        (V8, "builder.create_network(1, 2)", "incompatible arguments"),
        (V8, "config.set_timing_cache(None)", "incompatible arguments"),
        (V8, "config.profiling_verbosity = trt.BuilderFlag.INT8", "takes ProfilingVerbosity"),
        (V8, "trt.IBuilderConfig()", "No constructor defined"),
        (V8, "type('Log', (trt.ILogger,), {'__init__': lambda self: None})()", "must be called when overriding"),
        (V8, "1 << trt.BuilderFlag.INT8.FLAG", "FLAG"),
        (V8, "len(memory)", "has no len"),
        (V8, "memory.hex()", "hex"),
    ],
)
def test_planted_calls_fail(version: str, code: str, error: str) -> None:
    fake = FakeTensorRT(version)
    known = {"trt": fake.module, "memory": fake.memory(b""), "engine": fake.create("ICudaEngine")}
    known |= {"config": fake.create("IBuilderConfig"), "builder": fake.create("Builder")}
    with pytest.raises((AttributeError, TypeError), match=error):
        exec(code, known)


def test_the_fake_takes_what_the_bindings_take() -> None:
    for version in WHEELS:
        fake = FakeTensorRT(version)
        trt = fake.module
        assert list(range(9))[trt.BuilderFlag.TF32] == int(trt.BuilderFlag.TF32)
        assert trt.float32 == trt.DataType.FLOAT != trt.float16
        assert trt.float32 in {trt.DataType.FLOAT}
        assert trt.ILogger.ERROR < trt.ILogger.WARNING
        assert trt.DataType(0) == trt.float32
        assert bytes(fake.memory(b"abc")) == b"abc"
        assert tuple(fake.dims((1, 2))) == (1, 2)
        fake.create("IBuilderConfig").set_memory_pool_limit(pool=trt.MemoryPoolType.WORKSPACE, pool_size=1)


@pytest.mark.slow
def test_the_fake_cuda_calls_are_those_of_the_real_bindings() -> None:
    runtime = pytest.importorskip("cuda.bindings.runtime")
    calls = {name: call for name, call in vars(FakeCuda).items() if name.startswith("cuda")}
    for name, call in calls.items():
        if isinstance(call, type):
            real = {member: int(getattr(getattr(runtime, name), member)) for member in call.__members__}
            assert real == {member: int(call[member]) for member in call.__members__}
        elif isinstance(call, int):
            assert call == int(getattr(runtime, name)), name
        else:
            assert list(inspect.signature(call).parameters)[1:] == list(
                inspect.signature(getattr(runtime, name)).parameters
            ), name


def test_errors_of_the_fake_paths_are_ours() -> None:
    """A mix that the builder refuses, and a file that the parser does, are refusals with TensorRT's words."""
    with standing_in(V10) as engines:
        model = loaded("residual")
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        engines.fake.behaviours["Builder.build_serialized_network"] = _refuse
        with pytest.raises(RefusedError, match=r"no kernel for block\.0/conv1") as refused:
            builder.build(builder.lower(uniform_and_mixed(model)[0]), Path("never"))
        assert isinstance(refused.value, BitfrontError)
        assert refused.value.group == next(g.id for g in model.groups if "block.0/conv1" in g.anchors)


def _refuse(builder: object, network: object, config: object) -> None:
    logger = builder.logger  # type: ignore[attr-defined]
    logger.log(type(logger).ERROR, "no kernel for block.0/conv1")


@pytest.mark.parametrize(
    ("said", "free_bytes", "kind", "told"),
    [
        (["1: "], 1 << 36, RefusedError, "1: "),
        (["1: ", "2: no kernel for it"], 1 << 36, RefusedError, "2: no kernel for it"),
        (["1: "], 1 << 20, OutOfMemoryError, "1 MiB of the GPU's 131072 MiB left"),
        (["1: Cuda Runtime (out of memory)"], 1 << 36, OutOfMemoryError, "out of memory"),
        (["1: CUDA error 700"], 1 << 36, DeviceError, "700"),
    ],
)
def test_what_a_builder_that_gives_up_means(said: list[str], free_bytes: int, kind: type, told: str) -> None:
    """Version 8.6 said no more than `1: ` of a device without memory."""

    def give_up(builder: object, network: object, config: object) -> None:
        logger = builder.logger  # type: ignore[attr-defined]
        for line in said:
            logger.log(type(logger).ERROR, line)

    with standing_in(V10) as engines:
        model = loaded("residual")
        builder = TensorRTBackend("cuda", TensorRTOptions(typing="weak")).builder(model, ranged("residual"))
        engines.fake.behaviours["Builder.build_serialized_network"] = give_up
        engines.cuda.free_bytes = free_bytes
        with pytest.raises(kind, match=told):
            builder.build(builder.lower(uniform_and_mixed(model)[0]), Path("never"))


def test_tensorrt_may_speak_after_python_has_emptied_its_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    with standing_in(V10) as engines:
        log = tensorrt_api.make_log(engines.trt)
        monkeypatch.delattr(engines.trt, "ILogger")
        log.log(type(log).ERROR, "at its end")
        assert log.errors == ["at its end"]
