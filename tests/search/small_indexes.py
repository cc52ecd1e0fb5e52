"""Small models, search indexes of the generated scenes dataset, and a real server that serves them."""

import contextlib
import http.client
import json
import subprocess
import sys
import time
from functools import cache
from urllib.parse import urlencode, urlsplit

import torch
from filelock import FileLock

from tercet.cli.main import main
from tercet.data.formats import open_data
from tercet.data.text.vocabulary import build_vocabulary
from tercet.data.transforms import TransformSettings, squash_transform
from tercet.inference import Preprocessor, Retriever
from tercet.models import build, preset
from tests.shared_runs import root
from tests.tiny_models import RESNET

SCENES = "scenes:9"
SMALL = {"embed_dim": 12, "word_dim": 6}


def model(system, seed=0, **settings):
    torch.manual_seed(seed)
    vocabulary = build_vocabulary(open_data(SCENES).split("train").texts, 1)
    if system == "vsepp":
        network = build("vsepp", vocab_size=len(vocabulary), backbone=RESNET, **SMALL, **settings)
        return Retriever(
            "vsepp", network, Preprocessor(vocabulary=vocabulary, pixels=TransformSettings(side=32, shorter_side=36))
        )
    if system == "xvlm":
        network = build("xvlm", **preset("xvlm-tiny")[1], vocab_size=len(vocabulary))
        side = network.vision.model.config.image_size
        return Retriever("xvlm", network, Preprocessor(vocabulary=vocabulary, pixels=squash_transform(side)))
    settings |= SMALL | ({"direction": "i2t"} if system == "scan-i2t" else {})
    network = build(system.split("-")[0], vocab_size=len(vocabulary), image_dim=1280, **settings)
    preprocessor = Preprocessor(vocabulary=vocabulary, image_encoder="efficientnet-lite2", grid=True)
    return Retriever(system.split("-")[0], network, preprocessor)


def index(folder, name, retriever, images=SCENES):
    """Build an index with `tercet index`; return its folder."""
    retriever.save(folder / f"{name}_model")
    call(["index", str(folder / f"{name}_model"), "--images", str(images), "--out", str(folder / name)])
    return folder / name


@cache
def shared_index(system, seed=0):
    """An index of the scenes, built once for all test processes; tests that change one copy it."""
    folder = root() / "indexes" / f"{system}_{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / "lock"):
        complete = (folder / "index" / "index.json").exists()
        return folder / "index" if complete else index(folder, "index", model(system, seed))


def call(arguments):
    before, sys.argv = sys.argv, ["tercet", *arguments]
    try:
        main()
    finally:
        sys.argv = before


@contextlib.contextmanager
def serving(*arguments, wait=True):
    """Run `tercet serve` as a process; yield its URL and the process."""
    command = [sys.executable, "-m", "tercet", "serve", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        address = process.stdout.readline().strip()
        assert address.startswith("http://"), address + process.stdout.read()
        if wait:
            wait_until_ready(address)
        yield address, process
    finally:
        process.terminate()
        process.wait(timeout=20)
        process.stdout.close()


def wait_until_ready(address):
    for _ in range(1200):
        status, content = get(address, "/api/about")
        if status == 200 and all(index["state"] != "opening" for index in content["indexes"]):
            return
        time.sleep(0.1)
    raise AssertionError("the indexes were not loaded within two minutes")


def get(address, path, method="GET", body=None, headers=None, **parameters):
    """Send a request; return the status, and the JSON or bytes of the body."""
    split = urlsplit(address)
    connection = http.client.HTTPConnection(split.hostname, split.port, timeout=60)
    target = f"{path}?{urlencode(parameters, doseq=True)}" if parameters else path
    connection.request(method, target, body=body, headers=headers or {})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return response.status, json.loads(content) if is_json else content
