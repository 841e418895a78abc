"""From an assignment to an ONNX graph with Q/DQ and Cast. The only package that writes precision."""
