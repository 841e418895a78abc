"""Looking into engines: per-layer times, an engine beside ONNX Runtime, and which groups are sensitive."""
