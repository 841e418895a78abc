"""Two networks that the search was never tried on while it was written: a detector and a segmenter. PyTorch alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

CLASSES = 6


def conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> nn.Sequential:
    """Convolution, BatchNorm, SiLU."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.SiLU())


class CrossStage(nn.Module):
    """A CSP block: half of the channels goes through `count` residual pairs of convolutions, half goes round them.

    It has 3 + 2 · count convolutions.
    """

    def __init__(self, inputs: int, outputs: int, count: int) -> None:
        super().__init__()
        half = outputs // 2
        self.through, self.around = conv(inputs, half), conv(inputs, half)
        self.pairs = nn.ModuleList(nn.Sequential(conv(half, half), conv(half, half, 3)) for _ in range(count))
        self.join = conv(2 * half, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.through(x)
        for pair in self.pairs:
            y = y + pair(y)
        return self.join(torch.cat([y, self.around(x)], 1))


class PooledPyramid(nn.Module):
    """SPPF: three poolings of one another beside their input; two convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.join = conv(channels, channels // 2), conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = [self.reduce(x)]
        for _ in range(3):
            parts.append(self.pool(parts[-1]))
        return self.join(torch.cat(parts, 1))


class Detector(nn.Module):
    """(n, 3, size, size) → class logits of every cell: fine (n, 6, size/8, size/8), coarse (n, 6, size/16, size/16).

    39 convolutions; SiLU; CSP blocks; a path up to the fine grid and one down again to the coarse one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, 32, 3, 2), conv(32, 64, 3, 2), CrossStage(64, 64, 1))
        self.middle = nn.Sequential(conv(64, 128, 3, 2), CrossStage(128, 128, 2))
        self.deep = nn.Sequential(conv(128, 256, 3, 2), CrossStage(256, 256, 1), PooledPyramid(256), conv(256, 128))
        self.up = CrossStage(256, 128, 1)
        self.fine = nn.Sequential(conv(128, 128, 3), nn.Conv2d(128, CLASSES, 1))
        self.down = conv(128, 128, 3, 2)
        self.again = CrossStage(256, 256, 1)
        self.coarse = nn.Sequential(conv(256, 128, 3), nn.Conv2d(128, CLASSES, 1))
        for head in (self.fine, self.coarse):
            nn.init.constant_(head[-1].bias, -4.0)  # nearly every cell is empty

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle = self.middle(self.stem(image))
        deep = self.deep(middle)
        fine = self.up(torch.cat([functional.interpolate(deep, scale_factor=2.0, mode="nearest"), middle], 1))
        coarse = self.again(torch.cat([self.down(fine), deep], 1))
        return self.fine(fine), self.coarse(coarse)


class Residual(nn.Module):
    """Two convolutions and a way round them; `dilation` in place of a stride."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, dilation, dilation, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, dilation, dilation, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.skip = None
        if stride != 1 or inputs != outputs:
            layer = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.skip = nn.Sequential(layer, nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + (x if self.skip is None else self.skip(x)))


def relu_conv(inputs: int, outputs: int, kernel: int = 1, stride: int = 1, dilation: int = 1) -> nn.Sequential:
    padding = dilation * (kernel // 2)
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, dilation, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs), nn.ReLU())


class Pyramid(nn.Module):
    """ASPP: a pointwise convolution, three dilated ones and the whole image's mean side by side; six convolutions."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        dilated = [relu_conv(inputs, outputs, 3, dilation=d) for d in (2, 4, 6)]
        self.branches = nn.ModuleList([relu_conv(inputs, outputs), *dilated])
        # Of one value per channel: BatchNorm has little to go by there.
        self.whole = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.ReLU())
        self.join = relu_conv(5 * outputs, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = int(x.shape[-1])
        mean = self.whole(functional.adaptive_avg_pool2d(x, 1))
        whole = functional.interpolate(mean, scale_factor=float(side), mode="nearest")
        return self.join(torch.cat([*(branch(x) for branch in self.branches), whole], 1))


class Segmenter(nn.Module):
    """(n, 3, size, size) → (n, 7, size, size) logits of every pixel: the ground and six classes. DeepLab, small.

    28 convolutions; a dilated residual backbone, a pyramid of dilations, a decoder with a way round from a fine layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(relu_conv(3, 32, 3, 2), relu_conv(32, 48, 3, 2))
        self.first = nn.Sequential(Residual(48, 48), Residual(48, 48))
        self.second = nn.Sequential(Residual(48, 96, stride=2), Residual(96, 96))
        self.third = nn.Sequential(Residual(96, 160, dilation=2), Residual(160, 160, dilation=2), Residual(160, 160))
        self.pyramid = Pyramid(160, 96)
        self.around = relu_conv(48, 32)
        self.decoder = nn.Sequential(relu_conv(128, 96, 3), relu_conv(96, 96, 3), nn.Conv2d(96, CLASSES + 1, 1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        fine = self.first(self.stem(image))
        deep = self.pyramid(self.third(self.second(fine)))
        deep = functional.interpolate(deep, scale_factor=2.0, mode="bilinear", align_corners=False)
        logits = self.decoder(torch.cat([deep, self.around(fine)], 1))
        return functional.interpolate(logits, scale_factor=4.0, mode="bilinear", align_corners=False)


NETWORKS: dict[str, Callable[[], nn.Module]] = {"silu": Detector, "segmentation": Segmenter}
OUTPUTS = {"silu": ["fine", "coarse"], "segmentation": ["classes"]}
