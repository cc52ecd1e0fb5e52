"""Pictures of an index as small JPEGs: re-encoded, never the file itself, and only the file that was indexed."""

import io
from collections import OrderedDict
from threading import Lock

from tercet.data.pictures import PictureBytes, open_picture
from tercet.search.items import Item, SourceOfPictures, checksum_of
from tercet.search.server.refused import Refused

SIDES = {"small": 320, "large": 1280}  # pixels of the longer side
MOST_KEPT = 64 << 20  # bytes


class Thumbnails:
    """The latest are kept in memory, up to so many bytes."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def get(self, item: Item, source: SourceOfPictures, side: int) -> bytes:
        key = item.checksum, side
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = _reencoded(_content(item, source), side)
        with self._lock:
            if key not in self._kept:
                self._kept[key] = made
                self._bytes += len(made)
            while self._bytes > MOST_KEPT:
                self._bytes -= len(self._kept.popitem(last=False)[1])
        return made


def _content(item: Item, source: SourceOfPictures) -> bytes:
    """A file that was changed since, or put in its place, such as a link to somewhere else, is not of the index."""
    try:
        content = source.picture(item).content()
    except ValueError as error:
        raise Refused(410, "the picture cannot be read any more; `tercet index` brings the index up to date") from error
    if checksum_of(content) != item.checksum:
        raise Refused(410, "the picture has changed since it was indexed; `tercet index` brings the index up to date")
    return content


def _reencoded(content: bytes, side: int) -> bytes:
    try:
        picture = open_picture(PictureBytes(content))
    except ValueError as error:
        raise Refused(410, "the picture cannot be decoded any more") from error
    picture.thumbnail((side, side))
    encoded = io.BytesIO()
    picture.save(encoded, format="JPEG", quality=85)
    return encoded.getvalue()
