"""Conversion of the authors' checkpoints to our state dicts, without executing code from them."""
