"""Whether two sides can be compared on this host, and with which backend."""

from __future__ import annotations

from search.errors import ConfigError
from search.values import Target
from studies.gate.side import Side


def common_backend(candidate: Side, baseline: Side, named: str) -> str:
    """The backend of both sides.

    Args:
        named: on the command line; `auto` for that of the sides.

    Raises:
        ConfigError: they are of different ones, or of another than was named.
    """
    backends = {candidate.backend, baseline.backend} | ({named} - {"auto"})
    if len(backends) > 1:
        given = f", and --backend {named}" if named != "auto" else ""
        raise ConfigError(
            f"gating {candidate.name} against {baseline.name}: expected engines of one backend, got "
            f"{candidate.backend} and {baseline.backend}{given}. Compare engines of one target."
        )
    return candidate.backend


def threads_of(candidate: Side, baseline: Side, named: int | None) -> int:
    """Processor threads of one inference: as named, else those of the target of a side, else one."""
    if named is not None:
        return named
    known = [side.target.options.get("threads") for side in (baseline, candidate) if side.target is not None]
    return next((int(threads) for threads in known if threads is not None), 1)


def check_target(side: Side, here: Target) -> None:
    """Refuse an engine that was made for another target than the one that it is to be measured on.

    Options of a builder, which the engine has behind it, may differ; threads may not.

    Raises:
        ConfigError: naming what differs.
    """
    if side.target is None:
        return
    differences = [text for text in side.target.differences(here) if _matters(text)]
    if differences:
        raise ConfigError(
            f"gating: {side.name} belongs to another target than this host: {'; '.join(differences)} here. Run the "
            "gate "
            f"where it was made, or export it here. To compare it here nevertheless, give its file: {side.engine}."
        )


def _matters(difference: str) -> bool:
    key = difference.partition(":")[0]
    return key in ("backend", "device", "options.threads") or key.startswith("versions.")
