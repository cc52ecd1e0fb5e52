"""Tokenizing captions: words, vocabularies and token ids."""
