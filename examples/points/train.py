"""Make a small regression: a network that finds the middle of a digit's ink, and samples with that point as label.

    pip install torch scikit-learn
    python train.py --out points    # half a minute of one core; needs no network

It writes `points/model.onnx`, whose output `point` has two values for each image, x and y in pixels, and
`points/data.npz` with 1,000 images that it was not trained on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

TRAINING = 797  # images; the file has the other 1,000


def read_images() -> tuple[torch.Tensor, torch.Tensor]:
    """Images, (n, 1, 8, 8), and the middle of the ink of each, (n, 2)."""
    images = torch.tensor(load_digits().images).float()[:, None] / 16
    axis = torch.arange(8.0)
    ink = images[:, 0] / images.sum((2, 3))[..., None]
    return images, torch.stack([ink.sum(1) @ axis, ink.sum(2) @ axis], 1)


def train(images: torch.Tensor, points: torch.Tensor) -> nn.Module:
    """A network of three convolutions that is fitted to the points."""
    torch.manual_seed(0)
    convolutions = [nn.Conv2d(1, 32, 3, 1, 1), nn.Conv2d(32, 64, 3, 2, 1), nn.Conv2d(64, 64, 3, 1, 1)]
    layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU())]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(1024, 2))
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for _ in range(20):
        for rows in torch.randperm(len(images)).split(32):
            loss = nn.functional.mse_loss(model(images[rows]), points[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return model.eval()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("points"), help="folder for the model and the data")
    folder: Path = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    images, points = read_images()
    torch.onnx.export(
        train(images[:TRAINING], points[:TRAINING]),
        (images[:1],),
        str(folder / "model.onnx"),
        dynamo=True,
        external_data=False,
        input_names=["image"],
        output_names=["point"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    np.savez(folder / "data.npz", image=images[TRAINING:].numpy(), labels=points[TRAINING:].numpy())
    print(f"wrote {folder / 'model.onnx'} and {folder / 'data.npz'}")


if __name__ == "__main__":
    main()
