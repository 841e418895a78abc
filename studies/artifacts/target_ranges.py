"""The ranges that engines of a target are built with: calibrated ones, and those of single mixes."""

from __future__ import annotations

import json
from collections.abc import Mapping

from search.values import Correction, Ranges
from studies.artifacts.folder import Artifacts
from studies.store.store import Store


def load_ranges(store: Store, artifacts: Artifacts, study_target_id: int, digest: str) -> Ranges:
    """The ranges of a target with the corrections of all mixes that have their own.

    Args:
        digest: of the ranges that the target was calibrated with.

    Raises:
        ArtifactError: they are gone.
    """
    ranges = Ranges.from_json(json.loads(artifacts.read_bytes(digest)))
    return ranges.with_mixes(read_mixes(store, study_target_id))


def read_mixes(store: Store, study_target_id: int) -> dict[str, Mapping[str, Correction]]:
    """Digest of an assignment → scales and offsets by op that its engine has in place of those of all INT8."""
    found = store.evaluations.mix_biases(study_target_id)
    made = ((record.assignment.digest, record.mix_corrections) for record in found)
    return {digest: recovery.corrections for digest, recovery in made if recovery is not None}
