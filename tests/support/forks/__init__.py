"""Processes of Python in a tenth of the time: forked from one that waits with everything imported.

Imports are most of what a small search costs, and thousands of them most of what the tests would. A forked process is
one of its own, with its own session, streams, module path and signals; only its parent differs. What goes on as a
process starts is tried on started ones: `tests/evaluators/process/test_process.py`, `tests/whole/test_imports.py`.
"""
