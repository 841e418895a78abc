"""Both ends of the connection to an evaluator process, which is the only process that uses the device.

The client keeps a process (`keeper.EvaluatorProcess`), limits it and replaces it; the server (`server`) answers what
the Protocols of `line` say, by the classes of `tasks`. Never decides what to evaluate, and never opens a database.
Public: `EvaluatorProcess` in `keeper`; `ProcessLimits` and `ProcessDiedError` in `connection`; `Job` and `Limits` in
`job`; `EvaluatorLine` in `line`; `Built`, `Description` and other answers in `results`.
"""
