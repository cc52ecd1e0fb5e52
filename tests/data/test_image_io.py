"""Reading image files: their checksum. Decoding and its limits are in test_bad_input.py and the tests of formats."""

import pytest

from tercet.data.image_io import ImageBytes, ImageFile, content_checksum


def test_a_file_is_hashed_once_until_it_changes(tmp_path, monkeypatch):
    file, reads = ImageFile(tmp_path / "a.png"), []
    file.path.write_bytes(b"one")
    read = ImageFile.content
    monkeypatch.setattr(ImageFile, "content", lambda self: reads.append(self) or read(self))
    first = content_checksum(file)
    assert content_checksum(ImageFile(tmp_path / "a.png")) == first == content_checksum(ImageBytes(b"one"))
    assert len(reads) == 1
    file.path.write_bytes(b"another")
    assert content_checksum(file) != first
    file.path.unlink()
    with pytest.raises(ValueError, match="cannot read the file"):
        content_checksum(file)
