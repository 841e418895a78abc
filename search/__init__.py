"""What to try: ONNX graphs, search spaces, samplers. Never runs a model, never opens a database."""
