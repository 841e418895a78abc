"""The gate: judging a candidate engine against a baseline on given data. It holds, fails, or is not judged.

Changes no study and writes no file. Public: `run_gate` in `gate` runs both engines; `judge_loss` in `loss` and
`judge_latency` in `latency` are the decisions alone, from scores and times; `GateLimits` in `limits`; `GateReport` in
`report`; `junit_text` and `markdown_text` in `files`.
"""
