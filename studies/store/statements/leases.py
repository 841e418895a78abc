"""Conditions on leases and tasks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import or_, select

from studies.store.database import column_types, tables


def is_free(table: Any, worker: str, lease_s: float) -> Any:
    """Of a lease or a task: its worker has not renewed it for too long, has ended, or is the one that asks."""
    ended = select(tables.WorkerRecord.name).where(tables.WorkerRecord.ended_at.is_not(None))
    return or_(table.worker == worker, table.heartbeat < column_types.utc_ago(lease_s), table.worker.in_(ended))
