"""ONNX graphs: read, check and clean a file; shapes; the groups and edges that a search decides on. Runs no model."""
