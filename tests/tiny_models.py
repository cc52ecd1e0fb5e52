"""Tiny Hugging Face models for tests: configurations, a word-level tokenizer, and CLIP and SigLIP saved to disk."""

RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
SWIN = {
    "model_type": "swin",
    "image_size": 32,
    "embed_dim": 8,
    "depths": [2, 2],
    "num_heads": [1, 2],
    "window_size": 4,
    "drop_path_rate": 0.0,
}
BERT = {
    "model_type": "bert",
    "vocab_size": 30,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
TOWER = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
VISION_TOWER = TOWER | {"image_size": 32, "patch_size": 8}
TEXT_TOWER = TOWER | {"max_position_embeddings": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def save_tokenizer(folder, texts) -> int:
    """Save a word-level tokenizer built from the texts; returns its vocabulary size."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for text in texts for word in text.lower().split()})
    token_ids = {word: token_id for token_id, word in enumerate(["[PAD]", "[CLS]", "[SEP]", "[UNK]", *words])}
    tokenizer = Tokenizer(models.WordLevel(token_ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    return len(token_ids)


def save_clip(folder, texts):
    import torch
    import transformers as t

    vocab_size = save_tokenizer(folder, texts)
    torch.manual_seed(0)
    config = t.CLIPConfig(
        text_config=TEXT_TOWER | {"vocab_size": vocab_size},
        vision_config=VISION_TOWER | {"projection_dim": 16},
        projection_dim=16,
    )
    t.CLIPModel(config).save_pretrained(folder)
    t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


def save_siglip(folder, texts):
    import torch
    import transformers as t

    vocab_size = save_tokenizer(folder, texts)
    torch.manual_seed(0)
    config = t.SiglipConfig(
        text_config=TEXT_TOWER | {"vocab_size": vocab_size, "projection_size": 32}, vision_config=VISION_TOWER
    )
    model = t.SiglipModel(config)
    torch.nn.init.constant_(model.logit_scale, 2.0)
    torch.nn.init.constant_(model.logit_bias, -5.0)
    model.save_pretrained(folder)
    t.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


SAVED_DUAL_ENCODERS = {"clip": save_clip, "siglip": save_siglip}
