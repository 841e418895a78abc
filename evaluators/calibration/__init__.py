"""Calibration: ranges of all float tensors, from data or a calibration cache of TensorRT, and the scales from them.

Runs the float model alone, in ONNX Runtime on the processor. Never builds an engine, and knows nothing of assignments.
Public: `collect`, `parse_method`, `cache_key` and `notes` in `activations`; `read`, `take` and `write` in `cache`;
`activation_scale` and `weight_scales` in `scales`; `bounds_of_values` in `bounds`;
`observe_channels` in `channels`.
"""
