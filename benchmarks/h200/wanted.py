"""How many evaluations each search of the proof makes. The standard library alone."""

from __future__ import annotations

TRIALS = 60
AGAIN = "_again"  # ends the name of a network that was trained once more: other weights, so results of their own
# The other samplers get more, to see how many they need. TPE is Optuna's multivariate one; all of them begin with the
# uniform assignments. `throughput` is the guided one, from its start and without a budget.
_OTHERWISE = {
    "resnet18": {"tpe": 200, "nsga2": 200},
    "mobilenet_v2": {"throughput": 54, "tpe": 100, "nsga2": 100},
}
_SEARCHES = ("search", "throughput", "tpe", "nsga2")


def trials_of(network: str, step: str) -> int:
    """Evaluations of a step that searches; 0 for one that does not."""
    known = _OTHERWISE.get(network.removesuffix(AGAIN), {})
    return known.get(step, TRIALS) if step in _SEARCHES else 0
