"""Small runs for tests: a few hundred scenes, narrow heads."""

import torch

import tercet
from tercet.console import RunProgress
from tercet.data import paired
from tercet.data.scenes import scenes
from tercet.training.settings import train_settings
from tercet.training.train import Loop

SMALL = {"data": "scenes:90", "epochs": 2, "batch_size": 50, "model_settings": {"embed_dim": 16}, "cocos_every": 3}


def small_settings(**given):
    return train_settings(SMALL | given)


def small_data(count=60, features="global"):
    return paired("scenes", scenes("train", count).as_split(features))


def small_loop(folder, model, data, **given):
    """A loop over this data, restored from the folder if it holds a checkpoint."""
    settings = small_settings(**given)
    objective = tercet.objective(settings.objective, **settings.objective_settings)
    warmup = objective if settings.warmup_objective is None else tercet.objective(settings.warmup_objective)
    loop = Loop(model, (data, None, None), (warmup, objective), settings, folder, RunProgress(), torch.device("cpu"))
    loop.restore()
    return loop


def run_through(loop):
    loop.run()
    return loop.model
