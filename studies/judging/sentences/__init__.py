"""Sentences about where a study stands, each made in one place: for the terminal, reports, manifests and JSON."""
