"""The verb that checks what this machine can run, and says how to install what is missing: `doctor`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from bitfront.verbs.command import Typed, prints
from evaluators.backends.kind import BackendKind, Check, Machine
from evaluators.backends.nvidia import discovery
from evaluators.backends.nvidia.doctor import gpu_checks
from evaluators.backends.registry import BACKENDS, kind_named
from evaluators.measure.device_lock import DeviceBusyError, device_lock
from search.errors import BitfrontError
from search.values import REFERENCE, Precision
from studies import environment, seen_environments
from studies.events import Quiet
from studies.outputs import check_file

if TYPE_CHECKING:
    from studies.events import Events
    from studies.inspect.formats import FormatReport

_LOCK_WAIT_S = 3.0


def doctor(
    backend: Annotated[str | None, Typed("NAME", "--backend")] = None,
    *,
    measure: Annotated[Path | None, Typed("FILE")] = None,
    events: Events | None = None,
) -> list[Check] | FormatReport:
    """Show what is installed, what can run here, and what is missing.

    Versions come first, then GPUs, then every backend: what it needs, and what it runs natively here.

    Args:
        backend: Check this backend only, for example tensorrt.
        measure: Build, audit and time small networks in every format that is offered here, and write this JSON file.

    Raises:
        TargetError, DataError: there is no such backend.
    """
    if measure is not None:
        return _measure_formats(backend, measure, events or Quiet())
    kinds = [kind_named(name) for name in (BACKENDS.names() if backend is None else [backend])]
    facts = environment.collect()
    machine = Machine(facts["packages"], facts["gpus"])
    needed_by = backend if backend is not None and kinds[0].runs_on_gpu(None) else ""
    lines = [
        Check("python", True, str(facts["python"])),
        Check("processor", True, f"{facts['cpu']['model']}, {facts['cpu']['cores']} cores"),
        *[Check(name, True, str(version)) for name, version in machine.packages.items() if version],
        _environment_check(str(facts["python"]), machine),
        *gpu_checks(machine, needed_by),
        *(check for kind in kinds for check in kind.checks(machine)),
        _docker_check(bool(machine.gpus)),
    ]
    return [*lines, *(check for kind in kinds for check in _backend_checks(kind, machine, by_name=backend is not None))]


def _measure_formats(backend: str | None, out: Path, events: Events) -> FormatReport:
    from studies.inspect.formats import measure_formats

    check_file(out, "writing measured formats to")
    named = [kind_named(name) for name in (BACKENDS.names() if backend is None else [backend])]
    kinds = [kind for kind in named if backend is not None or not (kind.caution or kind.explain_missing())]
    facts = environment.collect()
    report = measure_formats(kinds, Machine(facts["packages"], facts["gpus"]), events)
    out.write_text(json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return report


@prints(doctor, kind="FormatReport", exit_code=lambda report: 0 if report.rows else 1)
def _print_formats(report: FormatReport) -> None:
    from bitfront.printing.output import print_table, say
    from studies.inspect.formats import COLUMNS

    print_table(
        [{column: _shown(row.get(column)) for column in COLUMNS} for row in report.rows], COLUMNS, notes=["why"]
    )
    for each in report.failed:
        say(f"{each['backend']} on {each['device']} could not be measured: {each['why']}")


def _shown(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _exit_code(checks: Sequence[Check]) -> int:
    return 0 if any(check.good and check.name.startswith("backend") for check in checks) else 1


@prints(doctor, json=lambda checks: {"checks": [vars(check) for check in checks]}, exit_code=_exit_code)
def _print_checks(checks: Sequence[Check]) -> None:
    from rich.text import Text

    from bitfront.printing.output import out, terminal_width
    from studies.show.terminal.text_table import wrap_text

    for check in checks:
        mark = ("ok      ", "green") if check.good else ("missing ", "red")
        said = f"{check.name}: {check.found}" + (f". {check.advice}" if check.advice else "")
        first, *others = wrap_text(said, None if (width := terminal_width()) is None else width - 8)
        out.print(Text.assemble(mark, first), soft_wrap=True)
        for line in others:
            out.print(Text(" " * 8 + line), soft_wrap=True)


def _environment_check(python: str, machine: Machine) -> Check:
    text = seen_environments.describe_environment(python, machine.packages, discovery.driver_version())
    return Check("environment", True, text)


def _docker_check(gpu: bool) -> Check:
    docker, toolkit = shutil.which("docker"), shutil.which("nvidia-ctk")
    if docker is None:
        return Check("docker", True, "not found; it is needed only for the images of docker/")
    missing = "; nvidia-container-toolkit, which --gpus needs, was not found" if gpu and toolkit is None else ""
    return Check("docker", True, f"{docker}{missing}")


def _backend_checks(kind: BackendKind, machine: Machine, *, by_name: bool) -> list[Check]:
    """Whether a backend opens on its devices; without a GPU on those that need one only if the backend was named."""
    devices = [device for device in kind.devices(machine) if by_name or machine.gpus or not kind.runs_on_gpu(device)]
    return [_backend_check(kind, device) for device in devices]


def _backend_check(kind: BackendKind, device: str) -> Check:
    """Open a backend, but not while another process measures on its GPU: that would show in the other's numbers."""
    title = f"backend {kind.name} on {device}"
    gpu = kind.gpu_of(device)
    try:
        if gpu is None:
            return _check_opening(title, kind, device)
        with device_lock(discovery.lock_name(gpu), timeout_s=_LOCK_WAIT_S):
            return _check_opening(title, kind, device)
    except DeviceBusyError:
        return Check(title, True, "another bitfront process is measuring on this device, so it was not opened")
    except BitfrontError as error:
        return Check(title, False, "cannot run", str(error))
    except Exception as error:  # a broken package may raise anything, and the other lines must still be told
        return Check(title, False, "cannot run", f"{type(error).__name__}: {error}. Its installation may be broken.")


def _check_opening(title: str, kind: BackendKind, device: str) -> Check:
    backend = kind.open(device, {})
    backend.check()
    target, capability = backend.target(), backend.capability()
    native = [p.label for p in capability.precisions if p is REFERENCE or capability.ops[p]]
    emulated = [p.label for p in Precision if p.label not in native]
    offered = f"native precisions: {', '.join(native)}"
    if emulated:
        offered += f" ({', '.join(emulated)} not native here, so not offered)"
    versions = ", ".join(f"{key} {value}" for key, value in target.versions.items())
    options = ", ".join(f"{name} {value}" for name, value in target.options.items())
    return Check(title, True, f"{target.device}; {versions}; {offered}; options {options}")
