"""Damage to files, and forged manifests: for tests of what is checked after the checksums."""

import json

from tercet.storage import SEAL, checksums_of, write_manifest


def flip_bit(file, position=None, bit=0):
    """Flip one bit of a file; by default of the byte in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2 if position is None else position] ^= 1 << bit
    file.write_bytes(content)


def manifest_of(file):
    """The content of a manifest, to be changed and written again."""
    content = json.loads(file.read_text())
    content.pop(SEAL)
    return content


def forge(file, **changes):
    """Change values of a manifest, as somebody would who knows how it is sealed."""
    write_manifest(file, manifest_of(file) | changes)


def record_again(manifest, folder=None):
    """Make the checksums of a manifest those of the files as they are now, as whoever forges a folder would."""
    folder = manifest.parent if folder is None else folder
    present = [name for name in manifest_of(manifest)["checksums"] if (folder / name).is_file()]
    forge(manifest, checksums=checksums_of(folder, present))
