"""Samplers and search orders side by side: on simulated networks, on made-up large ones, and on examples/digits."""

import os

# Read when NumPy is imported: matrices are small, and there are as many processes as cores.
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
