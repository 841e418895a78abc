"""Fused ops of ONNX Runtime's optimizer, written out as the ordinary ops that it made them of."""
