"""What the guided sampler is told of a study: priors, sensitivities, and what other targets have found."""
