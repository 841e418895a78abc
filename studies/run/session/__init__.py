"""What a run needs before its first trial: checked options, an open study, ranges, a space that is fixed."""
