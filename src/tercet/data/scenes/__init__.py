"""`scenes`: a generated dataset with known ground truth. It needs no files."""

from tercet.data.scenes.scene_dataset import Scenes, scenes, scenes_data_set

__all__ = ["Scenes", "scenes", "scenes_data_set"]
