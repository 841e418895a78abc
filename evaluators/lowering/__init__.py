"""Lowering: from an assignment to an ONNX graph with Q/DQ and Cast. Only this package writes precisions.

Never chooses a precision, and never runs a model. Public: `lower` in `lower`; `Placement` in `placement`;
`quantized_tensors` in `int8.plan`; `expose_groups` in `exposure`; `spelled_out` in `float_types`; `corrected_model`,
`find_constants` and `OpConstants` in `corrections`; `nearest_codes` in `weights`. The other files are each one concern
of one plan: float types, activations, weights and biases, and what is added to the graph.
"""
