"""Everything that runs on the target, in an isolated process, to find out how good one candidate is.

ONNX Runtime from 1.29 on tells Microsoft which models it runs, unless a variable says before it is imported that it
must not. A user who has set that variable decides.
"""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
