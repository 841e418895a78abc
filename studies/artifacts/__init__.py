"""Files of a study named by their content, in a folder or a bucket, and their clean-up."""
