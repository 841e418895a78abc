"""The verb that deletes a study: `delete`."""

from __future__ import annotations

from bitfront.verbs.command import asks, prints


@asks("Delete study {name!r} with all its evaluations and engines?")
def delete(name: str, storage: str | None = None) -> str:
    """Delete a study with its evaluations and engines.

    Returns:
        The name of the study.
    """
    from studies.lifecycle.deletion import delete_study
    from studies.store.store import default_url

    delete_study(name, storage or default_url())
    return name


@prints(delete, json=lambda name: {"deleted": name})
def _print_deleted(name: str) -> None:
    from bitfront.printing.output import say

    say(f"Deleted study {name!r}.")
