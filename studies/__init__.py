"""Studies: evaluating many candidates, storing all results, and recommending the best."""

__version__ = "0.1.0"
