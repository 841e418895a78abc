"""Bayesian linear regression whose rows may share errors, by how alike they are."""
