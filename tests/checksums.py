"""Damage to files, and forged checksums: for tests of what is checked after the checksums."""

import json

from tercet.storage import checksums_of


def flip_bit(file, position=None, bit=0):
    """Flip one bit of a file; by default of the byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1 << bit
    file.write_bytes(content)


def record_again(manifest, folder=None):
    """Make the checksums of a manifest those of the files as they are now, as whoever forges a folder would."""
    content = json.loads(manifest.read_text())
    folder = manifest.parent if folder is None else folder
    present = [name for name in content["checksums"] if (folder / name).is_file()]
    manifest.write_text(json.dumps(content | {"checksums": checksums_of(folder, present)}))
