"""Why an engine loses: sensitivities, cut-out groups, distributions, and an engine beside ONNX Runtime."""
