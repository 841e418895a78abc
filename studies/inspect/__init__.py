"""A closer look at one engine: per-layer times, its outputs beside those of ONNX Runtime, or one mix without a study.

Needs the device for what is not stored. Changes nothing of a search: what it adds are profiles and notes of them.
"""

from studies.inspect.comparison import Comparison
from studies.inspect.profile import Profile, delta_rows
from studies.inspect.profile_trials import profile_trials

__all__ = ["Comparison", "Profile", "delta_rows", "profile_trials"]
