"""Finding faults in the outputs of the user's own program, compared with those of the evaluation and of FP32.

Each file looks for one kind of fault. Faults are found one at a time: what two of them did together is not explained.
Public: `compare_wrapper` in `wrapper_run`, and what it finds in `fault`.
"""
