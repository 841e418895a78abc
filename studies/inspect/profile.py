"""The times of an engine's layers, by group and beside those of another trial."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from search.values import Answer, AuditRow, LayerTime
from studies.options.quantities import format_ms, format_percent
from studies.store.records import GroupRecord

GROUPS, MOVES, OTHER = "groups", "moves", "other"


@dataclass(frozen=True)
class Profile:
    """Per-layer times of one trial's engine.

    Attributes:
        layers: in the order they run; a profiled run's own milliseconds.
        latency_ms: the engine's measured latency, the latest word on it; None if there is none.
        again: whether it was profiled just now; otherwise the times were stored before.
        notes: what is noteworthy of the engine that was profiled.
    """

    study: str
    trial: int
    mix: str
    layers: tuple[LayerTime, ...]
    latency_ms: float | None
    audit: Mapping[str, AuditRow]
    groups: Mapping[str, GroupRecord]
    again: bool
    notes: tuple[str, ...] = ()

    @property
    def sum_ms(self) -> float:
        return sum(layer.ms for layer in self.layers)

    @property
    def scale(self) -> float | None:
        """Brings the layers' times to the sum that is the measured latency; None if that is not known."""
        return self.latency_ms / self.sum_ms if self.latency_ms is not None and self.sum_ms > 0 else None

    def layer_rows(self, order: str = "order") -> list[dict[str, Any]]:
        """A row per layer, in the order they run or the slowest first."""
        rows = [
            {
                "position": position,
                "layer": layer.name,
                "kind": layer.kind,
                "group": layer.group,
                "part": part_of(layer),
                **self._times(layer.ms),
            }
            for position, layer in enumerate(self.layers)
        ]
        return rows if order == "order" else sorted(rows, key=lambda row: -row["ms"])

    def group_rows(self, order: str = "order") -> list[dict[str, Any]]:
        """A row per group, in graph order or the slowest first; `kernels` 0: it runs inside layers of others."""
        own: dict[str, list[float]] = {}
        for layer in self.layers:
            if layer.group is not None and not layer.moves:
                own.setdefault(layer.group, []).append(layer.ms)
        rows = []
        for group in self.groups.values():
            audit, times = self.audit.get(group.id), own.get(group.id, [])
            rows.append(
                {
                    "group": group.id,
                    "node": group.name,
                    "op": group.op,
                    "asked": audit.asked.label if audit is not None else None,
                    "got": _got(audit),
                    "kernels": len(times),
                    **self._times(sum(times)),
                }
            )
        return rows if order == "order" else sorted(rows, key=lambda row: -row["ms"])

    def part_rows(self) -> list[dict[str, Any]]:
        """What groups, moves and other layers take together."""
        sums = {part: [layer.ms for layer in self.layers if part_of(layer) == part] for part in (GROUPS, MOVES, OTHER)}
        return [{"part": part, "layers": len(times), **self._times(sum(times))} for part, times in sums.items()]

    def _times(self, ms: float) -> dict[str, float | None]:
        return {
            "ms": ms,
            "scaled_ms": ms * self.scale if self.scale is not None else None,
            "share": ms / self.sum_ms if self.sum_ms > 0 else 0.0,
        }

    def to_json(self, order: str = "order") -> dict[str, Any]:
        return {
            "study": self.study,
            "trial": self.trial,
            "mix": self.mix,
            "latency_ms": self.latency_ms,
            "sum_ms": self.sum_ms,
            "scale": self.scale,
            "profiled_now": self.again,
            "notes": list(self.notes),
            "parts": self.part_rows(),
            "groups": self.group_rows(order),
            "layers": self.layer_rows(order),
        }


def part_of(layer: LayerTime) -> str:
    """Moves count as moves also where they belong to a group: they are what mixing precisions costs."""
    if layer.moves:
        return MOVES
    return OTHER if layer.group is None else GROUPS


def _got(audit: AuditRow | None) -> str | None:
    if audit is None:
        return None
    return audit.got.label if audit.got is not None else Answer.OPAQUE.value


def delta_rows(first: Profile, second: Profile, order: str = "order") -> list[dict[str, Any]]:
    """Two profiles of one study side by side: a row per group, then moves and other layers.

    Times are the scaled ones, so that they add up to the difference of the measured latencies; the profiles' own
    where a latency is not known. `delta_ms` is the second less the first.
    """
    kind = "ms" if first.scale is None or second.scale is None else "scaled_ms"
    rows = []
    for one, two in zip(first.group_rows(), second.group_rows(), strict=True):
        changed = one["got"] != two["got"]
        names = {"group": one["group"], "node": one["node"], "got": one["got"], "got_against": two["got"]}
        rows.append({**names, "changed": changed, **_delta(one[kind], two[kind])})
    if order == "time":
        rows.sort(key=lambda row: -abs(row["delta_ms"]))
    for one, two in list(zip(first.part_rows(), second.part_rows(), strict=True))[1:]:
        counts = {"got": f"layers: {one['layers']}", "got_against": f"layers: {two['layers']}"}
        changed = one["layers"] != two["layers"]
        rows.append({"group": one["part"], "node": "", **counts, "changed": changed, **_delta(one[kind], two[kind])})
    return rows


def _delta(one: float, two: float) -> dict[str, float]:
    return {"ms": one, "ms_against": two, "delta_ms": two - one}


def headline(profile: Profile) -> list[str]:
    """A profile in sentences, above its tables."""
    measured = "its latency is not known" if profile.latency_ms is None else f"measured {format_ms(profile.latency_ms)}"
    lines = [
        f"trial {profile.trial}: {profile.mix}; {measured}; {len(profile.layers)} layers, {format_ms(profile.sum_ms)} "
        f"in {'the' if profile.again else 'a stored'} profiled run",
        "profiling makes every layer slower; the scaled times add up to the measured latency",
    ]
    hidden = [row["group"] for row in profile.group_rows() if not row["kernels"]]
    if hidden:
        lines.append(
            f"{len(hidden)} groups have no layer of their own, because they run inside layers that they share with "
            "other operations"
        )
    return [*lines, *profile.notes]


def text_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for people: times and shares with their units."""
    text = dict(row)
    for name, value in row.items():
        if name == "share":
            text[name] = format_percent(value)
        elif name.endswith("ms") or name.startswith("ms_"):
            text[name] = "" if value is None else format_ms(value)
        elif isinstance(value, bool):
            text[name] = "changed" if value else ""
    return text
