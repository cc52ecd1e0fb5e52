"""A folder of images, each with a .txt file of the same name beside it, one caption per line.

Subfolders named train, val, test, ... are splits; other subfolders are part of the image names.
"""

from pathlib import Path

from tercet.data.dataset import SPLIT_NAMES, DataSet, Split
from tercet.data.formats.builder import DEFAULT_SPLIT, DatasetBuilder, ImageFolder
from tercet.data.image_io import SUFFIXES
from tercet.data.textio import ErrorPolicy, numbered_lines


def recognise(path: Path) -> bool:
    if not path.is_dir():
        return False
    return any(file.with_suffix(".txt").is_file() for root in _roots(path).values() for file in _images(root))


def read(path: Path, images: Path | None, errors: ErrorPolicy) -> DataSet:
    if images is not None:
        raise ValueError(f"{path}: --images cannot be used with format folder: the images are in the folder itself")
    splits: dict[str, Split] = {}
    roots = _roots(path)
    _report_unread(path, roots, errors)
    for split, root in roots.items():
        builder = DatasetBuilder(errors)
        files = _images(root)
        for file in files:
            _add(builder, split, root, file)
        for text in sorted(set(root.rglob("*.txt")) - {file.with_suffix(".txt") for file in files}):
            errors.report(str(text), "no image of the same name beside it")
        for name, built in builder.splits(ImageFolder(root, (), ())).items():
            if name in splits:
                raise ValueError(f"{path}: two folders for the split {name}")
            splits[name] = built
    return DataSet(path, "folder", splits, errors.messages)


def _report_unread(path: Path, roots: dict[str, Path], errors: ErrorPolicy) -> None:
    """Report images outside the split folders, and symbolic links to folders: neither are read."""
    if DEFAULT_SPLIT not in roots:
        for file in _images(path):
            if not any(root in file.parents for root in roots.values()):
                errors.report(str(file), f"outside the split folders {', '.join(roots)}")
    for entry in sorted(path.rglob("*")):
        if entry.is_symlink() and entry.is_dir():
            errors.report(str(entry), "symbolic links to folders are not followed")


def _roots(path: Path) -> dict[str, Path]:
    folders = [folder for folder in sorted(path.iterdir()) if folder.is_dir() and folder.name.lower() in SPLIT_NAMES]
    return {folder.name: folder for folder in folders} if folders else {DEFAULT_SPLIT: path}


def _images(root: Path) -> list[Path]:
    return [file for file in sorted(root.rglob("*")) if file.suffix.lower() in SUFFIXES and file.is_file()]


def _add(builder: DatasetBuilder, split: str, root: Path, file: Path) -> None:
    caption_file = file.with_suffix(".txt")
    if not caption_file.is_file():
        builder.errors.report(str(file), f"no caption file {caption_file.name} beside it")
        return
    captions = [line for _, line in numbered_lines(caption_file, builder.errors) if line is not None and line.strip()]
    if not captions:
        builder.errors.report(str(caption_file), "no captions: expected one per line")
        return
    builder.add(split, file.relative_to(root).as_posix(), captions, str(caption_file))
