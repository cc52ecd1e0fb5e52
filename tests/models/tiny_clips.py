"""A tiny CLIP and a tiny SigLIP on disk, as Hugging Face keeps them: weights, words, and how pictures are made."""

from tests.models.tiny_words import save_tokenizer

VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 32,
    "patch_size": 8,
}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def save_clip(folder, texts):
    import torch
    import transformers as t

    words = save_tokenizer(folder, texts)
    torch.manual_seed(0)
    config = t.CLIPConfig(
        text_config=TEXT | {"vocab_size": words}, vision_config=VISION | {"projection_dim": 16}, projection_dim=16
    )
    t.CLIPModel(config).save_pretrained(folder)
    t.CLIPImageProcessor(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


def save_siglip(folder, texts):
    import torch
    import transformers as t

    words = save_tokenizer(folder, texts)
    torch.manual_seed(0)
    config = t.SiglipConfig(text_config=TEXT | {"vocab_size": words, "projection_size": 32}, vision_config=VISION)
    model = t.SiglipModel(config)
    torch.nn.init.constant_(model.logit_scale, 2.0)
    torch.nn.init.constant_(model.logit_bias, -5.0)
    model.save_pretrained(folder)
    t.SiglipImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder)
    return str(folder)


SAVED = {"clip": save_clip, "siglip": save_siglip}
