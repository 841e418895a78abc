"""Bayesian linear regression, in which similar rows may share errors."""
