"""TensorRT in tests: fakes by the listings of its bindings, its strongly typed builder, and real GPUs."""
