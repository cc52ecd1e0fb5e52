"""How fast a run is, as a person is shown it."""

import time

SMOOTHED = 0.95  # how much of the old figure a new one keeps


class Speed:
    """Pairs a second, and the share of the time spent waiting for data."""

    def __init__(self) -> None:
        self._mark = time.perf_counter()
        self._wait = self._work = 0.0
        self._pairs = 0.0

    def waiting(self) -> None:
        self._mark = time.perf_counter()

    def working(self) -> None:
        now = time.perf_counter()
        self._wait = SMOOTHED * self._wait + now - self._mark
        self._mark = now

    def done(self, pairs: int) -> None:
        self._work = SMOOTHED * self._work + time.perf_counter() - self._mark
        self._pairs = SMOOTHED * self._pairs + pairs

    def news(self) -> dict[str, str]:
        total = self._wait + self._work
        return {"pairs/s": f"{self._pairs / total:.0f}", "data wait": f"{100 * self._wait / total:.0f} %"}
