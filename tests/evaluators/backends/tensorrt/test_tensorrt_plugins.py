"""Plugin libraries, by real ones: opened once per process, and given to TensorRT's registry where that is needed."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from bitfront import verbs
from evaluators.backends.tensorrt import api as tensorrt_api
from evaluators.backends.tensorrt.api import load_plugins
from evaluators.backends.tensorrt.backend import TensorRTBackend
from evaluators.backends.tensorrt.kind import TensorRTKind
from evaluators.backends.tensorrt.options import TensorRTOptions
from search.errors import ConfigError, ModelError
from search.graph.model import load
from studies.guard import Guard
from tests.support.assignments import uniform_and_mixed
from tests.support.command_line import ok, write_inputs
from tests.support.networks import Net, feeds, loaded, ranged, save
from tests.support.shared_libraries import compiled, needs_gcc
from tests.support.tensorrt.fake_engine import FakeEngines
from tests.support.tensorrt.stand_in import V8, V10, V11, standing_in

pytestmark = pytest.mark.slow

VERSIONS = pytest.mark.parametrize("version", [V8, V10, V11])
REGISTRY = "int creators; int register_creator(void) { return ++creators; }"
# As REGISTER_TENSORRT_PLUGIN does it: a static object whose constructor runs when the library is opened.
STATIC = """
int register_creator(void);
__attribute__((constructor)) static void at_opening(void) { register_creator(); }
"""
GIVEN = "void *getCreators(int *count) { return 0; } void *getPluginCreators(int *count) { return 0; }\n"


class Registry:
    """TensorRT's registry of plugins, as documented: a count in C that a library adds to by being opened or loaded."""

    def __init__(self, engines: FakeEngines, folder: Path) -> None:
        self.path = compiled(folder / "libregistry.so", REGISTRY)
        self.library = ctypes.CDLL(str(self.path))
        self.loaded: list[str] = []
        self.log: Any = tensorrt_api.shared_log(engines.trt)
        every = "plugin_creator_list" if engines.major < 10 else "all_creators"
        behaviours = {"load_library": self.load, every: lambda registry: [object()] * self.count}
        engines.fake.behaviours.update({f"IPluginRegistry.{name}": what for name, what in behaviours.items()})

    @property
    def count(self) -> int:
        return ctypes.c_int.in_dll(self.library, "creators").value

    def load(self, registry: object, plugin_path: str) -> object | None:
        before = self.count
        opened = ctypes.CDLL(plugin_path)
        if not hasattr(opened, "getCreators"):
            self.log.log(type(self.log).ERROR, "SymbolAddress for getCreators could not be loaded")
            return None
        if plugin_path in self.loaded or self.count > before:
            return None
        self.loaded.append(plugin_path)
        self.library.register_creator()
        return object()


@needs_gcc
@VERSIONS
@pytest.mark.parametrize(
    ("source", "asked"),
    [(STATIC, False), (GIVEN, True), (STATIC + GIVEN, False), ("int nothing;", False)],
    ids=["static", "given", "both", "neither"],
)
def test_a_library_registers_its_plugins_once_whichever_way_it_has(
    version: str, source: str, asked: bool, tmp_path: Path
) -> None:
    model, ranges = loaded("residual"), ranged("residual")
    with standing_in(version) as engines:
        registry = Registry(engines, tmp_path)
        library = compiled(tmp_path / "plugin.so", source, registry.path)
        link = tmp_path / "link.so"
        link.symlink_to(library)
        backend = TensorRTBackend("cuda", TensorRTOptions(plugins=(str(library), str(link))))
        backend.float_session(model).close()
        for _ in range(2):
            builder = backend.builder(model, ranges)
            builder.build(builder.lower(uniform_and_mixed(model)[0]), tmp_path / "model.plan")
        assert registry.loaded == [str(library.resolve())] * asked
        assert registry.count == (source != "int nothing;")


@needs_gcc
@VERSIONS
def test_a_plan_without_its_model_is_opened_with_the_plugins_of_the_backend(version: str, tmp_path: Path) -> None:
    """As a gate does it, whose processes make no builder."""
    with standing_in(version) as engines:
        registry = Registry(engines, tmp_path)
        builder = TensorRTBackend().builder(loaded("residual"), ranged("residual"))
        plan = builder.build(builder.lower(uniform_and_mixed(loaded("residual"))[0]), tmp_path / "model.plan").path
        library = compiled(tmp_path / "plugin.so", GIVEN)
        backend = TensorRTBackend("cuda", TensorRTOptions(plugins=(str(library),)))
        TensorRTKind().open_engine(backend, plan, None).session.close()
        assert registry.loaded == [str(library)]


@needs_gcc
@VERSIONS
def test_an_export_is_opened_with_the_plugins_that_its_manifest_names(version: str, tmp_path: Path) -> None:
    """By a guard and by `inspect`, which know nothing of the study."""
    with standing_in(version) as engines:
        registry = Registry(engines, tmp_path)
        model = loaded("residual")
        builder = TensorRTBackend().builder(model, ranged("residual"))
        libraries = [compiled(tmp_path / f"{name}.so", GIVEN) for name in ("guarded", "inspected")]
        plans = []
        for library in libraries:
            folder = tmp_path / library.stem
            folder.mkdir()
            target = {"backend": "tensorrt", "options": {}}
            facts = {"model": {"digest": model.digest}, "target": target, "files": {}, "plugins": [str(library)]}
            (folder / "manifest.json").write_text(json.dumps(facts))
            plans.append(builder.build(builder.lower(uniform_and_mixed(model)[0]), folder / "model.plan").path)
        with Guard.open(plans[0].parent, plans[0].parent) as guard:
            guard.run(feeds(model))
        verbs.inspect(plans[1])
        assert registry.loaded == [str(library) for library in libraries]


@needs_gcc
@VERSIONS
def test_a_library_that_the_registry_refuses_is_named_with_its_words(version: str, tmp_path: Path) -> None:
    with standing_in(version) as engines:
        registry = Registry(engines, tmp_path)
        path = compiled(tmp_path / "old.so", "void *getPluginCreators(int *count) { return 0; }")
        backend = TensorRTBackend("cuda", TensorRTOptions(plugins=(str(path),)))
        for _ in range(2):  # what failed is not taken for loaded
            registry.log.log(type(registry.log).ERROR, "of something before")
            with pytest.raises(ConfigError, match=r"old\.so: TensorRT cannot load it: SymbolAddress for getCrea") as e:
                backend.builder(loaded("residual"), ranged("residual"))
            assert "\n" not in str(e.value)


@needs_gcc
def test_a_search_with_a_plugin_comes_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every process of it that opens the backend has the registry load the library, which does so only once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BITFRONT_TEST_TENSORRT", V10)
    write_inputs(tmp_path / "in")
    library = compiled(tmp_path / "plugin.so", GIVEN)
    options = ("--backend", "tensorrt", "--plugin", "plugin.so", "--trials", 4, "--max-drop", "20%", "--quiet")
    ok("search", "in/model.onnx", "--data", "in/data.npz", "--study", "s", *options)
    trial = json.loads(ok("front", "s", "--json"))["rows"][0]["trial"]
    ok("export", "s", "--trial", trial, "--out", "engine")
    command = Path("engine/trtexec.txt").read_text(encoding="utf-8")
    assert f"--staticPlugins={library}" in command
    assert "takes --dynamicPlugins" in command
    limits = ("--data", "in/data.npz", "--max-drop", "90%")
    ok("gate", "engine", "--against", "engine", *limits, "--plugin", library)


def test_a_file_that_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    with standing_in(V10) as engines:
        log = tensorrt_api.make_log(engines.trt)
        for name in ("text.so", "none.so"):
            with pytest.raises(ConfigError, match=rf"--plugin .*{name}: TensorRT cannot load it: .*{name}"):
                load_plugins(engines.trt, log, [str(tmp_path / name)])


def test_tensorrts_library_of_plugins_always_gets_the_same_log(tmp_path: Path) -> None:
    """It keeps the address, so what it gets has to outlive sessions, builders and backends."""
    given = []
    with standing_in(V10) as engines:
        engines.fake.behaviours["init_libnvinfer_plugins"] = lambda logger, namespace: given.append(id(logger)) or True
        for _ in range(2):
            backend = TensorRTBackend("cuda")
            backend.float_session(loaded("residual")).close()
            builder = backend.builder(loaded("residual"), ranged("residual"))
            del backend, builder
        assert given == [id(tensorrt_api.shared_log(engines.trt))] * 4


def test_an_op_that_only_a_plugin_knows_is_refused_with_the_reason(tmp_path: Path) -> None:
    n = Net(0)
    x = n.op("Relu", [n.conv("image", "first", 3, 16)], "relu")
    n.op("MyPlugin", [x], "mine", domain="trt.plugins")
    ends = [helper.make_tensor_value_info(*end) for end in (("image", 1, [4, 3, 8, 8]), ("mine_out", 1, [4, 16, 8, 8]))]
    graph = helper.make_graph(n.nodes, "net", ends[:1], ends[1:], n.weights)
    opsets = [helper.make_opsetid("", n.opset), helper.make_opsetid("trt.plugins", 1)]
    proto = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    model = load(save(proto, tmp_path / "net.onnx"))
    with standing_in(V10) as engines:
        backend = TensorRTBackend("cuda")
        engines.fake.behaviours["OnnxParser.parse"] = lambda parser, model, path=None: True  # it has the plugin
        with pytest.raises(ModelError, match=r"ONNX Runtime \(cpu\) cannot run .*trt\.plugins:MyPlugin") as error:
            backend.float_session(model)
        assert "is needed for calibration and the float reference" in str(error.value)
        assert "another backend or --plugin does not help" in str(error.value)
        engines.fake.behaviours["OnnxParser.parse"] = lambda parser, model, path=None: False
        with pytest.raises(ModelError, match="If ONNX Runtime supports it, you can also give --plugin with a library"):
            backend.float_session(model)
