"""Which tensors become INT8, by target: `plan` decides with the rules of `onnxruntime` and `tensorrt`."""
