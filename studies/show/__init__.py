"""Showing studies: tables of the front, descriptions of evaluations, status, progress and the report.

Makes texts, rows, JSON values and figures of what `studies.judging` says; only the progress display and the report
write anything. Neither runs nor measures anything, and nothing that runs imports it.
"""
