"""`scenes`: a generated world whose truth is known. It needs no files."""

from tercet.data.scenes.made import Scenes, scenes, scenes_data_set

__all__ = ["Scenes", "scenes", "scenes_data_set"]
