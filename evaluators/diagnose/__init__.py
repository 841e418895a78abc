"""Diagnosis of a loss: sensitivity of single groups, and comparison of an engine with ONNX Runtime.

Measures nothing that a study compares, and changes nothing. Public: `sensitivity` in `sensitivity`, and what it finds
in `group_error`; `compare_engine` in `compare_run`, and what it finds in `compare`; `Network` in `local_noise`. What is
wrong with the outputs of a program of the user's own is found in `wrapper`.
"""
