"""Reading the study database: columns as arrays for judging, single rows as records."""
