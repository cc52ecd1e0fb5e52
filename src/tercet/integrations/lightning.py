"""Lightning and Fabric need no adapter: `training_step` calls the objective. Here is the callback of the watcher."""

from typing import Any

from tercet.integrations import host, made_on_first_use
from tercet.training.watch import Watcher


def _WatchCallback() -> type:  # noqa: N802
    class WatchCallback(host("lightning").Callback):  # type: ignore[misc]
        """Logs what a watcher measures with `log_dict`; `attach`: name of the submodule to attach it to.

        Without `attach`, `training_step` calls the watcher.
        """

        def __init__(self, watcher: Watcher, attach: str | None = None) -> None:
            self.watcher, self.attach = watcher, attach

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            if self.attach is not None:
                self.watcher.attach(pl_module.get_submodule(self.attach))

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if counts := self.watcher.take():
                pl_module.log_dict(counts, rank_zero_only=True)

    return WatchCallback


__getattr__ = made_on_first_use(_WatchCallback)
