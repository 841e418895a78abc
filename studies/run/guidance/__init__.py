"""Guidance of the sampler: priors, sensitivities, and results of other targets."""
