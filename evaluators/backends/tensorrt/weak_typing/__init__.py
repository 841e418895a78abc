"""Weak typing (TensorRT 8.6 to 10.x): precisions are set on layers and obeyed, and what may be INT8 has a range.

It changes parsed networks and builder configurations. It never builds engines.
"""

from evaluators.backends.tensorrt.weak_typing.moves import move_in_float
from evaluators.backends.tensorrt.weak_typing.output_types import fix_output_types
from evaluators.backends.tensorrt.weak_typing.precisions import set_flags, set_precisions
from evaluators.backends.tensorrt.weak_typing.ranged_tensors import ranged_tensors
from evaluators.backends.tensorrt.weak_typing.ranges import set_ranges

__all__ = ["fix_output_types", "move_in_float", "ranged_tensors", "set_flags", "set_precisions", "set_ranges"]
