"""Writing a chosen engine with its files, and proving that they work.

`export.export_evaluation` writes a folder and checks it. Changes nothing of a search, but may build, measure and score
an engine again, which is stored.
"""

from studies.export.export import Export, Extras, Request, check_folder, confirm_pick, export_evaluation

__all__ = ["Export", "Extras", "Request", "check_folder", "confirm_pick", "export_evaluation"]
