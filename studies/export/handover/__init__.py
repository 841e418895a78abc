"""Handing the mix of an evaluation over to other tools, with the names of the user's file.

`registry.write_handovers` writes the files of each tool; `gather.gather_mix` makes the mix that they are written from.
Measures nothing, and runs none of the tools.
"""

from studies.export.handover.mix import gather_mix
from studies.export.handover.registry import HANDOVERS, check_mix, check_tools, write_handovers

__all__ = ["HANDOVERS", "check_mix", "check_tools", "gather_mix", "write_handovers"]
