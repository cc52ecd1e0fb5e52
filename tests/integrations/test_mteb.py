"""mteb, the real one: its own mock tasks over Tercet's models, dual encoders and cross attention."""

import pytest
import torch

import tercet
from tests.search.small_indexes import model

pytest.importorskip("mteb", reason="has an environment of its own: make test-integrations")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def models():
    return {name: model(name).eval() for name in ("vsepp", "scan")}


@pytest.fixture
def tasks():
    from mteb.mocks.mock_tasks.retrieval import MockAny2AnyRetrievalI2TTask, MockAny2AnyRetrievalT2ITask

    return {"i2t": MockAny2AnyRetrievalI2TTask(), "t2i": MockAny2AnyRetrievalT2ITask()}


def hit_rates(adapter, tasks, folder):
    """hit_rate_at_1 of each task, which is the field's R@1."""
    import mteb

    results = mteb.evaluate(adapter, list(tasks.values()), cache=mteb.cache.ResultCache(folder), co2_tracker=False)
    by_name = {result.task_name: result for result in results.task_results}
    return {key: by_name[task.metadata.name].scores["test"][0]["hit_rate_at_1"] for key, task in tasks.items()}


def recalls(retriever, tasks):
    """The same by `tercet.evaluate`."""
    found = {}
    for direction, task in tasks.items():
        task.load_data()
        split = task.dataset["default"]["test"]
        sides = (split["queries"], split["corpus"]) if direction == "i2t" else (split["corpus"], split["queries"])
        images, texts = (list(dataset[column]) for dataset, column in zip(sides, ("image", "text"), strict=True))
        with torch.inference_mode():
            S = retriever.similarity(retriever.embed_images(images), retriever.embed_texts(texts))
        found[direction] = tercet.evaluate(S, torch.eye(len(S)) > 0)[f"{direction}_r1"] / 100
    return found


@pytest.mark.parametrize(("name", "adapter"), [("vsepp", "Encoder"), ("scan", "Search")])
def test_mock_tasks_have_the_recall_of_our_evaluation(models, tasks, tmp_path, name, adapter):
    found = hit_rates(getattr(tercet.integrations.mteb, adapter)(models[name]), tasks, tmp_path)
    assert found == pytest.approx(recalls(models[name], tasks))


def test_the_protocols_of_the_host_are_satisfied(models):
    from mteb.models.models_protocols import EncoderProtocol, SearchProtocol

    from tercet.integrations.mteb import Encoder, Search

    encoder, search = Encoder(models["vsepp"]), Search(models["scan"], name="me/scan")
    assert isinstance(encoder, EncoderProtocol)
    assert isinstance(search, SearchProtocol)
    assert (encoder.mteb_model_meta.name, search.mteb_model_meta.name) == ("tercet/vsepp", "me/scan")
    embeddings = torch.randn(3, 4)
    pairwise = encoder.similarity_pairwise(embeddings, embeddings.flip(0))
    torch.testing.assert_close(pairwise, encoder.similarity(embeddings, embeddings.flip(0)).diagonal())


def test_results_of_other_weights_are_not_reused(models):
    from tercet.integrations.mteb import Encoder

    revisions = [Encoder(each).mteb_model_meta.revision for each in (models["vsepp"], model("vsepp", seed=1))]
    assert revisions[0] != revisions[1]


def test_a_model_without_a_dot_product_needs_the_search(models):
    with pytest.raises(ValueError, match="scan: Encoder is for models with a dot product, Search for the others"):
        tercet.integrations.mteb.Encoder(models["scan"])


def test_an_item_of_two_modalities_is_refused(models):
    with pytest.raises(ValueError, match="an image or a text, and not both"):
        tercet.integrations.mteb.Encoder(models["vsepp"]).embed({"image": [], "text": []})


def test_only_the_candidates_of_the_task_are_ranked(models):
    from datasets import Dataset

    search = tercet.integrations.mteb.Search(models["scan"])
    texts = Dataset.from_dict({"id": ["a", "b", "c"], "text": ["one", "two words", "three more words"]})
    search.of_images, search.corpus, search.documents = True, {"id": ["x", "y"]}, torch.randn(2, 4, 12)
    found = search.search(texts, top_k=5, top_ranked={"a": ["y"], "b": ["x", "y"], "c": []})
    assert {name: sorted(documents) for name, documents in found.items()} == {"a": ["y"], "b": ["x", "y"], "c": []}
