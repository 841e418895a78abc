"""Lowering: from an assignment to an ONNX graph with Q/DQ and Cast. Only this package writes precisions.

Never chooses a precision, and never runs a model. Public: `lower` in `lower`; `Placement` and `quantized_tensors` in
`placement`; `expose_groups` in `exposure`; `spelled_out` in `half`; `corrected_model`, `find_constants` and
`OpConstants` in `corrections`; `nearest_codes` in `weights`. The other files are each one concern of one
plan: float types, activations, weights and biases, and what is added to the graph.
"""
