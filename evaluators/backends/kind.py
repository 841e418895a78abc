"""The description of a backend before it is opened: its name, options, extra, checks and export files.

The command line reads this of every backend at its start, so a module with a kind imports nothing heavy: the backend
itself is imported in `BackendKind.open`.
"""

from __future__ import annotations

import importlib.util
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from search.errors import TargetError
from search.installation import install_command
from search.values import EngineSummary, Precision, Target

if TYPE_CHECKING:
    from evaluators.backends.layers import EngineFile
    from evaluators.engine import Backend, OpenEngine
    from search.graph.shapes import Profile, TensorSpec

OptionType = Literal["choice", "count", "duration", "file", "flag", "folder", "size", "switch", "text"]
ExportedRun = Callable[[Mapping[str, Any]], dict[str, Any]]
# What every export consists of beside the engine, by the names that files of a backend's own may refer to.
SOURCE_FILE, CALIBRATION_FILE, TIMING_FILE = "model.onnx", "calibration.cache", "timing.cache"


@dataclass(frozen=True)
class BackendOption:
    """One option that only one backend has: a row of the table that command line, files, help and docs are read from.

    Attributes:
        keyword: the name of the backend's parameter: `optimization_level`.
        type: of its text, and with that of the value that the backend gets: `choice` of `choices` (str); `count`, a
            whole number from `least` to `most` (int); `duration` with a unit (float, seconds); `file` that is there
            (str, absolute path); `flag`, which takes no value (bool); `folder`, made when needed, or `none` (str,
            absolute path, or None); `size` with a unit (int, bytes); `switch`, on or off (bool); `text` (str).
        default: the value if the option is not given.
        help: one line, which explains the default if that is not obvious.
        metavar: the placeholder for the value in help.
        name: the name on the command line and in files: `optimization-level`; empty for the keyword with hyphens.
        many: whether it may be repeated; the value is then a list.
        auto: whether the word `auto` may be given, which means the default.
        final: whether an export may be built with another value, given as `final-NAME`.
        verbs: the verbs beside `search` that take it, because they choose the target or show what it can run.
        default_text: the text for the default in help, if that is not the value itself.
    """

    keyword: str
    type: OptionType
    default: Any
    help: str
    metavar: str = "VALUE"
    name: str = ""
    choices: tuple[str, ...] = ()
    least: int = 0
    most: int = 2**31 - 1
    many: bool = False
    auto: bool = False
    final: bool = False
    verbs: tuple[str, ...] = ()
    default_text: str = ""

    @property
    def option(self) -> str:
        """The option as it is typed: `--optimization-level`."""
        return f"--{(self.name or self.keyword).replace('_', '-')}"


def option(type: OptionType, default: Any, help: str, **facts: Any) -> Any:  # noqa: A002
    """A field of a backend's options, with its row of the option table; `facts` as in `BackendOption`."""
    return field(default=default, metadata={"option": {"type": type, "help": help, **facts}})


def rows_of(options: type) -> tuple[BackendOption, ...]:
    """The rows of a dataclass, for its fields that were made by `option`."""
    option_fields = [(each, each.metadata["option"]) for each in fields(options) if "option" in each.metadata]
    return tuple(
        BackendOption(each.name, default=None if each.default is MISSING else each.default, **facts)
        for each, facts in option_fields
    )


@dataclass(frozen=True)
class Check:
    """One line of the doctor's report; `advice` says what to do when `good` is False."""

    name: str
    good: bool
    found: str
    advice: str = ""


@dataclass(frozen=True)
class Machine:
    """The facts about this machine that the doctor finds before it asks the backends.

    Attributes:
        packages: versions of relevant installed distributions by name.
        gpus: as `nvidia.discovery.list_gpus` gives them.
    """

    packages: Mapping[str, str]
    gpus: Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Recipe:
    """The inputs from which an exported engine was built.

    Attributes:
        versions: the versions of its target.
        knobs: the settings of its builder, as in an evaluation's digest.
        options: the options of its backend, by keyword.
        layers: the precision of each weighted op, by ONNX node.
        profiles: MIN, OPT and MAX shapes of dynamic inputs.
        inputs: the inputs at the measured shapes.
        device: the device where it was measured, in the backend's spelling.
        timing_cache: whether `TIMING_FILE` is beside it.
    """

    versions: Mapping[str, str]
    knobs: Mapping[str, str]
    options: Mapping[str, Any]
    layers: Mapping[str, Precision]
    profiles: Mapping[str, Profile]
    inputs: Sequence[TensorSpec] = ()
    device: str = "cpu"
    timing_cache: bool = False


class BackendKind(ABC):
    """One kind of backend. A subclass defines its facts and opens the backend; everything else has defaults.

    A subclass outside this package is given as `package.module:Class`, on the command line or by an entry point of the
    group `bitfront.backends`. Every process makes its own instance, without arguments.

    Attributes:
        name: its name for `--backend` and in targets.
        engine_file: the file name of an exported engine; `SOURCE_FILE` if the engine is the lowered ONNX file itself.
        engine_suffixes: how names of files end that are engines of it and nothing else.
        export_files: what further files of its exports are, by name, for their README.
        default_device: the device that it runs on if none is given.
        module: a Python module that it needs; empty for none.
        extra: the extra of bitfront that installs what it needs; empty for none.
        packages: names of the distributions that may contain `module` and what it needs.
        options: its options beside device and threads.
        triton_platform: Triton's name for its engines; empty if Triton cannot run them.
        automatic: whether `--backend auto` may choose it.
        caution: a warning to show with its numbers; empty if its numbers are measured.
        later_builds: the share of the first build of a model that later ones take, because the builder keeps what it
            has learnt; 1 if it learns nothing.
        rival: another backend that may be faster on the same processor; empty for none.
        rival_merit: what was measured of it, as the end of a sentence after its name.
    """

    name: ClassVar[str]
    engine_file: ClassVar[str]
    engine_suffixes: ClassVar[tuple[str, ...]] = ()
    export_files: ClassVar[Mapping[str, str]] = MappingProxyType({})
    default_device: ClassVar[str] = "cpu"
    module: ClassVar[str] = ""
    extra: ClassVar[str] = ""
    packages: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[BackendOption, ...]] = ()
    triton_platform: ClassVar[str] = ""
    automatic: ClassVar[bool] = False
    caution: ClassVar[str] = ""
    later_builds: ClassVar[float] = 1.0
    rival: ClassVar[str] = ""
    rival_merit: ClassVar[str] = ""

    @abstractmethod
    def open(self, device: str, options: Mapping[str, Any]) -> Backend:
        """Open it on a device.

        Args:
            device: the device in the backend's spelling.
            options: plain JSON values by keyword: `threads`, and the settled values of `self.options`.

        Raises:
            TargetError: the backend is not installed, or there is no such device.
            ConfigError: the value of an option is not allowed.
        """

    def open_symmetric(self, device: str, options: Mapping[str, Any]) -> Backend:
        """Open it so that INT8 activations have the zero point 0, if it has a choice; otherwise the same as `open`."""
        return self.open(device, options)

    def open_engine(self, backend: Backend, path: Path, batch: int | None) -> OpenEngine:
        """Open an engine file without the model that it was built from.

        Args:
            backend: that this kind opened.
            batch: leading dimension of inputs that leave it open; None if it has to be fixed.

        Raises:
            TargetError: engines of this backend cannot be run without their model, or the file is none of them.
            ModelError: the file leaves a dimension open.
            RefusedError: the file is damaged, or of another version or device.
        """
        raise TargetError(
            f"opening {path}: backend {self.name} cannot run an engine without its model. Compare engines of backend "
            "onnxruntime or tensorrt."
        )

    def open_export(
        self, folder: Path, manifest: Mapping[str, Any], device: str | None, threads: int | None
    ) -> ExportedRun:
        """Open the engine of an exported folder for a guard.

        Args:
            manifest: of the export.
            device: in the backend's spelling; None for its default.
            threads: of the processor; None for those of the export.

        Returns:
            A function from inputs to outputs by name, which several threads may call.

        Raises:
            TargetError: engines of this backend cannot be run so, or not here.
            RefusedError: the file is damaged, or of another version or device.
        """
        raise TargetError(f"opening {folder}: a guard cannot run exports of backend {self.name}.")

    def read_engine(self, path: Path) -> EngineFile:
        """The layers of an engine file that ends in one of `engine_suffixes`.

        Raises:
            TargetError: they cannot be read, or not here.
            InputError: the file is damaged.
        """
        raise TargetError(f"inspecting {path}: backend {self.name} tells no layers of its engines.")

    def deployment_code(self, target: Target, inputs: Any, folder: str) -> str:
        """A program in Python that runs an export in `folder`, for the report; empty for none.

        Args:
            inputs: name, type by numpy's name, and measured shape of each.
        """
        return ""

    def slow_reasons(self, target: Target, engine: EngineSummary | None) -> list[str]:
        """Why a quantized engine may be slower than FP32 on a target, as sentences without their full stops."""
        return []

    def prepare(self) -> None:  # noqa: B027 - most have nothing that takes long
        """Import modules that take seconds to import and need no device.

        Raises:
            TargetError: a package is not installed or cannot be loaded.
        """

    def explain_missing(self) -> str:
        """The reason why it cannot run on this machine, as far as known without importing it; empty if it can."""
        if not self.module or importlib.util.find_spec(self.module) is not None:
            return ""
        return "not installed" + (f", {install_command(self.extra)}" if self.extra else "")

    def gpu_of(self, device: str) -> int | None:
        """CUDA's index of the GPU that a device is; None if it is none. Raises nothing."""
        return None

    def runs_on_gpu(self, device: str | None) -> bool:
        """Whether a device is a GPU; None for the default one."""
        return self.gpu_of(device or self.default_device) is not None

    def devices(self, machine: Machine) -> tuple[str, ...]:
        """The devices on which the doctor opens it."""
        return (self.default_device,)

    def checks(self, machine: Machine) -> Sequence[Check]:
        """The doctor's checks of what it needs; whether it can be opened is checked separately."""
        return ()

    def copy_engine(self, engine: Path, out: Path) -> None:
        """Copy an engine file of the study into an export.

        Weights that one ONNX file cannot hold go to `NAME.data` beside it.
        """
        if self.engine_file != SOURCE_FILE:
            shutil.copyfile(engine, out)
            return
        from search.graph.packed_file import copy_as_onnx

        copy_as_onnx(engine, out)

    def recipe_files(self, recipe: Recipe) -> Mapping[str, str]:
        """Further files of an export by name, which run its engine or describe how to build it again."""
        return {}
