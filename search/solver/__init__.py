"""Solvers for the best assignments under additive costs: elimination, minimum cuts, and a relaxation for limits."""
