"""What people are shown of a study: the front as a table, one evaluation in words, status, progress and the report.

Makes texts, rows, JSON values and figures of what `studies.judging` says; only the progress display and the report
write anything. Neither runs nor measures anything, and nothing that runs imports it.
"""
