"""Values and gradients of two losses of pytorch-metric-learning, for tests/objectives/test_goldens.py.

Run in an environment of its own: pip install torch==2.13.0 pytorch-metric-learning==2.9.0
python tests/goldens/make_metric_learning.py > tests/goldens/metric_learning.json
"""

import json

import torch
from pytorch_metric_learning import losses, miners, reducers

IMAGE_IDS, CAPTION_IDS = [3, 1, 4, 7], [3, 1, 4, 7, 3, 3, 1, 4, 1]


def embeddings(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(rows, 5, generator=generator, dtype=torch.float64), dim=1)


def one_direction(loss, miner, anchors, anchor_ids, candidates, candidate_ids):
    """The summed loss of the anchors and its gradient with respect to them."""
    anchors = anchors.clone().requires_grad_()
    indices = None if miner is None else miner(anchors, anchor_ids, candidates, candidate_ids)
    value = loss(anchors, anchor_ids, indices, candidates, candidate_ids).sum()
    value.backward()
    return {"value": value.item(), "gradient": anchors.grad.tolist()}


def main():
    images, captions = embeddings(len(IMAGE_IDS), 0), embeddings(len(CAPTION_IDS), 1)
    ids = torch.tensor(IMAGE_IDS), torch.tensor(CAPTION_IDS)
    summed = {
        "circle": (losses.CircleLoss(m=0.4, gamma=80, reducer=reducers.SumReducer()), None),
        "multi-similarity": (
            losses.MultiSimilarityLoss(alpha=2, beta=50, base=1.0, reducer=reducers.SumReducer()),
            miners.MultiSimilarityMiner(epsilon=0.1),
        ),
        "multi-similarity:slack=null": (
            losses.MultiSimilarityLoss(alpha=2, beta=50, base=1.0, reducer=reducers.SumReducer()),
            None,
        ),
    }
    golden = {"image_ids": IMAGE_IDS, "caption_ids": CAPTION_IDS}
    golden |= {"images": images.tolist(), "captions": captions.tolist(), "losses": {}}
    for name, (loss, miner) in summed.items():
        golden["losses"][name] = {
            "i2t": one_direction(loss, miner, images, ids[0], captions, ids[1]),
            "t2i": one_direction(loss, miner, captions, ids[1], images, ids[0]),
        }
    print(json.dumps(golden, indent=1))


if __name__ == "__main__":
    main()
