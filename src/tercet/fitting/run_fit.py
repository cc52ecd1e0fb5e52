"""`tercet fit`: check, split, plan, compare, choose and index, each by the command that does it alone.

    runs/fit_photos_1a2b3c4d5e/fit.json     the plan; written first, and resumed unchanged
                               photos.json  the split file: which images are used, and what could not be read
                               index/       the search index
                               result.json  what was found

Run folders, features, baselines and the comparison are in `runs`, where the commands of these stages find them.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from tercet import runs
from tercet.comparison.baselines import Baseline
from tercet.comparison.cca import identity_heads
from tercet.comparison.compare import Comparison, run_comparison
from tercet.comparison.plan import make_variants
from tercet.comparison.settings import CompareSettings
from tercet.console import ConsoleProgress, print_lines, progress_console, terminal_console
from tercet.data.dataset import DataSet
from tercet.data.encoders.registry import ImageEncoder, TextEncoder, image_encoder, text_encoder
from tercet.data.formats import open_data
from tercet.data.formats.split_file import DataSource, checksum, read_skipped, read_summary, some_of
from tercet.data.splitting import reduce_split_file, write_split_file
from tercet.fitting.budget import WHOLE, Plan, make_plan
from tercet.fitting.measure import Sizes, measure
from tercet.fitting.settings import FitSettings, make_fit_settings
from tercet.hub import DUAL_ENCODERS, cached_dual_encoders, is_pretrained, pretrained_config
from tercet.inference import Preprocessor, Retriever, load
from tercet.names import is_in_memory
from tercet.objectives.registry import spec_of
from tercet.search.build_index import build_index
from tercet.search.settings import IndexSettings
from tercet.search.vector_store import store_type
from tercet.storage import FORMAT_VERSION, checked_manifest, exclusive_lock, write_manifest
from tercet.training.automatic_splits import stem_of
from tercet.training.prepare import name_data
from tercet.training.trained import metrics_table

PLAN, RESULT, INDEX, ZERO_SHOT = "fit.json", "result.json", "index", "zero-shot"
REMEDY = "; --skip-bad leaves them out"


@dataclass(frozen=True, repr=False)
class Fitted:
    """Result of `fit`: the model that was best on validation, what it reaches on test, and its search index."""

    folder: Path
    model: Path
    """What `tercet.load` takes."""
    name: str
    """The objective that trained it, or the baseline that none was better than."""
    metrics: Mapping[str, float]
    split: str
    comparison: Comparison
    index: Path | None
    """None if the data has no images, or no vector store is installed."""

    def __repr__(self) -> str:
        reached = f"{self.split} rsum {self.metrics['rsum']:.1f}"
        return f"Fitted({self.name[:60]!r}, {reached}, model {str(self.model)[-120:]!r})"

    def _repr_html_(self) -> str:
        from tercet.reporting.output_formats import tables_html

        return tables_html(self.comparison.tables(), self.comparison.verdict, "; ".join(self.lines()))

    def lines(self) -> list[str]:
        """What was found, and what to do next."""
        lines = [
            f"Chosen on validation: {self.name}; on {self.split}: rsum {self.metrics['rsum']:.1f}, "
            f"i2t R@1 {self.metrics['i2t_r1']:.1f}, t2i R@1 {self.metrics['t2i_r1']:.1f}",
            f"Model:  {self.model}",
            f"Report: {self.comparison.folder / 'report.html'}",
        ]
        if self.index is not None:
            lines += [f"Index:  {self.index}", "", f"tercet serve {self.index} --runs {self.comparison.settings.runs}"]
        return lines

    def print(self, console: Console | None = None) -> None:
        console = console or terminal_console()
        for table in self.comparison.tables():
            console.print(table.terminal())
            console.print()
        console.print(self.comparison.verdict, highlight=False, markup=False)
        console.print()
        console.print(
            metrics_table(self.metrics, f"{self.name}, {self.split}", self.comparison.results.sides).terminal()
        )
        console.print()
        for line in self.lines():
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def fit_with(given: Mapping[str, Any]) -> Fitted:
    """`tercet.fit` with the settings that the caller gave, by name."""
    named = dict(given)
    if "data" in given:
        named["data"] = name_data(given)
    if "objectives" in given:
        several = isinstance(given["objectives"], (list, tuple))
        named["objectives"] = [spec_of(each) for each in (given["objectives"] if several else [given["objectives"]])]
    return run_fit(make_fit_settings(named), progress_console())


def run_fit(settings: FitSettings, console: Console) -> Fitted:
    """All stages; what was done before is not done again."""
    make_variants(CompareSettings(objectives=settings.objectives))  # wrong names fail before anything is read
    if settings.model is not None:
        _check_model(settings.model)
    opened = open_data(settings.data, images=settings.images, skip_bad=True)
    if opened.skipped and not settings.skip_bad:
        raise ValueError(
            f"{settings.data}: {len(opened.skipped):,} items cannot be read: {some_of(opened.skipped)}{REMEDY}"
        )
    if opened.no_images:
        raise ValueError(f"{settings.data}: {opened.no_images}")
    runs.make_root(settings.runs)
    folder = settings.runs / f"fit_{stem_of(settings.data)}_{_identity(settings, opened)}"
    folder.mkdir(exist_ok=True)
    with exclusive_lock(folder):
        return _Fit(settings, folder, console).run(opened)


def _check_model(name: str) -> None:
    """Raise within seconds if there is no such model, without reading its weights."""
    if not is_pretrained(name):
        raise ValueError(f"--model {name}: neither a folder of a CLIP or SigLIP of Hugging Face nor a name on the hub")
    kind = str(pretrained_config(name).model_type)
    if kind not in DUAL_ENCODERS:
        raise ValueError(f"--model {name} is a {kind}: it must be one of {', '.join(DUAL_ENCODERS)}")


def _identity(settings: FitSettings, opened: DataSet) -> str:
    """Of the question and the data: neither of the place of the data nor of that of the runs."""
    names = ("model", "minutes", "objectives", "image_encoder", "text_encoder", "skip_bad")
    return runs.run_hash({name: getattr(settings, name) for name in names}, checksum(opened, 0))


@dataclass(frozen=True)
class _Fit:
    settings: FitSettings
    folder: Path
    console: Console

    def run(self, opened: DataSet) -> Fitted:
        data, opened = self._with_split_file(opened)
        plan, whole, sizes = self._plan(opened)
        for line in plan.lines():
            self._say(f"plan: {line}")
        if plan.reduced:
            data = str(reduce_split_file(Path(data), self.folder / "part" / Path(data).name, plan.images))
        comparison = run_comparison(self._comparison(plan, data, whole, sizes), self.console)
        comparison.save()
        if not comparison.results.names():
            failures = "; ".join(f"{failure.name}: {failure.why}" for failure in comparison.results.failures[:3])
            raise ValueError(f"no run of the comparison finished: {failures}")
        model, name, metrics = _chosen(comparison)
        any_run = next(iter(comparison.results.runs[comparison.results.names()[0]].values()))
        index = self._index(data, model, Path(str(runs.read_settings(any_run.folder)["data"])))
        result: dict[str, Any] = {
            "model": str(model),
            "chosen": name,
            "metrics": dict(metrics),
            "split": comparison.results.split,
        }
        result |= {"comparison": comparison.folder.name, "index": None if index is None else index.name}
        write_manifest(self.folder / RESULT, {"format_version": FORMAT_VERSION} | result)
        if plan.reduced and index is not None:
            rest = f"tercet index {model} --images {self.settings.data} --out {index}"
            self._say(f"the index has the {sum(plan.images.values()):,} images of the plan; all of them: {rest}")
        return Fitted(self.folder, model, name, metrics, comparison.results.split, comparison, index)

    def _with_split_file(self, opened: DataSet) -> tuple[str, DataSet]:
        """The data through a split file in the folder: readable images, in splits. Data without images as it is."""
        settings = self.settings
        is_path = Path(settings.data).exists()
        if not (is_path or is_in_memory(settings.data)) or any(
            split.image_files is None for split in opened.splits.values()
        ):
            return settings.data, opened
        file = self.folder / f"{stem_of(settings.data)}.json"
        if not file.is_file():
            folder = None if settings.images is None else str(settings.images.resolve())
            path = str(Path(settings.data).resolve()) if is_path else settings.data
            source = DataSource(path, opened.format if is_path else None, folder, settings.skip_bad)
            with ConsoleProgress(self.console) as progress:
                write_split_file(file, opened, source, progress=progress, remedy=REMEDY)
        self._say(f"{settings.data}: {read_summary(file)}, in {file}")
        for message in read_skipped(file)[:5]:
            self._say(f"skipped: {message}")
        return str(file), open_data(file, images=settings.images)

    def _plan(self, opened: DataSet) -> tuple[Plan, str | None, Sizes]:
        """The plan of the folder, or a new one; the CLIP or SigLIP that it uses, and the sizes of its features."""
        file = self.folder / PLAN
        if file.is_file():
            content = checked_manifest(json.loads(file.read_bytes()), file, f"remove the folder {self.folder}")
            return Plan(**content["plan"]), content["model"], Sizes(*content["sizes"])
        settings, train = self.settings, opened.split("train")
        if "val" not in opened.splits:
            raise ValueError(
                f"{settings.data} has no validation split, on which fit chooses: `tercet data split {settings.data} "
                "OUT.json`, then give OUT.json"
            )
        has_images = all(split.image_files is not None for split in opened.splits.values())
        if settings.model is not None and not has_images:
            raise ValueError(f"{settings.data} has no image files, and {settings.model} reads images")
        encodes = has_images and any(
            split.features is None or split.caption_features is None for split in opened.splits.values()
        )
        model = settings.model
        if model is None and encodes:
            model = next(iter(cached_dual_encoders()), None)
        whole = None if model is None else load(model)
        images, texts = self._encoders(model) if encodes else (None, None)
        measured, sizes = measure(train, images, texts, whole)
        used = {name: opened.splits[name] for name in ("train", "val", "test") if name in opened.splits}
        plan = make_plan(
            settings.minutes,
            measured,
            {name: len(split.image_names) for name, split in used.items()},
            {name: len(split.texts) for name, split in used.items()},
            settings.objectives,
            encodes=encodes,
            indexes=has_images and _has_store(),
        )
        content = {"format_version": FORMAT_VERSION, "plan": plan.document(), "model": model, "sizes": list(sizes)}
        write_manifest(file, content)
        return Plan(**json.loads(json.dumps(plan.document()))), model, sizes

    def _encoders(self, model: str | None) -> tuple[ImageEncoder, TextEncoder]:
        return image_encoder(model or self.settings.image_encoder), text_encoder(model or self.settings.text_encoder)

    def _comparison(self, plan: Plan, data: str, model: str | None, sizes: Sizes) -> CompareSettings:
        """The comparison of the plan; `tercet compare` with these settings is the same one."""
        settings = CompareSettings(
            data=data,
            objectives=tuple(plan.objectives),
            seeds=plan.seeds,
            no_tune=not plan.tuned,
            epochs=plan.epochs,
            train={"batch_size": plan.batch_size},
            images=self.settings.images,
            processes=self.settings.processes,
            runs=self.settings.runs,
        )
        if plan.mode == WHOLE:
            assert model is not None
            return replace(settings, models=(model,))
        if "features" not in plan.seconds:
            return settings
        names = self.settings if model is None else replace(self.settings, image_encoder=model, text_encoder=model)
        settings = replace(settings, image_encoder=names.image_encoder, text_encoder=names.text_encoder)
        if model is None or sizes.image != sizes.caption:
            return settings
        start = self.folder / ZERO_SHOT  # heads on features of a dual encoder begin as that encoder is
        if not start.is_dir():
            heads = identity_heads(sizes.image)
            Retriever("heads", heads, Preprocessor(image_encoder=model, text_encoder=model)).save(start)
        settings = replace(settings, model_settings={"embed_dim": sizes.image})
        return replace(settings, train={**settings.train, "init_from": str(start)})

    def _index(self, data: str, model: Path, features: Path) -> Path | None:
        """The index of all images that are used; None if the model reads no images, or if faiss is not installed."""
        preprocessor = load(model).preprocessor
        dataset = open_data(data, images=self.settings.images)
        readable = all(split.image_files is not None for split in dataset.splits.values())
        if not readable or (preprocessor.pixels is None and preprocessor.image_encoder is None):
            self._say("no index: the data has no image files, or the encoder of its features is not known")
            return None
        if not _has_store():
            self._say("no index: it needs faiss: pip install 'tercet[search]', then run this command again")
            return None
        target = self.folder / INDEX
        with ConsoleProgress(self.console) as progress:
            build_index(IndexSettings(model, data, self.settings.images, out=target), progress, [features])
        return target

    def _say(self, text: str) -> None:
        print_lines(text, to_stderr=True)


def _has_store() -> bool:
    try:
        store_type("faiss").of(np.zeros((1, 1), dtype=np.float32))
    except ValueError:
        return False
    return True


def _chosen(comparison: Comparison) -> tuple[Path, str, Mapping[str, float]]:
    """The run or baseline with the best validation: path of the model, name, metrics on test."""
    results = comparison.results
    found: list[tuple[float, Path, str, Mapping[str, float]]] = []
    for name in results.names():
        for run in results.runs[name].values():
            metric = str(runs.read_settings(run.folder).get("select_metric", "rsum"))
            selected = max(runs.read_selection(run.folder, metric))
            found.append((selected, run.folder, name, run.metrics))
    of_baselines: list[Baseline] = list(comparison.baselines)
    found += [
        (each.selected, each.model, each.name, each.metrics) for each in of_baselines if each.selected is not None
    ]
    _, model, name, metrics = max(found, key=lambda each: each[0])
    return model, name, metrics
