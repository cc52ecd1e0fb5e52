"""What is done about bad input: stop at the first fault, or leave the item out, count it and list it."""


class Faults:
    """Readers report to it. Nothing is dropped without a line here."""

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip
        self.listed: list[str] = []

    def found(self, place: str, fault: str) -> None:
        """Raises, unless bad items are to be skipped: then the caller leaves this one out."""
        if not self.skip:
            raise ValueError(f"{place}: {fault}")
        self.listed.append(f"{place}: {fault}")
