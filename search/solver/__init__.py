"""Solvers for the best assignments under additive costs: elimination, relaxation and integer programs."""
