"""Metrics that the user wrote: imported by name, or given as Python functions that no other process can import.

Public: `import_metric` and `make_own_metric` in `imported_metric`; `lend_metric`, `find_metric` and `is_handed` in
`handed_metric`; `digest_code` in `code_digest`; `own_error_text` in `error_text`.
"""
