"""One's own pictures: features of frozen encoders, extracted once before anything is compared."""

from rich.console import Console

from tercet import runs
from tercet.comparison.settings import CompareSettings
from tercet.data.commands import features
from tercet.data.settings import Features


def data_of(settings: CompareSettings, console: Console) -> str:
    """The data to train on: as given, or a folder of features beside the runs, made now or found from before."""
    if settings.image_encoder is None and settings.text_encoder is None:
        return settings.data
    asked = {
        "data": settings.data,
        "images": None if settings.images is None else str(settings.images),
        "features": settings.features,
        "image_encoder": settings.image_encoder or "none",
        "text_encoder": settings.text_encoder or "none",
    }
    stem = settings.data.rstrip("/").rpartition("/")[2].partition(".")[0]
    target = settings.runs / "features" / f"{stem}_{runs.run_hash(asked, '')}"
    runs.make_root(target.parent)
    if not target.exists():
        console.print(f"features of {settings.data} go to {target}, once", highlight=False, soft_wrap=True)
    features(
        Features(
            path=settings.data,
            target=target,
            image_encoder=asked["image_encoder"] or "none",
            text_encoder=asked["text_encoder"] or "none",
            images=settings.images,
            features=settings.features,
        )
    )
    return str(target)
