"""A run whose image names and captions would break a page that does not escape HTML."""

import numpy as np

import tercet
from tercet.analysis.reports.loaded_run import open_run_folder
from tercet.data.scenes import scenes

NAME = "a 'quoted' & \"double\" <b>.jpg"
TEXT = "<script>alert(1)</script> & ein Hündchen „zu Hause“ 犬"


def hostile_run(root, objective="nt-xent"):
    """On a precomp folder without image files; one image name and one caption per split are hostile."""
    folder = root / "data"
    if not folder.exists():
        write_hostile_data(folder)
    run = tercet.train(
        data=str(folder),
        epochs=1,
        batch_size=40,
        objective=objective,
        model_settings={"embed_dim": 8},
        runs=root / "runs",
    )
    return open_run_folder(run.folder)


def write_hostile_data(folder, suffix=""):
    """A precomp folder; the suffix is appended to every image name and every caption."""
    folder.mkdir(parents=True)
    for split, count in (("train", 40), ("dev", 10), ("test", 10)):
        _write(folder, split, scenes({"dev": "val"}.get(split, split), count).as_split("global"), suffix)


def _write(folder, split, data, suffix):
    names, texts = list(data.image_names), list(data.texts)
    names[1], texts[7] = NAME, TEXT
    names, texts = [name + suffix for name in names], [text + suffix for text in texts]
    (folder / f"{split}_ids.txt").write_text("\n".join(f"{split} {name}" for name in names) + "\n", encoding="utf-8")
    (folder / f"{split}_caps.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
    np.save(folder / f"{split}_ims.npy", np.asarray(data.features.take(_all(names))[0]))
    np.save(folder / f"{split}_txt.npy", np.asarray(data.caption_features.take(_all(texts))[0]))


def _all(items):
    import torch

    return torch.arange(len(items))
