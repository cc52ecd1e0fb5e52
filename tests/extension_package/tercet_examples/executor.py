"""An executor: the runs of a comparison one after the other, in this process."""

from tercet.console import RunProgress
from tercet.training.train import train_run


class InTurn:
    """One run after the other, in this process."""

    def __init__(self, prepared_datasets, processes):
        self.prepared_datasets = prepared_datasets

    def run(self, plans, events):
        for plan in plans:
            events.started(plan)
            try:
                run = train_run(plan.settings, self.prepared_datasets[plan.variant.model], RunProgress())
                events.finished(plan, run.folder)
            except ValueError as error:
                events.failed(plan, str(error))
