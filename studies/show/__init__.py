"""What people are shown of a study: tables, one evaluation in words, status, progress, the HTML report. Reads only."""
