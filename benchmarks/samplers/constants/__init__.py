"""The constants of the guided sampler: a list with their reasons, and what it costs to vary all of them."""
