"""Which tensors become INT8, by target: `plan` decides with `onnxruntime_rules` and `tensorrt_rules`."""
