"""What stands in for TensorRT's parser, builder and engines: enough to be called.

A plan lists the layers, inputs and outputs of its network. An engine that runs fills its outputs with ones, at the
addresses that it was given. A dimension without a size has a name instead, the same in inputs and outputs, and needs
an optimization profile.
"""

from __future__ import annotations

import ctypes
import json
import weakref
from collections.abc import Mapping
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from tests.support.tensorrt.fake_cuda import FakeCuda
from tests.support.tensorrt.fake_tensorrt import FakeTensorRT

_LAYER_TYPES = {
    "Cast": "CAST",
    "Concat": "CONCATENATION",
    "Conv": "CONVOLUTION",
    "ConvTranspose": "DECONVOLUTION",
    "DequantizeLinear": "DEQUANTIZE",
    "Gemm": "MATRIX_MULTIPLY",
    "MatMul": "MATRIX_MULTIPLY",
    "MaxPool": "POOLING",
    "QuantizeLinear": "QUANTIZE",
    "Resize": "RESIZE",
    "Transpose": "SHUFFLE",
    "Reshape": "SHUFFLE",
}
_DTYPES = {
    TensorProto.FLOAT: "FLOAT",
    TensorProto.FLOAT16: "HALF",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.INT8: "INT8",
    TensorProto.INT32: "INT32",
    TensorProto.BOOL: "BOOL",
}
_NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "INT8": np.int8, "INT32": np.int32, "INT64": np.int64, "BOOL": bool}
_UNTOLD = "N/A due to dynamic shapes"
_WORDS = {"FLOAT": "FP32", "HALF": "FP16", "BF16": "BFloat16", "INT8": "Int8"}
_MAGIC = b"fake plan "


class FakeEngines:
    """Behaviours of one version's fake."""

    def __init__(self, version: str) -> None:
        self.fake = FakeTensorRT(version)
        self.trt: Any = self.fake.module
        self.major = int(version.split(".")[0])
        self.cuda = FakeCuda()
        self.libraries: set[str] = set()
        self.fake.behaviours.update(
            {
                "get_plugin_registry": lambda: self.fake.create("IPluginRegistry"),
                "nptype": lambda trt_type: _NUMPY[trt_type.name],
                "Builder.build_serialized_network": self._build,
                "Builder.create_network": self._network,
                "EngineInspector.get_engine_information": self._information,
                "ICudaEngine.create_engine_inspector": lambda e: self.fake.create("EngineInspector", plan=_plan(e)),
                "ICudaEngine.create_execution_context": lambda e, **_: self._context(e),
                "ICudaEngine.get_tensor_dtype": lambda e, name: self._dtype(_plan(e)["tensors"][name]["dtype"]),
                "ICudaEngine.get_tensor_mode": lambda e, name: self.fake.member(
                    "TensorIOMode", _plan(e)["tensors"][name]["mode"]
                ),
                "ICudaEngine.get_tensor_name": lambda e, index: list(_plan(e)["tensors"])[index],
                "ICudaEngine.get_tensor_profile_shape": lambda e, name, profile_index: [
                    self.fake.dims(list(shape)) for shape in _plan(e)["profile"][name]
                ],
                "ICudaEngine.get_tensor_shape": lambda e, name: self.fake.dims(
                    [-1 if isinstance(dim, str) else dim for dim in _plan(e)["tensors"][name]["shape"]]
                ),
                "ICudaEngine.num_io_tensors": lambda e: len(_plan(e)["tensors"]),
                "IBuilderConfig.add_optimization_profile": _add_profile,
                "IBuilderConfig.clear_flag": lambda c, flag: c._state.setdefault("flags", set()).discard(flag.name),
                "IBuilderConfig.get_flag": lambda c, flag: flag.name in c._state.get("flags", ()),
                "IBuilderConfig.set_flag": lambda c, flag: c._state.setdefault("flags", set()).add(flag.name),
                "IExecutionContext.execute_async_v3": self._execute,
                "IExecutionContext.get_tensor_shape": lambda c, name: self.fake.dims(_shape_of(c, name)),
                "IExecutionContext.set_input_shape": _set_shape,
                "IExecutionContext.set_tensor_address": _set_address,
                "IPluginRegistry.load_library": self._load_library,
                "IOptimizationProfile.set_shape": _set_profile,
                "IActivationLayer.type": lambda layer: layer._state["activation"],
                "ILayer.get_input": lambda layer, index: layer._state["inputs"][index],
                "ILayer.get_output": lambda layer, index: layer._state["outputs"][index],
                "ILayer.set_output_type": lambda layer, index, dtype: layer._state.update(made=dtype.name),
                "INetworkDefinition.add_identity": self._add_identity,
                "INetworkDefinition.get_input": lambda network, index: network._state["inputs"][index],
                "INetworkDefinition.get_layer": lambda network, index: network._state["layers"][index],
                "INetworkDefinition.get_output": lambda network, index: network._state["outputs"][index],
                "INetworkDefinition.mark_output": _mark_output,
                "INetworkDefinition.num_outputs": lambda network: len(network._state["outputs"]),
                "INetworkDefinition.unmark_output": lambda network, tensor: network._state["outputs"].remove(tensor),
                "INetworkDefinition.num_inputs": lambda network: len(network._state["inputs"]),
                "INetworkDefinition.num_layers": lambda network: len(network._state["layers"]),
                "ITensor.set_dynamic_range": _set_range,
                "ITimingCache.serialize": lambda cache: self.fake.memory(b"timings"),
                "OnnxParser.get_error": self._parse_error,
                "OnnxParser.parse": self._parse,
                "Runtime.deserialize_cuda_engine": self._deserialize,
            }
        )

    # -- parsing and building --------------------------------------------------------------------------------------

    def _network(self, builder: Any, flags: int = 0) -> Any:
        known = self.fake.listing["classes"]["NetworkDefinitionCreationFlag"]["members"]
        set_ = {name for name, bit in known.items() if flags >> bit & 1}
        assert flags == sum(1 << known[name] for name in set_), f"flags {flags:b} of {known}"
        assert self.major >= 10 or "EXPLICIT_BATCH" in set_, "TensorRT 8.6 needs explicit batch for ONNX"
        strong = self.major >= 11 or "STRONGLY_TYPED" in set_
        return self.fake.create("INetworkDefinition", strong=strong, layers=[], inputs=[], outputs=[])

    def _parse(self, parser: Any, model: bytes, path: str | None = None) -> bool:
        try:
            proto = onnx.shape_inference.infer_shapes(onnx.load_from_string(bytes(model)), strict_mode=True)
        except Exception:
            return False
        _NetworkWriter(self, parser._state["network"], proto.graph).write()
        return True

    def _add_identity(self, network: Any, input: Any) -> Any:  # noqa: A002
        name = f"(Unnamed Layer* {len(network._state['layers'])})"
        copy = self._tensor(f"{name}_output", input.dtype.name, input._state["dims"])
        state = {"inputs": [input], "outputs": [copy], "num_inputs": 1, "num_outputs": 1}
        kind = self.fake.member("LayerType", "IDENTITY")
        layer = self.fake.create("IIdentityLayer", name=name, type=kind, **state)
        network._state["layers"].append(layer)
        return layer

    def _tensor(self, name: str, dtype: str, dims: tuple[int | str, ...]) -> Any:
        shape = self.fake.dims([-1 if isinstance(dim, str) else dim for dim in dims])
        state = {"name": name, "dtype": self._dtype(dtype), "shape": shape, "dims": dims}
        return self.fake.create("ITensor", is_network_output=False, **state)

    def _parse_error(self, parser: Any, index: int) -> Any:
        return self.fake.create("ParserError")

    def _build(self, builder: Any, network: Any, config: Any) -> Any:
        profile = config._state.get("profile", {})
        error = self._refused(network, config._state.get("flags", set()), profile)
        if error:
            builder.logger.log(self.trt.ILogger.ERROR, error)
            return None
        layers = [
            {"name": layer.name, "kind": layer.type.name, "precision": _precision(layer, network._state["strong"])}
            for layer in network._state["layers"]
        ]
        modes = {"INPUT": network._state["inputs"], "OUTPUT": network._state["outputs"]}
        tensors = {
            t.name: {"mode": mode, "dtype": t.dtype.name, "shape": t._state["dims"]}
            for mode in modes
            for t in modes[mode]
        }
        plan = {"layers": layers, "tensors": tensors, "profile": profile}
        return self.fake.memory(_MAGIC + json.dumps(plan).encode())

    def _refused(self, network: Any, flags: set[str], profile: Mapping[str, Any]) -> str:
        """What the documentation says no network is built with."""
        for tensor in network._state["inputs"]:
            if any(isinstance(dim, str) for dim in tensor._state["dims"]) and tensor.name not in profile:
                return "Network has dynamic or shape inputs, but no optimization profile has been defined."
        typed = flags & {"FP16", "INT8", "OBEY_PRECISION_CONSTRAINTS"}
        if network._state["strong"]:
            return f"a strongly typed network takes no flags {sorted(typed)}" if typed else ""
        if {"INT8", "FP8"} <= flags:  # 8.6.0 on an H100
            return "Internal Error (INT8 mode and FP8 mode aren't allowed to be enabled together.)"
        layers = network._state["layers"]
        tensors = [t for each in layers for t in (*each._state["inputs"], *each._state["outputs"]) if t is not None]
        quantized = any(each.type.name in ("QUANTIZE", "DEQUANTIZE") for each in layers)
        if "INT8" in flags and not quantized and not any("range" in tensor._state for tensor in tensors):
            return "Internal Error (Calibration failure occurred with no scaling factors detected)"  # 8.6.0 on an H100
        for layer in layers:
            precision = layer._state.get("precision")
            needed = {"HALF": "FP16", "INT8": "INT8"}.get(precision.name) if precision is not None else None
            if needed and needed not in flags:
                return f"{layer.name} asks for {needed}, which the builder configuration has no flag for"
            for tensor in (*layer._state["inputs"], *layer._state["outputs"]) if needed == "INT8" else ():
                if tensor is not None and tensor.dtype.name == "FLOAT" and "range" not in tensor._state:
                    return f"tensor {tensor.name} has no dynamic range"
        return ""

    def _dtype(self, name: str) -> Any:
        return self.fake.member("DataType", name)

    def _load_library(self, registry: Any, plugin_path: str) -> object | None:
        """As documented: nothing where any of a library's plugins is registered already."""
        if plugin_path in self.libraries:
            return None
        self.libraries.add(plugin_path)
        return object()

    # -- engines ---------------------------------------------------------------------------------------------------

    def _deserialize(self, runtime: Any, serialized_engine: bytes) -> Any:
        data = bytes(serialized_engine)
        if not data.startswith(_MAGIC) or not data.endswith(b"}"):
            runtime.logger.log(self.trt.ILogger.ERROR, "Serialization assertion failed")
            return None
        return self.fake.create("ICudaEngine", plan=json.loads(data[len(_MAGIC) :]))

    def _information(self, inspector: Any, format: Any) -> str:  # noqa: A002
        assert format == self.trt.LayerInformationFormat.JSON
        key = "Bindings" if self.major < 11 else "I/O Tensors"
        plan = _plan(inspector)
        sized = not plan["profile"]
        if "execution_context" in inspector._state:
            assert inspector.execution_context is not None, "the inspector reads a context that is gone: it crashes"
            sized = sized or self.major > 8  # 8.6.0 told no formats then either
        layers = [self._layer(layer, sized) for layer in plan["layers"]]
        return json.dumps({"Layers": layers, key: list(plan["tensors"])})

    def _layer(self, layer: Mapping[str, str], sized: bool) -> dict[str, Any]:
        known = _WORDS.get(layer["precision"], layer["precision"])
        word = known if sized else _UNTOLD
        if self.major >= 11:
            tensor = {"Name": "x", "Format": "Row major linear format", "Datatype": word}
        else:
            tensor = {"Name": "x", "Format/Datatype": f"Row major linear {word} format" if sized else word}
        return {
            "Name": layer["name"],
            "LayerType": layer["kind"],
            "Inputs": [tensor],
            "Outputs": [tensor],
            # Where formats are not told, the type of the weights is all that tells a kernel's precision.
            **({} if sized else {"Weights": {"Type": known, "Count": 1}}),
            "Metadata": f"[ONNX Layer: {layer['name']}]",
        }

    def _context(self, engine: Any) -> Any:
        """Before version 10 contexts do not share an optimization profile: only one at a time has the single one."""
        alive = engine._state.setdefault("contexts", weakref.WeakSet())
        taken = self.major < 10 and any(context._state["has_profile"] for context in alive)
        state = {"plan": _plan(engine), "shapes": {}, "addresses": {}, "profiler": None}
        context = self.fake.create("IExecutionContext", **state, has_profile=not (_plan(engine)["profile"] and taken))
        alive.add(context)
        return context

    def _execute(self, context: Any, stream_handle: Any) -> bool:
        assert int(stream_handle) in self.cuda.streams
        if self.cuda.device_of[int(stream_handle)] != self.cuda.cudaGetDevice()[1]:
            return False
        state = context._state
        if not state["has_profile"]:
            return False
        for name, tensor in state["plan"]["tensors"].items():
            ones = np.ones(_shape_of(context, name), _NUMPY[tensor["dtype"]])
            assert self.cuda.holds(state["addresses"][name], ones.nbytes), f"{name} lies nowhere"
            if tensor["mode"] == "OUTPUT" and not self.cuda.capturing:
                ctypes.memmove(state["addresses"][name], ones.ctypes.data, ones.nbytes)
        if state["profiler"] is not None:
            assert not self.cuda.capturing, "a context with a profiler cannot be captured"
            for layer in state["plan"]["layers"]:
                state["profiler"].report_layer_time(layer["name"], 0.5)
        return True


class _NetworkWriter:
    """Writes an ONNX graph into a network: a layer per node, named like it, and one per constant as TensorRT has."""

    def __init__(self, engines: FakeEngines, network: Any, graph: onnx.GraphProto) -> None:
        self.engines, self.state, self.graph = engines, network._state, graph
        self.infos = {info.name: info.type.tensor_type for info in (*graph.input, *graph.value_info, *graph.output)}
        self.tensors: dict[str, Any] = {}

    def write(self) -> None:
        self.state["inputs"] = [self._tensor(info.name) for info in self.graph.input]
        self._write(self.graph)
        for info in self.graph.output:
            _mark_output(SimpleNamespace(_state=self.state), self.tensors[info.name])

    def _write(self, graph: onnx.GraphProto) -> None:
        for constant in graph.initializer:
            made = self._made(constant.name, constant.data_type, constant.dims, f"{constant.name}_output")
            weights = onnx.numpy_helper.to_array(constant).ravel()
            self._add(constant.name, "CONSTANT", [], [made], weights=weights)
        for node in graph.node:
            self._add_bodies(node)
            outputs = [self._tensor(name) for name in node.output if name]
            inputs = [self.tensors.get(name) for name in node.input]
            self._add_node(node, inputs, outputs)

    def _add_bodies(self, node: onnx.NodeProto) -> None:
        """Add the nodes in the bodies of an If, before the If itself."""
        for body in (attribute.g for attribute in node.attribute if attribute.HasField("g")):
            self.infos.update({info.name: info.type.tensor_type for info in (*body.value_info, *body.output)})
            self._write(body)

    def _add_node(self, node: onnx.NodeProto, inputs: list[Any], outputs: list[Any]) -> None:
        if node.op_type == "Gemm" and len(inputs) > 2:
            self._add_gemm(node.name, inputs, outputs)
        elif node.op_type in ("Conv", "ConvTranspose") and len(self.infos[node.output[0]].shape.dim) == 3:
            self._add_1d(node, inputs, outputs)
        elif node.op_type == "LogSoftmax":
            shares, logs = (self._like(outputs[0], f"{node.name}{end}_output") for end in ("", "_0"))
            self._add(node.name, "SOFTMAX", inputs, [shares])
            self._add(f"{node.name}_0", "UNARY", [shares], [logs], op=self._member("UnaryOperation", "LOG"))
            self._add(f"{node.name}_1", "SHUFFLE", [logs], outputs)
        elif node.op_type == "HardSwish":
            gate = self._like(outputs[0], f"{node.name}_output")
            kind = self._member("ActivationType", "HARD_SIGMOID")
            self._add(node.name, "ACTIVATION", inputs, [gate], activation=kind)
            product = self._member("ElementWiseOperation", "PROD")
            self._add(f"{node.name}_0", "ELEMENTWISE", [inputs[0], gate], outputs, op=product)
        elif node.op_type == "ReduceL2":
            squares, total = (self._like(outputs[0], f"{node.name}{end}_output") for end in ("", "_0"))
            product = self._member("ElementWiseOperation", "PROD")
            self._add(node.name, "ELEMENTWISE", [inputs[0], inputs[0]], [squares], op=product)
            self._add(f"{node.name}_0", "REDUCE", [squares], [total])
            self._add(f"{node.name}_1", "UNARY", [total], outputs, op=self._member("UnaryOperation", "SQRT"))
        else:
            op = self._member("ElementWiseOperation", "SUM" if node.op_type == "Add" else "PROD")
            self._add(node.name, _LAYER_TYPES.get(node.op_type, "ELEMENTWISE"), inputs, outputs, op=op)

    def _add_1d(self, node: onnx.NodeProto, inputs: list[Any], outputs: list[Any]) -> None:
        """A convolution of two dimensions between two changes of shape."""
        names = self.engines.fake.listing["classes"]["LayerType"]["members"]
        wide, made = self._like(inputs[0], f"{node.name}.wide"), self._like(outputs[0], f"{node.name}_output")
        widen, narrow = ("UNSQUEEZE", "SQUEEZE") if "SQUEEZE" in names else ("SHUFFLE", "SHUFFLE")
        self._add("ONNXTRT_unsqueezeTensor", widen, inputs[:1], [wide])
        self._add(node.name, _LAYER_TYPES[node.op_type], [wide, *inputs[1:]], [made])
        self._add("ONNXTRT_squeezeTensor", narrow, [made], outputs)

    def _member(self, kind: str, name: str) -> Any:
        return self.engines.fake.member(kind, name)

    def _like(self, tensor: Any, name: str) -> Any:
        return self.engines._tensor(name, tensor.dtype.name, tensor._state["dims"])

    def _add_gemm(self, name: str, inputs: list[Any], outputs: list[Any]) -> None:
        """A product and a sum, with a tensor between them that the model does not have."""
        product = self.engines._tensor(f"{name}_output", outputs[0].dtype.name, outputs[0]._state["dims"])
        self._add(name, "MATRIX_MULTIPLY", inputs[:2], [product])
        op = self.engines.fake.member("ElementWiseOperation", "SUM")
        self._add(f"{name}_1", "ELEMENTWISE", [product, inputs[2]], outputs, op=op)

    def _add(self, name: str, kind: str, inputs: list[Any], outputs: list[Any], **more: Any) -> None:
        fake = self.engines.fake
        sizes = {"num_inputs": len(inputs), "num_outputs": len(outputs)}
        state = {"inputs": inputs, "outputs": outputs, **sizes, **more}
        # One list of names for all graphs of a model: who comes first keeps his.
        taken = {layer.name for layer in self.state["layers"]}
        if name in taken:
            name = next(free for i in count() if (free := f"{name}_{i}") not in taken)
        self.state["layers"].append(fake.create("ILayer", name=name, type=fake.member("LayerType", kind), **state))

    def _tensor(self, name: str) -> Any:
        kind = self.infos[name]
        dims = [
            d.dim_value if d.HasField("dim_value") else d.dim_param or f"{name}.{i}"
            for i, d in enumerate(kind.shape.dim)
        ]
        return self._made(name, kind.elem_type, dims)

    def _made(self, name: str, dtype: int, shape: Any, called: str = "") -> Any:
        wide = "INT64" if self.engines.major >= 10 else "INT32"
        self.tensors[name] = self.engines._tensor(called or name, _DTYPES.get(dtype, wide), tuple(shape))
        return self.tensors[name]


def _precision(layer: Any, strong: bool) -> str:
    """What a layer runs in: as set on it; strongly typed, INT8 behind a DequantizeLinear, else its tensor's type."""
    if not strong and "precision" in layer._state:
        return str(layer._state["precision"].name)
    first = next((tensor for tensor in layer._state["inputs"] if tensor is not None), None)
    if first is None:
        return "FLOAT"
    dequantized = strong and first.name.endswith(("/dq_out", "/dq16_out"))
    return "INT8" if dequantized else str(first.dtype.name)


def _plan(owner: Any) -> Any:
    return owner._state["plan"]


def _mark_output(network: Any, tensor: Any) -> None:
    tensor._state["is_network_output"] = True
    network._state["outputs"].append(tensor)


def _set_range(tensor: Any, min: float, max: float) -> bool:  # noqa: A002
    tensor._state["range"] = (min, max)
    return True


def _add_profile(config: Any, profile: Any) -> int:
    config._state["profile"] = {name: [list(end) for end in ends] for name, ends in profile._state.items()}
    return 0


def _set_profile(profile: Any, input: str, min: Any, opt: Any, max: Any) -> None:  # noqa: A002
    assert all(a <= b <= c for a, b, c in zip(min, opt, max, strict=True))
    profile._state[input] = (min, opt, max)


def _set_shape(context: Any, name: str, shape: Any) -> bool:
    ends = _plan(context)["profile"].get(name)
    if not context._state["has_profile"]:
        return False
    if ends is not None and not all(a <= n <= c for a, n, c in zip(ends[0], shape, ends[2], strict=True)):
        return False
    context._state["shapes"][name] = tuple(shape)
    return True


def _shape_of(context: Any, name: str) -> list[int]:
    """The shape of a tensor at the sizes that the inputs have; -1 for sizes that do not follow from them."""
    tensors, sizes = _plan(context)["tensors"], {}
    for known, shape in context._state["shapes"].items():
        sizes.update(zip(tensors[known]["shape"], shape, strict=True))
    return [sizes.get(dim, -1) if isinstance(dim, str) else dim for dim in tensors[name]["shape"]]


def _set_address(context: Any, name: str, memory: int) -> bool:
    context._state["addresses"][name] = int(memory)
    return True
