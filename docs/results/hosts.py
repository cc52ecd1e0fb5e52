"""What other trainers do to a gradient, measured with their packages: hosts.jsonl, and the page made from it.

python docs/results/hosts.py open_clip            # in the environment of make test-open-clip
python docs/results/hosts.py transformers sentence_transformers pytorch_metric_learning   # make test-integrations
python docs/results/make.py write
"""

import argparse
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

FILE = Path(__file__).with_suffix(".jsonl")
PACKAGES = {
    "open_clip": "open_clip_torch",
    "transformers": "transformers",
    "sentence_transformers": "sentence-transformers",
    "pytorch_metric_learning": "pytorch-metric-learning",
}
EXACT = 1e-4  # relative, in float32


def accumulated(accum_freq: int, loss: str) -> dict:
    """open_clip's own loop: gradients with --accum-freq, over those of the whole batch at once."""
    import torch
    from open_clip.loss import ClipLoss, SigLipLoss
    from tests.integrations.test_open_clip import clip, items, train

    import tercet

    losses = {
        "ClipLoss": ClipLoss(),
        "SigLipLoss": SigLipLoss(),
        "tercet nt-xent": tercet.integrations.open_clip.Loss("nt-xent", accum_freq=accum_freq),
        "tercet sigmoid": tercet.integrations.open_clip.Loss("sigmoid", accum_freq=accum_freq),
    }
    whole = {"tercet nt-xent": ClipLoss(), "tercet sigmoid": SigLipLoss()}
    with_bias = loss in ("SigLipLoss", "tercet sigmoid")
    rows, gradients = torch.arange(16), []
    for parts, of in ((accum_freq, losses[loss]), (1, whole.get(loss, losses[loss]))):
        model = clip(bias=with_bias)
        train(model, of, [items(part) for part in rows.chunk(parts)], parts)
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    learned = ["logit_scale", *(["logit_bias"] if with_bias else [])]
    others = [name for name in gradients[0] if name not in learned]
    difference = max((gradients[0][name] - gradients[1][name]).abs().max().item() for name in others)
    largest = max(gradients[1][name].abs().max().item() for name in others)
    return {
        **{f"{name} ratio": round((gradients[0][name] / gradients[1][name]).item(), 6) for name in learned},
        "encoders differ by": float(f"{difference / largest:.0e}"),
    }


def measure_open_clip() -> list[dict]:
    from tests.integrations import open_clip_here

    open_clip_here.available()
    losses = ("ClipLoss", "SigLipLoss", "tercet nt-xent", "tercet sigmoid")
    return [
        {"finding": "accumulation", "loss": loss, "accum_freq": accum_freq, **accumulated(accum_freq, loss)}
        for loss in losses
        for accum_freq in (2, 4)
    ]


def plain_loss(outputs, labels=None, num_items_in_batch=None):
    """A compute_loss_func that does not know of the Trainer's factors."""
    import tercet

    return tercet.objective("nt-xent")(outputs.image_embeds, outputs.text_embeds, image_ids=labels, caption_ids=labels)


def trainer_norms(rank, world, folder):
    from tests.integrations.test_hf_trainer import clip, train

    import tercet

    options = {"ddp_find_unused_parameters": True, "ddp_backend": "gloo"} if world > 1 else {}
    losses = {"plain": plain_loss, "tercet": tercet.integrations.hf_trainer.compute_loss_func("nt-xent")}
    return {
        f"{name}/{accumulation}/{across}": train(
            folder, clip(), loss, accumulation, world, average_tokens_across_devices=across, **options
        )[0]
        .norm()
        .item()
        for name, loss in losses.items()
        for accumulation in (1, 2)
        for across in (True, False)
    }


def measure_transformers() -> list[dict]:
    from tests.integrations.processes import in_processes, plain_gradient
    from tests.integrations.test_hf_trainer import clip, embeddings_of

    model = clip()
    expected = {n: plain_gradient(model, embeddings_of(model), "nt-xent", n).norm().item() for n in (1, 2)}
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for world in (1, 2):
            for key, norm in in_processes(world, trainer_norms, folder)[0].items():
                loss, accumulation, across = key.split("/")
                row = {"finding": "factor", "loss": loss, "processes": world, "accumulation": int(accumulation)}
                ratio = round(norm / expected[int(accumulation)], 4)
                lines.append(row | {"average_tokens_across_devices": across == "True", "ratio": ratio})
    return lines


def measure_pytorch_metric_learning() -> list[dict]:
    import torch
    from pytorch_metric_learning import losses
    from tests.integrations.test_pml import Towers

    import tercet

    (images, captions), labels, lines = Towers()(torch.arange(8)), torch.arange(8), []
    names = ("NTXentLoss", "TripletMarginLoss", "SupConLoss", "CircleLoss", "ContrastiveLoss", "MultiSimilarityLoss")
    built = {name: getattr(losses, name)() for name in names}
    built |= {f"tercet {name}": tercet.integrations.pml.Loss(name) for name in ("nt-xent", "triplet")}
    for name, loss in built.items():
        values = [loss(images, labels, ref_emb=captions, ref_labels=other) for other in (labels, labels.clone())]
        same, copied = (round(float(value), 4) for value in values)
        lines.append({"finding": "same tensor", "loss": name, "same tensor": same, "a copy": copied})
    return lines


def dual_towers(rank, world, folder, cases):
    return {case: dual_tower(world, folder, *case) for case in cases}


def dual_tower(world, folder, loss, find_unused):
    """Gradients of the first two steps of a CLIP under sentence-transformers, and what it raised."""
    import datasets
    import numpy as np
    import sentence_transformers as host
    import torch
    import transformers
    from PIL import Image
    from sentence_transformers.sentence_transformer import losses as theirs
    from tests.integrations.processes import gradient_of
    from tests.integrations.test_sentence_transformers import texts

    import tercet

    ours = tercet.integrations.sentence_transformers
    build = {
        "MultipleNegativesRankingLoss": lambda model: theirs.MultipleNegativesRankingLoss(
            model, gather_across_devices=True
        ),
        "CachedMultipleNegativesRankingLoss": lambda model: theirs.CachedMultipleNegativesRankingLoss(
            model, mini_batch_size=2, gather_across_devices=True
        ),
        "tercet Loss": lambda model: ours.Loss(model, "nt-xent", temperature=0.05),
        "tercet CachedLoss": lambda model: ours.CachedLoss(model, "nt-xent", 2, temperature=0.05),
    }

    class InOrder(host.SentenceTransformerTrainer):
        def get_batch_sampler(self, dataset, batch_size, drop_last, **rest):
            return torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(dataset), batch_size, drop_last)

    class Gradients(transformers.TrainerCallback):
        def __init__(self):
            self.steps = []

        def on_pre_optimizer_step(self, arguments, state, control, model=None, **rest):
            self.steps.append(gradient_of(model))

    model = host.SentenceTransformer(str(folder), device="cpu")
    for name, parameter in model.named_parameters():
        if name.endswith("logit_scale"):
            parameter.requires_grad_(False)
    rng = np.random.default_rng(0)
    images = [Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)) for _ in range(16)]
    gradients, ended = Gradients(), "trained"
    options = {"ddp_find_unused_parameters": find_unused, "ddp_backend": "gloo", "ddp_timeout": 60} if world > 1 else {}
    arguments = host.SentenceTransformerTrainingArguments(
        str(Path(folder) / "out"),
        per_device_train_batch_size=8 // world,
        max_steps=2,
        max_grad_norm=0,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        learning_rate=1e-5,
        **options,
    )
    data = datasets.Dataset.from_dict({"image": images, "text": texts(1)})
    try:
        InOrder(model, arguments, train_dataset=data, loss=build[loss](model), callbacks=[gradients]).train()
    except (RuntimeError, ValueError) as error:
        known = ("mark a variable ready only once", "Expected to have finished reduction")
        ended = next((name for name in known if name in str(error)), str(error).splitlines()[0][:80])
    return {"gradients": gradients.steps, "ended": ended}


def measure_sentence_transformers() -> list[dict]:
    from tests.integrations.processes import in_processes, relative_difference
    from tests.integrations.test_sentence_transformers import WORDS
    from tests.tiny_models import save_clip

    losses = ("MultipleNegativesRankingLoss", "tercet Loss", "CachedMultipleNegativesRankingLoss", "tercet CachedLoss")
    cases, lines = [(loss, find_unused) for loss in losses for find_unused in (False, True)], []
    with tempfile.TemporaryDirectory() as folder:
        save_clip(folder, [" ".join(WORDS)])
        (alone,) = in_processes(1, dual_towers, folder, [(loss, False) for loss in losses])
        ranks = in_processes(2, dual_towers, folder, cases)
    for loss, find_unused in cases:
        found = [rank[loss, find_unused] for rank in ranks]
        expected = alone[loss, False]["gradients"]
        steps = [
            max(relative_difference(rank["gradients"][step], expected[step]) for rank in found)
            for step in range(min(len(rank["gradients"]) for rank in found))
        ]
        errors = sorted({rank["ended"] for rank in found} - {"trained"})
        row = {"finding": "dual tower", "loss": loss, "find_unused_parameters": find_unused}
        lines.append(row | {"steps": [float(f"{step:.0e}") for step in steps], "errors": errors})
    return lines


MEASURES = {
    "open_clip": measure_open_clip,
    "transformers": measure_transformers,
    "sentence_transformers": measure_sentence_transformers,
    "pytorch_metric_learning": measure_pytorch_metric_learning,
}


def table(headings: list[str], rows: list[list[object]]) -> list[str]:
    return [
        f"| {' | '.join(headings)} |",
        f"|{'---|' * len(headings)}",
        *(f"| {' | '.join(map(str, r))} |" for r in rows),
    ]


def page(lines: list[dict]) -> str:
    of = {host: [line for line in lines if line["host"] == host] for host in MEASURES}
    versions = ", ".join(sorted({f"{PACKAGES[line['host']]} {line['version']}" for line in lines}))
    text = [
        "# What other trainers do to a gradient",
        "",
        f"Measured on the CPU with {versions} and torch {lines[0]['torch']}. Generated by `make.py` from hosts.jsonl,",
        "which `python docs/results/hosts.py HOST` measures. docs/integrations.md says what to do about each.",
    ]
    sections = {
        "open_clip": open_clip_section,
        "transformers": transformers_section,
        "pytorch_metric_learning": pml_section,
        "sentence_transformers": sentence_transformers_section,
    }
    for host, section in sections.items():
        if of[host]:
            text += ["", *section(of[host])]
    return "\n".join(text) + "\n"


def open_clip_section(lines: list[dict]) -> list[str]:
    rows = [
        [
            line["loss"],
            line["accum_freq"],
            line["logit_scale ratio"],
            line.get("logit_bias ratio", "-"),
            line["encoders differ by"],
        ]
        for line in lines
    ]
    return [
        "## open_clip: `--accum-freq` and the learned scale",
        "",
        "One step of its training loop on 16 pairs in float64, over the same step on the whole batch at once. The",
        "gradient of the encoders is that of the whole batch, so the loss must not be divided by `accum_freq`. That of",
        "`logit_scale` and `logit_bias` is `accum_freq` times too large, because each of the `accum_freq` backward",
        "passes adds all of it. (Issues 761 and 957 ask whether the loss must be divided.)",
        "`tercet.integrations.open_clip.Loss` hands on one part of it each time.",
        "",
        *table(
            ["loss", "accum_freq", "gradient of logit_scale, ratio", "of logit_bias", "of the encoders, difference"],
            rows,
        ),
    ]


def transformers_section(lines: list[dict]) -> list[str]:
    def name(line: dict) -> str:
        return "the objective itself" if line["loss"] == "plain" else "`hf_trainer.compute_loss_func`"

    rows = [
        [name(line), line["processes"], line["accumulation"], line["average_tokens_across_devices"], line["ratio"]]
        for line in lines
    ]
    return [
        "## Hugging Face Trainer: the factor of a `compute_loss_func`",
        "",
        "Norm of the gradient before the optimizer's step, over that of plain PyTorch, nt-xent with a column `labels`.",
        "The Trainer multiplies a custom loss by the number of processes with `average_tokens_across_devices` (the",
        "default), and does not divide it by `gradient_accumulation_steps`.",
        "",
        *table(["loss", "processes", "accumulation", "average_tokens_across_devices", "gradient, ratio"], rows),
    ]


def pml_section(lines: list[dict]) -> list[str]:
    return [
        "## pytorch-metric-learning: one tensor of labels for both sides",
        "",
        "`loss(images, labels, ref_emb=captions, ref_labels=...)` on eight pairs. With the same tensor as `labels` the",
        "library takes both sides for one and leaves out the diagonal, which holds every positive pair (issue 488).",
        "",
        *table(
            ["loss", "ref_labels is labels", "ref_labels is a copy"],
            [[line["loss"], line["same tensor"], line["a copy"]] for line in lines],
        ),
    ]


def sentence_transformers_section(lines: list[dict]) -> list[str]:
    def verdict(line: dict) -> str:
        if line["errors"]:
            at = f"step 1 differs by {line['steps'][0]:g}; " if line["steps"] else ""
            return f"{at}RuntimeError in step {len(line['steps']) + 1}: {', '.join(line['errors'])}"
        if all(step < EXACT for step in line["steps"]):
            return f"exact (differs by {max(line['steps']):g})"
        return f"differs by {max(line['steps']):g}"

    names = list(dict.fromkeys(line["loss"] for line in lines))
    by = {(line["loss"], line["find_unused_parameters"]): verdict(line) for line in lines}
    rows = [[name, by[name, False], by[name, True]] for name in names]
    return [
        "## sentence-transformers: a dual tower under DistributedDataParallel",
        "",
        "A CLIP with its logit scale frozen, two processes, two steps in float32, compared with one process on the",
        "whole batch. The losses of the host gather with `gather_across_devices=True` here.",
        "",
        *table(["loss", "`ddp_find_unused_parameters=False`", "True (the default for such a model)"], rows),
    ]


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", nargs="+", choices=MEASURES)
    old = [json.loads(line) for line in FILE.read_text().splitlines()] if FILE.is_file() else []
    for host in parser.parse_args().hosts:
        stamp = {"host": host, "version": version(PACKAGES[host]), "torch": torch.__version__.split("+")[0]}
        old = [line for line in old if line["host"] != host] + [stamp | line for line in MEASURES[host]()]
        FILE.write_text("".join(json.dumps(line, sort_keys=True) + "\n" for line in old))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
