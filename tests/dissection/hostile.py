"""A run on pictures and captions whose names and words would break a careless page."""

import numpy as np

import tercet
from tercet.data.scenes import scenes
from tercet.dissection.opened import open_run_folder

NAME = "a 'quoted' & \"double\" <b>.jpg"
TEXT = "<script>alert(1)</script> & ein Hündchen „zu Hause“ 犬"


def hostile_run(root, objective="nt-xent"):
    """Features without pictures, as a folder of numbers; one held-out name and one caption are hostile."""
    folder = root / "data"
    if not folder.exists():
        folder.mkdir(parents=True)
        for split, count in (("train", 40), ("dev", 10), ("test", 10)):
            _write(folder, split, scenes({"dev": "val"}.get(split, split), count).as_split("global"))
    run = tercet.train(
        data=str(folder),
        epochs=1,
        batch_size=40,
        objective=objective,
        model_settings={"joint_dim": 8},
        runs=root / "runs",
    )
    return open_run_folder(run.folder)


def _write(folder, split, made):
    names, texts = list(made.image_names), list(made.texts)
    names[1], texts[7] = NAME, TEXT
    (folder / f"{split}_ids.txt").write_text("\n".join(f"{split} {name}" for name in names) + "\n", encoding="utf-8")
    (folder / f"{split}_caps.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    np.save(folder / f"{split}_ims.npy", np.asarray(made.features.take(_all(names))[0]))
    np.save(folder / f"{split}_txt.npy", np.asarray(made.caption_features.take(_all(texts))[0]))


def _all(items):
    import torch

    return torch.arange(len(items))
