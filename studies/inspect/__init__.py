"""Analyses of one engine: times of layers, comparison with ONNX Runtime, and single mixes without a study.

Needs the device for what is not stored. Changes nothing of a search: what it adds are profiles and notes of them.
"""

from studies.inspect.comparison import Comparison
from studies.inspect.profile import Profile, delta_rows
from studies.inspect.profile_trials import profile_trials

__all__ = ["Comparison", "Profile", "delta_rows", "profile_trials"]
