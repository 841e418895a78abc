"""What a run does beside its evaluations, each when it is due."""
