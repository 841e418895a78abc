"""TensorRT's module in its different versions: features, log, plugins and parser."""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from evaluators.backends.tensorrt.options import STRONG, WEAK
from evaluators.engine import DeviceError, OutOfMemoryError, RefusedError
from search.errors import BitfrontError, ConfigError, TargetError
from search.graph.grouping import Group
from search.graph.model import Model
from search.installation import install_command
from search.values import Precision

_FIRST_STRONG = 10
_FIRST_WITHOUT_WEAK = 11
_MOST_NOTES = 8
_CUT_CHARS = 300  # of a warning
_REGION = re.compile(r"ForeignNode\[(.+?)\s*\.\.\.\s*(.+?)\]")
_NUMBER = re.compile(r"0x[0-9a-fA-F]+|\d+")
_EMPTY = re.compile(r"\s*(\d+:)?\s*")
_DERIVED = r"(?:/(?:q|dq|dq16|half|float|raw|int8|int32|bias|weight|scale|scale16|zero)\b)*"
# Said of every engine with INT8 in it, since ranges come from our own calibration; of tensors that have no range, to
# stay in float; and of every INT64 input and output, though a session's buffers have the types that the engine names.
_EXPECTED = re.compile(
    r"Calibrator is not being used|Missing scale and zero-point|Make sure (?:in|out)put .*has Int64 binding",
    re.IGNORECASE,
)
# Warnings that say something of the engine, by the name that a note of them carries.
_NAMED = (
    ("int64-weights", re.compile(r"INT64 weights|weights outside the range of INT32", re.IGNORECASE)),
    ("missing-ranges", re.compile(r"dynamic range|missing scale|calibrat", re.IGNORECASE)),
    (
        "half-weights",
        re.compile(r"converting weights between types|subnormal|FP16 range", re.IGNORECASE),
    ),
    ("half-layernorm", re.compile(r"layer_?norm|FP16 Reduce or Pow", re.IGNORECASE)),
    ("weak-typing", re.compile(r"weakly|deprecated|implicit quantization", re.IGNORECASE)),
    ("unsupported", re.compile(r"unsupported|not supported|no importer|plugin", re.IGNORECASE)),
)

# What TensorRT's registry calls in a library that it loads: from version 10 on, and before.
_ENTRY_POINTS = ("getCreators", "getPluginCreators")
# The registry belongs to the process, and refuses a library whose plugins it has. Nothing here is ever unloaded: the
# registry would keep pointers into what is gone.
_libraries: dict[Path, ctypes.CDLL] = {}


class ParseError(BitfrontError):
    """TensorRT's parser refuses a file: of the user's model a fault of the model, of a lowered one a refusal."""


def import_tensorrt() -> Any:
    """The tensorrt module.

    Raises:
        TargetError: it is not installed, or does not load, say because a library of it is cut short or missing.
    """
    try:
        import tensorrt
    except ModuleNotFoundError as error:
        raise TargetError(
            f"starting backend tensorrt: the package is not installed ({error}). Install it on a machine with an "
            f"NVIDIA GPU and driver: {install_command('tensorrt')}"
        ) from error
    except Exception as error:
        raise TargetError(
            f"starting backend tensorrt: the package cannot be loaded ({type(error).__name__}: {error}). Install it "
            "again, "
            "with the library that the error names. docs/tensorrt.md lists the versions for each driver."
        ) from error
    return tensorrt


def version(trt: Any) -> tuple[int, int]:
    """Major and minor version."""
    major, minor = trt.__version__.split(".")[:2]
    return int(major), int(minor)


def choose_typing(trt: Any, typing: str) -> str:
    """`weak` or `strong`: how an assignment is applied with this version.

    Raises:
        ConfigError: this version has no such typing.
    """
    major, _ = version(trt)
    if typing == "auto":
        return STRONG if major >= _FIRST_WITHOUT_WEAK else WEAK
    if typing == WEAK and major >= _FIRST_WITHOUT_WEAK:
        raise ConfigError(
            f"--typing weak: TensorRT {trt.__version__} no longer has weakly typed networks. Use --typing strong, or "
            "install a version from 8.6 to 10.x."
        )
    if typing == STRONG and major < _FIRST_STRONG:
        raise ConfigError(
            f"--typing strong: TensorRT {trt.__version__} has no strongly typed networks. Use --typing weak, or "
            "install version 10 or newer."
        )
    if typing not in (WEAK, STRONG):
        raise ConfigError(f"--typing {typing}: expected auto, weak or strong.")
    return typing


def has_instancenorm_flag(trt: Any) -> bool:
    """Whether the parser can be told to use TensorRT's own InstanceNormalization; the bindings of 8.6.0 cannot."""
    return hasattr(trt, "OnnxParserFlag")


def instancenorm_notes(trt: Any, model: Model) -> list[str]:
    """Says so where a model has InstanceNormalization and the parser cannot be told how to compute it."""
    if has_instancenorm_flag(trt) or not any(node.op_type == "InstanceNormalization" for node in model.graph.graph):
        return []
    return [
        f"instancenorm: the bindings of TensorRT {trt.__version__} have no switch for it, so InstanceNormalization is "
        "computed by the plugin, whatever --native-instancenorm says"
    ]


def set_threads(builder: Any, count: int) -> int | None:
    """Let a builder use so many threads, one unless it is told; how many, None if this version cannot be told."""
    if not hasattr(builder, "max_threads"):
        return None
    builder.max_threads = count
    return count


def make_log(trt: Any) -> Any:
    """A logger that keeps what TensorRT says; made here because its base class comes with the module."""

    # Not looked up when something is logged: TensorRT still speaks when Python, at its end, has emptied its modules.
    # Integers, as a build says much that nobody wants, and comparing severities takes five times as long.
    error, warning, number = int(trt.ILogger.ERROR), int(trt.ILogger.WARNING), int

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []
            self.warnings: list[str] = []

        def log(self, severity: Any, msg: str) -> None:
            level = number(severity)
            if level <= error:
                self.errors.append(msg)
            elif level == warning:
                self.warnings.append(msg)

        def clear(self) -> None:
            self.errors.clear()
            self.warnings.clear()

        def first_error(self) -> str:
            return first_error(self.errors)

    return Log()


@functools.lru_cache(maxsize=1)  # of the one module that a process has
def shared_log(trt: Any) -> Any:
    """The log of this process: TensorRT and its library of plugins keep its address after what it was given to."""
    return make_log(trt)


def notes_of(warnings: Sequence[str]) -> tuple[str, ...]:
    """Warnings as notes, each behind the name of its kind; repetitions counted instead of listed.

    Those of no known kind are alike where only numbers differ; each other one is a note of its own, while there is
    room for it.
    """
    texts_by_kind: dict[tuple[str, str], list[str]] = {}
    for warning in dict.fromkeys(warning.strip()[:_CUT_CHARS] for warning in warnings):
        if not warning or _EXPECTED.search(warning):
            continue
        name = next((name for name, pattern in _NAMED if pattern.search(warning)), "")
        kind = (name, "") if name else ("warning", _NUMBER.sub("#", warning))
        texts_by_kind.setdefault(kind, []).append(warning)
    notes = [
        _note(name, texts)
        for (name, _), texts in sorted(texts_by_kind.items(), key=lambda item: item[0][0] == "warning")
    ]
    if len(notes) <= _MOST_NOTES:
        return tuple(notes)
    left_out = f"warning: {len(notes) - _MOST_NOTES + 1} further warnings of other kinds"
    return (*notes[: _MOST_NOTES - 1], left_out)


def _note(name: str, texts: Sequence[str]) -> str:
    more = f" (and {len(texts) - 1} more of this kind)" if len(texts) > 1 else ""
    return f"{name}: {texts[0]}{more}"


def make_builder(trt: Any, log: Any, check_device: Callable[[], object]) -> Any:
    """TensorRT's builder; the first of a process takes seconds.

    Args:
        check_device: raises where the device itself is why TensorRT gives up.

    Raises:
        TargetError: this TensorRT cannot work on this machine, with its own first error line.
        DeviceError, OutOfMemoryError: it could, were the device in order.
    """
    return _make_or_refuse(trt, "builder", lambda: trt.Builder(log), log, check_device)


def make_runtime(trt: Any, log: Any, check_device: Callable[[], object]) -> Any:
    """TensorRT's runtime; arguments and errors as those of `make_builder`."""
    return _make_or_refuse(trt, "runtime", lambda: trt.Runtime(log), log, check_device)


def _make_or_refuse(trt: Any, what: str, make: Callable[[], Any], log: Any, check_device: Callable[[], object]) -> Any:
    log.clear()
    try:
        return make()
    except (TypeError, RuntimeError) as error:  # what the bindings make of an object that TensorRT could not make
        check_device()
        meant = refusal(log.errors or [str(error)], ())
        if not isinstance(meant, RefusedError):
            raise meant from error
        raise TargetError(
            f"starting backend tensorrt: TensorRT {trt.__version__} cannot make a {what} here: {meant}. If it is built "
            "for "
            "a newer CUDA than the driver supports, install the version for the driver (see docs/tensorrt.md) or "
            "update the driver."
        ) from error


def refusal(
    errors: Sequence[str], groups: Sequence[Group], assignment: Mapping[str, Precision] | None = None
) -> BitfrontError:
    """What the builder's errors mean: a refusal, with the group it names, or a device that is out of order.

    Args:
        assignment: of the engine that is built; its precisions tell the ends of a fused region apart.
    """
    message = first_error(errors)
    everything = "\n".join(errors)
    if re.search(r"out of memory|OutOfMemory", everything, re.IGNORECASE):
        return OutOfMemoryError(message)
    if re.search(r"illegal memory access|unspecified launch failure|device-side assert|CUDA error 7\d\d", everything):
        return DeviceError(message)
    return RefusedError(message, named_group(everything, groups, assignment))


def first_error(errors: Sequence[str]) -> str:
    """The first that says something: version 8.6 also reports `1: ` and nothing more."""
    telling = (error for error in errors if not _EMPTY.fullmatch(error))
    return next(telling, errors[0] if errors else "TensorRT gives no reason")[:1000]


def named_group(message: str, groups: Sequence[Group], assignment: Mapping[str, Precision] | None = None) -> str | None:
    """Id of the group whose node, tensor or weight is named first in a message; None if none is.

    Lowering names what it adds after what it serves, so such names count too. Of a fused region a message names the
    two ends, `{ForeignNode[first...last]}`: of these it is the one with the lower precision in the assignment.
    """
    region = _REGION.search(message)
    if region is None:
        return _first_named(message, groups)
    before = _first_named(message[: region.start()], groups)
    named = (_first_named(end, groups) for end in region.groups())
    ends = [group for group in named if group is not None]
    if before is not None or not ends:
        return before or _first_named(message[region.end() :], groups)
    return max(ends, key=lambda group: assignment[group]) if assignment else ends[0]  # of equals, the first


def _first_named(message: str, groups: Sequence[Group]) -> str | None:
    mentions = []
    for group in groups:
        for name in {*group.nodes, *group.tensors, *group.weights}:
            match = re.search(rf"(?<![\w./]){re.escape(name)}{_DERIVED}(?![\w./]*\w)", message)
            if match:
                # The first named counts; of two names at one place, the longer is meant.
                mentions.append((match.start(), -len(name), group.id))
    return min(mentions)[2] if mentions else None


def load_plugins(trt: Any, log: Any, libraries: Sequence[str]) -> None:
    """TensorRT's own plugins, and those libraries that this process has not loaded yet.

    Args:
        log: has to live as long as the process, since TensorRT's library of plugins keeps its address.

    Raises:
        ConfigError: a library cannot be loaded.
    """
    trt.init_libnvinfer_plugins(log, "")
    for library in libraries:
        path = Path(library).resolve()
        if path not in _libraries:
            _libraries[path] = _open_library(trt, log, library, path)


def _open_library(trt: Any, log: Any, library: str, path: Path) -> ctypes.CDLL:
    """Open a library, and have the registry ask it for its plugins unless it registered some by being opened."""
    registry = trt.get_plugin_registry()
    before, logged = _creator_count(registry), len(log.errors)
    try:
        opened = ctypes.CDLL(str(path))
        if _creator_count(registry) > before or not any(hasattr(opened, name) for name in _ENTRY_POINTS):
            return opened
        handle = registry.load_library(str(path))
    except Exception as error:
        raise ConfigError(f"--plugin {library}: TensorRT cannot load it: {error}. Check its path and build.") from error
    if handle is None:
        said = next(iter(log.errors[logged:]), "TensorRT gives no reason")
        raise ConfigError(
            f"--plugin {library}: TensorRT cannot load it: {said}. Its plugins may already be registered, for example "
            "by "
            "another library, or it may be built for another version."
        )
    return opened


def _creator_count(registry: Any) -> int:
    every = "all_creators" if hasattr(registry, "all_creators") else "plugin_creator_list"  # before version 10
    return len(getattr(registry, every))


def parse_network(
    trt: Any, builder: Any, log: Any, data: bytes, *, strong: bool = False, native_instancenorm: bool = True
) -> tuple[Any, Any]:
    """The network of an ONNX model, and its parser, which holds the weights and has to live as long.

    Raises:
        ParseError: TensorRT's parser does not know an op, or types do not agree.
    """
    network = builder.create_network(_network_flags(trt, strong))
    parser = trt.OnnxParser(network, log)
    _set_instancenorm(trt, parser, native_instancenorm)
    if not parser.parse(data):
        error = parser.get_error(0)
        named = getattr(error, "node_name", None)  # from version 10 on
        where = f"node {named() if named is not None and named() else error.node()}"
        lines = [line.strip() for line in str(error.desc()).splitlines()]
        said = "; ".join(line for line in lines if line and "Cuda Runtime" not in line) or "no reason given"
        raise ParseError(f"parsing with TensorRT {trt.__version__}: {said[:500]} ({where})")
    return network, parser


def _set_instancenorm(trt: Any, parser: Any, native: bool) -> None:
    if not has_instancenorm_flag(trt):
        return
    if native:
        parser.set_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)
    else:
        parser.clear_flag(trt.OnnxParserFlag.NATIVE_INSTANCENORM)


def _network_flags(trt: Any, strong: bool) -> int:
    """The flags of a network; from version 11 on every network is explicit in its batch and strongly typed."""
    flags = 0
    major, _ = version(trt)
    if major < _FIRST_STRONG:
        flags |= 1 << int(trt.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
    if strong and major < _FIRST_WITHOUT_WEAK:
        flags |= 1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    return flags


def layers_of(network: Any) -> list[Any]:
    return [network.get_layer(i) for i in range(network.num_layers)]


def inputs_of(layer: Any) -> list[Any]:
    """The tensors that a layer reads, without optional ones that are left out."""
    tensors = [layer.get_input(i) for i in range(layer.num_inputs)]
    return [tensor for tensor in tensors if tensor is not None]


def outputs_of(layer: Any) -> list[Any]:
    return [layer.get_output(i) for i in range(layer.num_outputs)]


def layer_kinds(trt: Any, names: Sequence[str]) -> set[Any]:
    """Layer types by name; not every version has each."""
    return {getattr(trt.LayerType, name) for name in names if hasattr(trt.LayerType, name)}
