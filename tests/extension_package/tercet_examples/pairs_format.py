"""A dataset format: lines `split | image | caption` in a file that ends in .pairs, beside its images."""

from tercet.data.dataset import DataSet
from tercet.data.formats import Format
from tercet.data.formats.builder import DatasetBuilder, ImageFolder
from tercet.data.textio import numbered_lines


def read(path, images, errors):
    builder = DatasetBuilder(errors)  # groups captions by image; reports errors with file and line
    for number, line in numbered_lines(path, errors):
        if line is None or line.count("|") < 2:
            errors.report(f"{path}, line {number}", "expected split | image | caption")
            continue
        split, image, caption = (part.strip() for part in line.split("|", 2))
        builder.add(split, image, [caption], f"{path}, line {number}")
    folder = ImageFolder(images, [path.parent], builder.images())
    return DataSet(path, "pairs", builder.splits(folder), errors.messages)


PAIRS = Format(lambda path: path.suffix == ".pairs", read, "lines of split | image | caption")
