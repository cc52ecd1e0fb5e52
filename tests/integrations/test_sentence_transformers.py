"""sentence-transformers, the real one: plain and cached losses, several positives, hard negatives, and a dual tower."""

import pytest
import torch

import tercet
from tests.integrations.processes import (
    IDS,
    OBJECTIVES,
    ROWS,
    gradient_of,
    in_processes,
    plain_gradient,
    relative_difference,
)
from tests.tiny_models import BERT, save_tokenizer

pytest.importorskip("sentence_transformers", reason="has an environment of its own: make test-integrations")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

WORDS = ["a", "red", "dog", "cat", "runs", "sleeps", "on", "in", "the", "park", "grass", "big", "small"]


def texts(seed):
    generator = torch.Generator().manual_seed(seed)
    return [" ".join(WORDS[i] for i in torch.randint(len(WORDS), (6,), generator=generator)) for _ in IDS]


COLUMNS = {"anchor": texts(0), "positive": texts(1), "negative": texts(2)}


def text_model(folder):
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    if not (folder / "config.json").exists():
        vocabulary = save_tokenizer(folder, [" ".join(WORDS)])
        torch.manual_seed(0)
        config = {**BERT, "vocab_size": vocabulary, "max_position_embeddings": 32}
        del config["model_type"]
        transformers.BertModel(transformers.BertConfig(**config)).save_pretrained(folder)
    transformer = Transformer(str(folder))
    return SentenceTransformer(modules=[transformer, Pooling(BERT["hidden_size"])], device="cpu").double()


def losses():
    from tercet.integrations import sentence_transformers as ours

    return {
        "plain": lambda model, name: ours.Loss(model, name),
        "cached": lambda model, name: ours.CachedLoss(model, name, mini_batch_size=3),
    }


def train(folder, model, loss, columns, accumulation=1, world=1, **options):
    """Train one step with the real trainer, rows in their order; the gradient before it."""
    import datasets
    import sentence_transformers as host
    import transformers

    class InOrder(host.SentenceTransformerTrainer):
        def get_batch_sampler(self, dataset, batch_size, drop_last, **rest):
            return torch.utils.data.BatchSampler(torch.utils.data.SequentialSampler(dataset), batch_size, drop_last)

    class Gradient(transformers.TrainerCallback):
        def on_pre_optimizer_step(self, arguments, state, control, model=None, **rest):
            self.gradient = gradient_of(model)

    last = Gradient()
    arguments = host.SentenceTransformerTrainingArguments(
        str(folder / "out"),
        per_device_train_batch_size=ROWS // world,
        gradient_accumulation_steps=accumulation,
        max_steps=1,
        max_grad_norm=0,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        **options,
    )
    data = datasets.Dataset.from_dict(columns)
    InOrder(model, arguments, train_dataset=data, loss=loss, callbacks=[last]).train()
    return last.gradient


def gradients(rank, world, folder):
    found = {}
    for kind, build in losses().items():
        # BERT's pooler is not used, which DDP has to be told; see docs/integrations.md on find_unused_parameters.
        options = {"ddp_find_unused_parameters": kind == "cached", "ddp_backend": "gloo"} if world > 1 else {}
        for name in OBJECTIVES:
            for accumulation in (1, 2):
                model = text_model(folder)
                without_pooler(model)
                columns = {**COLUMNS, "label": IDS.tolist()}
                gradient = train(folder, model, build(model, name), columns, accumulation, world, **options)
                found[f"{kind} {name} {accumulation}"] = gradient
    return found


def without_pooler(model):
    model[0].model.pooler.requires_grad_(False)


def embed_with(model):
    from torch.nn.functional import normalize

    def column(name, rows):
        features = model.preprocess([COLUMNS[name][row] for row in rows])
        return normalize(model(features)["sentence_embedding"], dim=1)

    def embed(rows):
        return column("anchor", rows), torch.cat([column("positive", rows), column("negative", rows)])

    return embed


def expected_gradient(model, name, accumulation):
    """Hard negatives are candidates that are positives of nothing: ids that no row has."""
    objective, embed = tercet.objective(name), embed_with(model)
    model.zero_grad()
    for batch in torch.arange(ROWS * accumulation).split(ROWS):
        images, captions = embed(batch)
        ids = torch.cat([IDS[batch], torch.full((len(batch),), -7)])
        (objective(images, captions, image_ids=IDS[batch], caption_ids=ids) / accumulation).backward()
    return gradient_of(model)


@pytest.mark.parametrize("world", [1, 2])
def test_gradients_equal_those_of_plain_pytorch(tmp_path, world):
    model = text_model(tmp_path)
    without_pooler(model)
    for found in in_processes(world, gradients, tmp_path):
        for key, gradient in found.items():
            _, name, accumulation = key.split()
            expected = expected_gradient(model, name, int(accumulation))
            assert relative_difference(gradient, expected) < 1e-10, key


def test_nt_xent_equals_the_loss_of_the_host(tmp_path):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = text_model(tmp_path)
    without_pooler(model)
    model.eval()
    features = [model.preprocess(COLUMNS[name][:ROWS]) for name in ("anchor", "positive")]
    directions = ("query_to_doc", "doc_to_query")
    MultipleNegativesRankingLoss(model, scale=20.0, directions=directions, partition_mode="per_direction")(
        features, None
    ).backward()
    expected = gradient_of(model)
    embed = embed_with(model)

    def without_negatives(rows):
        images, captions = embed(rows)
        return images, captions[: len(rows)]

    actual = plain_gradient(model, without_negatives, "nt-xent", 1, temperature=0.05, ids=torch.arange(len(IDS)))
    assert relative_difference(actual, expected) < 1e-10
    model.zero_grad()
    losses()["plain"](model, tercet.objective("nt-xent", temperature=0.05))(features).backward()
    assert relative_difference(gradient_of(model), expected) < 1e-10


def test_a_frozen_scale_is_named(tmp_path):
    from tercet.integrations.sentence_transformers import Loss

    model = torch.nn.Module()
    model.logit_scale, model.weight = torch.nn.Parameter(torch.ones(())), torch.nn.Parameter(torch.ones(()))
    with pytest.warns(UserWarning, match="frozen, since the loss does not use it: logit_scale"):
        Loss(model, "triplet-sh", freeze_unused=True)
    assert [p.requires_grad for p in (model.logit_scale, model.weight)] == [False, True]
    assert Loss(model, "nt-xent", temperature=0.05).get_config_dict()["temperature"] == 0.05
