"""Sentences about a study, each written in one place: for the terminal, reports, manifests and JSON."""
