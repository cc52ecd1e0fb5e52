"""Small models that read pictures and words, indexes of scenes made with them, and a real server over those."""

import contextlib
import http.client
import json
import subprocess
import sys
import time
from urllib.parse import urlencode, urlsplit

import torch

from tercet.cli import main
from tercet.data.formats import open_data
from tercet.data.pixels import PixelSettings
from tercet.data.pretrained_pixels import warped_pixels
from tercet.data.text.vocabulary import build_vocabulary
from tercet.models import build, preset
from tercet.retriever import Reading, Retriever

SCENES = "scenes:9"
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
SMALL = {"joint_dim": 12, "word_dim": 6}


def model(system, seed=0, **settings):
    torch.manual_seed(seed)
    words = build_vocabulary(open_data(SCENES).split("train").texts, 1)
    if system == "vsepp":
        made = build("vsepp", words=len(words), backbone=RESNET, **SMALL, **settings)
        return Retriever("vsepp", made, Reading(vocabulary=words, pixels=PixelSettings(side=32, shorter_side=36)))
    if system == "xvlm":
        made = build("xvlm", **preset("xvlm-tiny")[1], words=len(words))
        side = made.vision.model.config.image_size
        return Retriever("xvlm", made, Reading(vocabulary=words, pixels=warped_pixels(side)))
    settings |= SMALL | ({"attends": "i2t"} if system == "scan-i2t" else {})
    made = build(system.split("-")[0], words=len(words), image_dim=1280, **settings)
    reading = Reading(vocabulary=words, image_encoder="efficientnet-lite2", grid=True)
    return Retriever(system.split("-")[0], made, reading)


def index(folder, name, retriever, images=SCENES):
    """As `tercet index` makes it."""
    retriever.save(folder / f"{name}_model")
    call(["index", str(folder / f"{name}_model"), "--images", str(images), "--out", str(folder / name)])
    return folder / name


def call(arguments):
    before, sys.argv = sys.argv, ["tercet", *arguments]
    try:
        main()
    finally:
        sys.argv = before


@contextlib.contextmanager
def serving(*arguments, wait=True):
    """`tercet serve` as a process of its own; its address."""
    command = [sys.executable, "-m", "tercet.cli", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), address + process.stdout.read()
        if wait:
            until_ready(address)
        yield address, process
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


def until_ready(address):
    for _ in range(1200):
        status, content = get(address, "/api/about")
        if status == 200 and all(each["state"] != "opening" for each in content["indexes"]):
            return
        time.sleep(0.1)
    raise AssertionError("the indexes were not opened within two minutes")


def get(address, path, method="GET", body=None, headers=None, **parameters):
    """Status, and JSON or bytes."""
    split = urlsplit(address)
    connection = http.client.HTTPConnection(split.hostname, split.port, timeout=60)
    asked = f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path
    connection.request(method, asked, body=body, headers=headers or {})
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    is_json = answer.headers.get("content-type", "").startswith("application/json")
    return answer.status, json.loads(content) if is_json else content
