"""What to propose next: the guided sampler with its candidates and goals, and samplers by name."""
