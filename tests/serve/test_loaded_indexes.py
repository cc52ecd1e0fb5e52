"""Indexes that are opened in the background."""

import threading

from tercet.serve.state import LoadedIndex, LoadedIndexes


def test_a_server_that_stops_waits_for_the_index_being_opened_and_opens_no_other(tmp_path, monkeypatch):
    opened, started = [], threading.Event()

    def open_until_closing(index):
        started.set()
        assert indexes._closing.wait(10)
        opened.append(index.name)

    monkeypatch.setattr(LoadedIndex, "open", open_until_closing)
    indexes = LoadedIndexes([tmp_path / "first", tmp_path / "second"])
    indexes.open()
    assert started.wait(10)
    indexes.close()
    assert not indexes._loader.is_alive()
    assert opened == ["first"]


def test_indexes_that_were_never_opened_close(tmp_path):
    indexes = LoadedIndexes([tmp_path / "first"])
    indexes.close()
    assert not indexes._loader.is_alive()
