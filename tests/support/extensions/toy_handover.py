"""A hand-over of another package, as small as one can be."""

from __future__ import annotations

from collections.abc import Mapping

from studies.export.handover.mix import Handover, Mix


class ToyHandover(Handover):
    """Lists the nodes that stay float."""

    name = "toy"

    def files(self, mix: Mix) -> Mapping[str, str]:
        return {"float.txt": "".join(f"{node.name}\n" for node in mix.float_nodes)}
