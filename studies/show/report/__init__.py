"""The report: one HTML file that shows a study, without network or external files."""
