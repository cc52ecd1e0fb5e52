"""What a visitor is told instead of an answer."""


class Refused(Exception):  # noqa: N818 - an answer like others
    """A status of HTTP and one line."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


def busy() -> Refused:
    return Refused(503, "too many questions at once; ask again in a moment")
