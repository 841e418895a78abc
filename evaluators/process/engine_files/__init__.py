"""Engine files that are run as they are, without the model they were built from: what a gate compares.

The evaluator process of a job that names `engine_files` is an `EngineFileEvaluator`. Builds and calibrates nothing.
"""
