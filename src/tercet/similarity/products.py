"""The similarity of dual encoders."""

from jaxtyping import Float
from torch import Tensor

from tercet.contracts import Similarity


def dot_products(images: Float[Tensor, "image dim"], captions: Float[Tensor, "caption dim"]) -> Similarity:
    """Cosines, where both have length 1."""
    return images @ captions.T
