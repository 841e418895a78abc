"""The backend TensorRT on one GPU: its typing, and the facts that make measurements comparable."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from evaluators.backends.capabilities.restricted import shipped_capability
from evaluators.backends.nvidia import discovery
from evaluators.backends.nvidia.discovery import is_native
from evaluators.backends.nvidia.state import GpuState
from evaluators.backends.tensorrt import api
from evaluators.backends.tensorrt.builder import TensorRTBuilder, model_bytes
from evaluators.backends.tensorrt.device import check_cuda, check_device, import_cuda, select
from evaluators.backends.tensorrt.options import NAME, STRONG, TensorRTOptions
from evaluators.cores import usable_processors
from evaluators.lowering.placement import TENSORRT_BY_TYPING, Placement
from search.errors import ModelError, TargetError
from search.graph.model import Model
from search.values import GPU_CLOCK, Capability, Precision, Ranges, Target, digest_of

# How weakly typed engines treat layers of no group. It tells evaluations apart: another treatment needs another name.
_WITHOUT_GROUP = "ranges of all groups, moves in float, one range through Resize and Concat, fixed types"


class TensorRTBackend:
    """TensorRT on one GPU.

    Args:
        device: `cuda` or `cuda:N`.
        options: of all its builds.

    Raises:
        TargetError: TensorRT or the CUDA bindings are not installed, or there is no such GPU.
        ConfigError: this version cannot do what an option asks for.
    """

    quick_profile = True

    def __init__(self, device: str = "cuda", options: TensorRTOptions | None = None) -> None:
        options = options or TensorRTOptions()
        self.trt = api.import_tensorrt()
        self.threads = options.threads
        index = discovery.cuda_index(device)
        if index is None:
            raise TargetError(f"--device {device}: expected cuda or cuda:N for backend tensorrt.")
        self.index = index
        self.cuda = import_cuda()
        self.properties = select(self.cuda, self.index)
        self.builder_knobs = self._settle(options)
        self._builders: list[TensorRTBuilder] = []  # the one in use
        self._state = GpuState(discovery.gpu_uuid(self.index) or self.index)

    @property
    def placement(self) -> Placement:
        return TENSORRT_BY_TYPING[self.builder_knobs.typing]

    def _settle(self, options: TensorRTOptions) -> TensorRTOptions:
        """The options as this version and this GPU have them."""
        return replace(
            options,
            typing=api.choose_typing(self.trt, options.typing),
            native_instancenorm=options.native_instancenorm and api.has_instancenorm_flag(self.trt),
            timing_cache=self._timing_cache_file(options.timing_cache),
        )

    def _timing_cache_file(self, folder: str | None) -> str | None:
        """A cache holds for one device, one TensorRT and one CUDA version."""
        if folder is None:
            return None
        versions = "-".join(self.target_versions().values())
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{self._device_name()}-{versions}")
        return str(Path(folder) / f"{name}-{digest_of(name)[:8]}.timing")

    def _device_name(self) -> str:
        name = self.properties.name
        return (name.decode() if isinstance(name, bytes) else str(name)).strip("\x00")

    def target_versions(self) -> dict[str, str]:
        driver = check_cuda(self.cuda.cudaDriverGetVersion())
        return {
            "tensorrt": self.trt.__version__,
            "compute_capability": f"{self.properties.major}.{self.properties.minor}",
            "cuda_driver": str(driver // 1000),
        }

    def target(self) -> Target:
        knobs = self.builder_knobs
        return Target(
            backend=NAME,
            device=self._device_name(),
            versions=self.target_versions(),
            options={"tf32": str(knobs.tf32).lower(), "launch": "cuda graph", "typing": knobs.typing},
            statistic="median",
            relative=False,
            clock=GPU_CLOCK,
        )

    def capability(self) -> Capability:
        older = ("tensorrt-8",) if api.version(self.trt)[0] < 10 else ()
        weak = () if self.builder_knobs.typing == STRONG else ("tensorrt-weak",)
        capability = shipped_capability("tensorrt", *older, *weak)
        version = (int(self.properties.major), int(self.properties.minor))
        # Products with weights alone in integers are those of 16-bit floats, from the first GPUs with BF16 on.
        kinds = {each: Precision.BF16.label if each.blocks else each.label for each in capability.ops}
        native = {each: ops for each, ops in capability.ops.items() if ops and is_native(kinds[each], version)}
        return replace(capability, ops=native)

    def knobs(self) -> dict[str, str]:
        weak = {} if self.builder_knobs.typing == STRONG else {"without_group": _WITHOUT_GROUP}
        return {"placement": self.placement.name, **weak, **self.builder_knobs.to_json()}

    @property
    def lock_name(self) -> str:
        return discovery.lock_name(self.index)

    @property
    def notes(self) -> tuple[str, ...]:
        return (self._state.note,) if self._state.note else ()

    def device_state(self) -> Mapping[str, Any]:
        return self._state.read()

    def float_session(self, model: Model) -> Any:
        from evaluators.backends.onnxruntime.backend import OnnxRuntimeBackend

        log = api.shared_log(self.trt)
        api.load_plugins(self.trt, log, self.builder_knobs.plugins)
        try:
            network, _parser = api.parse_network(
                self.trt,
                self._shared_builder,
                log,
                model_bytes(model.graph),
                strong=self.builder_knobs.typing == STRONG,
                native_instancenorm=self.builder_knobs.native_instancenorm,
            )
        except api.ParseError as error:
            raise ModelError(
                f"checking the model on backend tensorrt: {error}. Remove or replace the op. If ONNX Runtime "
                "supports it, you can also give --plugin with a library that has it for TensorRT, or --backend "
                "onnxruntime."
            ) from error
        _refuse_unsized_outputs(network, model)
        return OnnxRuntimeBackend("cpu", threads=usable_processors()).float_session(model)

    def check(self) -> None:
        log = api.shared_log(self.trt)
        api.make_runtime(self.trt, log, self._check_device)
        assert self._shared_builder is not None

    @cached_property
    def _shared_builder(self) -> Any:
        """TensorRT's builder, one for the process: on an H200 each takes 11 to 12 s to make, also the second one."""
        return api.make_builder(self.trt, api.shared_log(self.trt), self._check_device)

    def builder(self, model: Model, ranges: Ranges) -> TensorRTBuilder:
        timing = self._builders[-1].timing if self._builders else None
        made = TensorRTBuilder(
            self.trt, model, ranges, self.builder_knobs, self._check_device, lambda: self._shared_builder, timing
        )
        self._builders = [made]
        return made

    def set_options(self, options: Mapping[str, Any]) -> None:
        """Build at another optimization level, with what the builder has learnt of tactics' times by now."""
        self.builder_knobs = replace(self.builder_knobs, optimization_level=int(options["optimization_level"]))
        for made in self._builders:
            made.knobs = self.builder_knobs

    def _check_device(self) -> None:
        check_device(self.cuda)


def _refuse_unsized_outputs(network: Any, model: Model) -> None:
    """Buffers are made once, so what only the data decide has no place; a custom op's plugin may still tell a size."""
    outputs = [network.get_output(i) for i in range(network.num_outputs)]
    unsized = [tensor.name for tensor in outputs if -1 in tuple(tensor.shape) and tensor.name not in model.shapes]
    custom = any(node.domain not in ("", "ai.onnx") for node in model.graph.graph.all_nodes())
    if unsized and not (model.profiles and custom):
        raise ModelError(
            f"checking the model on backend tensorrt: expected outputs whose size follows from the inputs' shapes, but "
            f"that of {unsized[0]!r} depends on the data, as with NonZero or NonMaxSuppression. Cut the model before "
            "that op, for example with onnx.utils.extract_model, and run the rest after the engine; or use --backend "
            "onnxruntime."
        )
