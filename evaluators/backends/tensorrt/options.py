"""The options of TensorRT as rows of the option table, and those of them that change the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluators.backends.kind import option

NAME = "tensorrt"
# `tensorrt` fetches the one for the newest CUDA; those with a CUDA in their names are installed by themselves, too.
PACKAGES = (
    *("tensorrt", "tensorrt-bindings"),
    *("tensorrt-cu12", "tensorrt-cu12-bindings", "tensorrt-cu13", "tensorrt-cu13-bindings"),
)
WEAK, STRONG = "weak", "strong"
GIB = 1 << 30


@dataclass(frozen=True)
class TensorRTOptions:
    """What a TensorRT backend is opened with, and what its builder takes: the same, as this version and GPU have them.

    Attributes:
        threads: of ONNX Runtime where it helps out (checks before calibration); no engine uses it.
        typing: `auto`, `weak` (precision set on layers, obeyed) or `strong` (written into the ONNX as Q/DQ and Cast);
            of a builder one of the last two.
        workspace_bytes: scratch memory a tactic may take.
        optimization_level: 0 to 5; higher tries more tactics.
        tf32: lets FP32 matrix work run on TF32 units.
        sparsity: lets weights with a 2:4 pattern run on sparse units.
        native_instancenorm: TensorRT's own InstanceNormalization instead of the plugin.
        plugins: paths of plugin libraries.
        timing_cache: folder that measured tactics are kept in, a file per device and version; of a builder that file.
            None: in memory only.
        build_threads: of the processor, for the builder; None: all that this process may run on.
    """

    threads: int = 1
    typing: str = option(
        "choice",
        "auto",
        "How precisions are given to TensorRT: auto, weak or strong typing.",
        metavar="KIND",
        choices=("auto", WEAK, STRONG),
        verbs=("resume", "worker", "inspect", "sensitivity"),
    )
    workspace_bytes: int = option(
        "size", 4 * GIB, "Largest scratch memory that a TensorRT kernel may use.", name="workspace", metavar="SIZE"
    )
    optimization_level: int = option(
        "count",
        3,
        "Optimization level of TensorRT, 0 to 5. With auto, the time of the first build decides.",
        metavar="N",
        most=5,
        auto=True,
        final=True,
    )
    tf32: bool = option(
        "switch",
        True,
        "Whether FP32 layers of TensorRT may compute in TF32: on or off.",
        metavar="SWITCH",
        verbs=("resume", "worker"),
    )
    sparsity: bool = option("flag", False, "Let TensorRT use kernels for weights with 2:4 sparsity.")
    native_instancenorm: bool = option(
        "switch",
        True,
        "Whether InstanceNormalization runs in TensorRT's own layer instead of its plugin: on or off.",
        metavar="SWITCH",
    )
    plugins: tuple[str, ...] = option(
        "file",
        (),
        "Plugin library that TensorRT loads. Can be repeated.",
        name="plugin",
        metavar="FILE",
        many=True,
        verbs=("gate",),
    )
    timing_cache: str | None = option(
        "folder",
        None,
        "Folder for TensorRT's timing cache, or none to keep no cache.",
        metavar="DIR",
        default_text="beside the engines",
    )
    build_threads: int | None = option(
        "count",
        None,
        "How many CPU threads TensorRT's builder uses.",
        metavar="N",
        least=1,
        most=4096,
        default_text="all available",
    )

    def to_json(self) -> dict[str, str]:
        """What an evaluation's digest is made of: plugins by content; no timing cache and threads, which save time."""
        knobs = {
            "typing": self.typing,
            "workspace_bytes": str(self.workspace_bytes),
            "optimization_level": str(self.optimization_level),
            "tf32": _word(self.tf32),
            "sparsity": _word(self.sparsity),
            "native_instancenorm": _word(self.native_instancenorm),
            "hardware_compatibility": "none",
            "version_compatible": "false",
        }
        return knobs | _plugin_digests(self.plugins)


def _plugin_digests(libraries: Sequence[str]) -> dict[str, str]:
    """`plugin:NAME` → digest of the content; `plugin:NAME#2` and so on where libraries of several folders share a name.

    These are in the order of their digests: the order on the command line changes nothing that is built.
    """
    digests: dict[str, set[str]] = {}
    for library in map(Path, libraries):
        digests.setdefault(f"plugin:{library.name}", set()).add(hashlib.sha256(library.read_bytes()).hexdigest())
    return {
        name if number == 1 else f"{name}#{number}": digest
        for name, namesakes in digests.items()
        for number, digest in enumerate(sorted(namesakes), start=1)
    }


def _word(value: bool) -> str:
    return str(value).lower()
