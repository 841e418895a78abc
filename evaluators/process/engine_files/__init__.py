"""Running engine files without the model that they were built from, for the gate.

The evaluator process of a job that names `engine_files` is an `EngineFileEvaluator`. Builds and calibrates nothing.
"""
