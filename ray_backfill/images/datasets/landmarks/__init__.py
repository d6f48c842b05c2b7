"""Rendered images of synthetic landmarks: any number of them, with a long-tailed distribution and no download.

A landmark is a composition of textured shapes determined by (seed, label); an image is a view of it determined by
(seed, id). Nothing is stored: pixels are rendered when they are read, as implicit shapes on a pixel grid. ``scene`` has
the contents. All arithmetic is float32 in the written order: tests/images/datasets/_landmark_numpy.py is the same in
numpy, and both give identical pixels. Licence: none needed, as images are generated.

Shapes: N images of a split; B images of a batch; L landmarks; n shapes; S pixels per side, top row first.
"""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ray_backfill.core.errors import InputError
from ray_backfill.core.kernels import Array, kernel
from ray_backfill.images.datasets import DataSet, require_counts
from ray_backfill.images.datasets.landmarks import scene
from ray_backfill.images.datasets.landmarks.scene import ARCH, DOME, ELLIPSE, GROUND, RING, STEPS, Floats32
from ray_backfill.images.draws import class_sizes, hash_ids, shares
from ray_backfill.images.source import SPLITS, ImageSource, Items, Pixels

# Part of the fingerprint: increase it whenever a change to the renderer changes pixels or labels.
_RENDERER_VERSION = 1
# Ids of a split start at its position in SPLITS times this, so that no two splits share an id.
_SPLIT_STRIDE = 1 << 40
# Minimum number of images of a landmark in a split, if the split is large enough.
_FEWEST = 4
# Streams of random numbers; the renderer's are below 100.
_LABEL_STREAM, _RANK_STREAM = 100, 101

_F = np.float32
_GROUND, _HALF, _ONE, _TWO, _ZERO = _F(GROUND), _F(0.5), _F(1), _F(2), _F(0)
# The constants of splitmix64, as in images/draws.py.
_GOLDEN, _MIX_1, _MIX_2 = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_27, _30, _31, _BYTE = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(0xFF)

# Offsets into a view's packed numbers: the map to the world (8), sky (6), clouds (3), ground (3), and so on.
_SKY, _CLOUDS, _GROUND_COLOUR, _SIDE, _LIGHT, _CONTRAST, _GRADIENT, _BLUR, _NOISE = 8, 14, 17, 20, 21, 24, 25, 27, 28
# Offsets of a shape: x, y, width, height, taper, mirrored, opacity, colour (3), columns, courses, relief.
_WIDTH, _HEIGHT, _TAPER, _MIRRORED, _OPACITY, _COLOUR, _COLUMNS, _COURSES, _RELIEF = 2, 3, 4, 5, 6, 7, 10, 11, 12


@dataclass(frozen=True)
class Settings:
    """Number, size and difficulty of the rendered images."""

    seed: int = 0
    """Random seed for landmarks and images."""
    image_size: int = 32
    """Pixels per side."""
    landmarks: int = 200
    """Number of landmarks (classes)."""
    train_images: int = 12_000
    """Number of train images."""
    gallery_images: int = 6_000
    """Number of gallery images."""
    queries: int = 500
    """Number of query images."""
    zipf: float = 0.6
    """Exponent of the class sizes, which fall as rank ** -zipf; 0: all classes have the same size."""
    difficulty: float = 1.0
    """Strength of changes in viewpoint and light, occlusion, blur and noise, from 0 to 3; 0: frontal views."""


@dataclass
class _Landmarks(ImageSource):
    settings: Settings
    image_size: int
    splits: tuple[str, ...] = SPLITS
    channels: int = 3
    _items: dict[str, Items] = field(default_factory=dict)

    def items(self, split: str) -> Items:
        """Ids are fixed by the split and the position. Cost: O(N log N) once, in numpy."""
        if split not in self.splits:
            raise InputError(f"landmarks has no split {split!r}; it has: {', '.join(self.splits)}")
        if split not in self._items:
            s = self.settings
            count = {"train": s.train_images, "gallery": s.gallery_images, "queries": s.queries}[split]
            ids_N = np.arange(count, dtype=np.int64) + SPLITS.index(split) * _SPLIT_STRIDE
            if split == "queries":
                # Each landmark of the gallery gets the same number of queries, so that the tail counts too.
                sizes_L = shares(count, (self._sizes(s.gallery_images) > 0).astype(np.float64))
            else:
                sizes_L = self._sizes(count)
            shuffled_N = np.argsort(hash_ids(s.seed, _LABEL_STREAM, ids_N), kind="stable")
            labels_N = np.empty(count, np.int64)
            labels_N[shuffled_N] = np.repeat(np.arange(s.landmarks), sizes_L)
            self._items[split] = Items(ids_N, labels_N)
        return self._items[split]

    def _sizes(self, count: int) -> NDArray[np.int64]:
        """(L,) int64. Ranks are random, so that the first half of the labels is not easier than the second."""
        s = self.settings
        rank_L = np.argsort(hash_ids(s.seed, _RANK_STREAM, np.arange(s.landmarks)), kind="stable")
        return class_sizes(count, s.landmarks, s.zipf, _FEWEST)[rank_L]

    def read(self, split: str, rows: NDArray[np.int64]) -> Pixels:
        """Render the rows; no image is ever broken. Cost: O(B S^2), about 0.03 ms per image of 32 pixels."""
        items = self.items(split)
        s = self.settings
        return Pixels(render(s.seed, items.ids_N[rows], items.labels_N[rows], s.image_size, s.difficulty))

    def fingerprint(self) -> dict[str, Any]:
        return {"dataset": "landmarks", "renderer": _RENDERER_VERSION, **asdict(self.settings)}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_items": {}}  # cheaper to draw again than to send


def open_images(settings: Settings) -> ImageSource:
    """A source with train, gallery and queries. Raises InputError for settings out of range."""
    require_counts(settings, "image_size", "landmarks", "train_images", "gallery_images", "queries")
    for name in ("zipf", "difficulty"):
        if not 0 <= getattr(settings, name) <= 3:
            raise InputError(f"landmarks: {name} must be between 0 and 3, not {getattr(settings, name)}")
    return _Landmarks(settings, settings.image_size)


def render(
    seed: int, ids_B: NDArray[np.int64], labels_B: NDArray[np.int64], size: int, difficulty: float
) -> NDArray[np.uint8]:
    """(B, S, S, 3) uint8: image ``ids_B[i]``, a view of landmark ``labels_B[i]``. Cost: O(B S^2)."""
    view_BK: Floats32 = np.concatenate(scene.views(seed, ids_B, labels_B, difficulty), axis=1, dtype=np.float32)
    world = [_packed(scene.behind_shapes(seed, ids_B)), _packed(scene.landmark_shapes(seed, labels_B))]
    front_kind_Bn, front_BnK = _packed(scene.front_shapes(seed, ids_B, difficulty))
    kind_Bn, shape_BnK = (np.concatenate(both, axis=1) for both in zip(*world, strict=True))
    axis_S = ((np.arange(size, dtype=np.float32) + _HALF) * _F(2 / size) - _ONE).astype(np.float32)
    grain_B = hash_ids(seed, scene.NOISE, ids_B)
    out_BSSC = np.empty((len(ids_B), size, size, 3), np.uint8)
    screen = np.meshgrid(axis_S, -axis_S)
    _paint_images(out_BSSC, *screen, _F(2 / size), view_BK, kind_Bn, shape_BnK, front_kind_Bn, front_BnK, grain_B)
    return out_BSSC


def _packed(shapes: scene.Shapes) -> tuple[NDArray[np.int64], Floats32]:
    """Kinds (B, n), and all other fields concatenated (B, n, K)."""
    columns = [numbers if numbers.ndim == 3 else numbers[..., None] for numbers in shapes[1:]]
    return shapes.kind, np.concatenate(columns, axis=2, dtype=np.float32)


@kernel
def _paint_images(
    out_BSSC: Array,
    screen_x_SS: Array,
    screen_y_SS: Array,
    step: np.float32,
    view_BK: Array,
    kind_Bn: Array,
    shape_BnK: Array,
    front_kind_Bn: Array,
    front_BnK: Array,
    grain_B: Array,
) -> None:
    """Render all images. step: distance between two pixels on the screen."""
    size = len(screen_x_SS)
    x_SS, y_SS = np.empty((size, size), np.float32), np.empty((size, size), np.float32)
    planes, spare_SS = np.empty((3, size, size), np.float32), np.empty((size, size), np.float32)
    for b in range(len(out_BSSC)):
        view = view_BK[b]
        _to_world(x_SS, y_SS, screen_x_SS, screen_y_SS, view)
        pixel = abs(view[4]) * step
        _backdrop(planes, x_SS, y_SS, view, pixel)
        for n in range(kind_Bn.shape[1]):
            _paint(planes, x_SS, y_SS, kind_Bn[b, n], shape_BnK[b, n], pixel, view[_SIDE])
        for n in range(front_kind_Bn.shape[1]):
            _paint(planes, screen_x_SS, screen_y_SS, front_kind_Bn[b, n], front_BnK[b, n], step, view[_SIDE])
        for channel in range(3):
            _expose(planes[channel], screen_x_SS, screen_y_SS, view, view[_LIGHT + channel])
            _blur(planes[channel], spare_SS, view[_BLUR])
        _develop(out_BSSC[b], planes, view[_NOISE], grain_B[b])


@kernel
def _wave(phase: np.float32) -> np.float32:
    """A wave between 0 and 1 with period 1 and flat tops, 1 at phase 0."""
    triangle = abs(_TWO * (phase - np.floor(phase)) - _ONE)
    return _clip(_TWO * triangle - _HALF, _ZERO, _ONE)


@kernel
def _clip(value: np.float32, low: np.float32, high: np.float32) -> np.float32:
    value = value if value > low else low
    return value if value < high else high


@kernel
def _to_world(x_SS: Array, y_SS: Array, screen_x_SS: Array, screen_y_SS: Array, m: Array) -> None:
    for row in range(len(x_SS)):
        xs, ys, screen_xs, screen_y = x_SS[row], y_SS[row], screen_x_SS[row], screen_y_SS[row, 0]
        for i in range(len(xs)):
            # At high difficulty the projection's horizon could enter the picture; there is nothing beyond it.
            depth = _ONE + m[6] * screen_xs[i] + m[7] * screen_y
            depth = depth if depth > _F(0.2) else _F(0.2)
            xs[i] = (m[0] * screen_xs[i] + m[1] * screen_y + m[2]) / depth
            ys[i] = (m[3] * screen_xs[i] + m[4] * screen_y + m[5]) / depth


@kernel
def _backdrop(planes: Array, x_SS: Array, y_SS: Array, view: Array, pixel: np.float32) -> None:
    size = len(x_SS)
    cloud_S, on_ground_S, shade_S = (np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32))
    shift_x, shift_y, strength = view[_CLOUDS], view[_CLOUDS + 1], view[_CLOUDS + 2]
    for row in range(size):
        xs, ys = x_SS[row], y_SS[row]
        for i in range(size):
            x, y = xs[i], ys[i]
            cloud = _wave(_F(0.35) * x + shift_x) * _wave(_F(0.9) * y + _F(0.15) * x + shift_y)
            cloud_S[i] = cloud * strength
            on_ground_S[i] = _clip((_GROUND - y) / pixel + _HALF, _ZERO, _ONE)
            shade_S[i] = _F(0.85) + _F(0.15) * _wave(_F(2.5) * y) * _wave(_F(1.3) * x + y)
        for channel in range(3):
            plane = planes[channel, row]
            low, high = view[_SKY + channel], view[_SKY + 3 + channel]
            ground = view[_GROUND_COLOUR + channel]
            for i in range(size):
                sky = low + (high - low) * _clip((ys[i] - _GROUND) * _F(0.65), _ZERO, _ONE)
                sky += (_F(0.95) - sky) * cloud_S[i]
                plane[i] = sky + (ground * shade_S[i] - sky) * on_ground_S[i]


@kernel
def _paint(
    planes: Array, x_SS: Array, y_SS: Array, kind: int, shape: Array, pixel: np.float32, side: np.float32
) -> None:
    """Paint one shape over ``planes``; rows that it does not touch stay unchanged."""
    opacity = shape[_OPACITY]
    if not opacity > _ZERO:
        return
    size = len(x_SS)
    width, height, relief = shape[_WIDTH], shape[_HEIGHT], shape[_RELIEF]
    columns, courses, light = shape[_COLUMNS], shape[_COURSES], _F(0.28) * side
    dx_S, dy_S = np.empty(size, np.float32), np.empty(size, np.float32)
    u_S, v_S = np.empty(size, np.float32), np.empty(size, np.float32)
    outside_S, cover_S, shade_S = np.empty(size, np.float32), np.empty(size, np.float32), np.empty(size, np.float32)
    mirrored = shape[_MIRRORED] > _ZERO
    for row in range(size):
        xs, ys = x_SS[row], y_SS[row]
        for i in range(size):
            x = abs(xs[i]) if mirrored else xs[i]
            dx_S[i], dy_S[i] = x - shape[0], ys[i] - shape[1]
            u_S[i], v_S[i] = dx_S[i] / width, dy_S[i] / height
        _outside(outside_S, kind, u_S, v_S, width, height, shape[_TAPER])
        touched = 0
        for i in range(size):
            cover_S[i] = _clip(_HALF - outside_S[i] / pixel, _ZERO, _ONE) * opacity
            touched += cover_S[i] > _ZERO
        if touched == 0:
            continue
        for i in range(size):
            texture = _wave(dx_S[i] * columns) * _wave(dy_S[i] * courses)
            shade_S[i] = (_ONE - relief * texture) * (_ONE + light * _clip(u_S[i], -_ONE, _ONE))
        for channel in range(3):
            plane, colour = planes[channel, row], shape[_COLOUR + channel]
            for i in range(size):
                plane[i] += (colour * shade_S[i] - plane[i]) * cover_S[i]


@kernel
def _outside(
    out_S: Array, kind: int, u_S: Array, v_S: Array, width: np.float32, height: np.float32, taper: np.float32
) -> None:
    """Approximate distance of points from a shape in world units, negative inside. (u, v) is -1..1 in its box."""
    smaller = width if width < height else height
    if kind == ELLIPSE:
        for i in range(len(out_S)):
            out_S[i] = (np.sqrt(u_S[i] * u_S[i] + v_S[i] * v_S[i]) - _ONE) * smaller
    elif kind == RING:
        thickness = _F(0.12) + _F(0.2) * taper
        middle = _ONE - thickness
        for i in range(len(out_S)):
            radius = np.sqrt(u_S[i] * u_S[i] + v_S[i] * v_S[i])
            out_S[i] = (abs(radius - middle) - thickness) * smaller
    elif kind == DOME:
        smaller = width if width < _TWO * height else _TWO * height
        for i in range(len(out_S)):
            up = _HALF * (v_S[i] + _ONE)
            curve, floor = (np.sqrt(u_S[i] * u_S[i] + up * up) - _ONE) * smaller, -(v_S[i] + _ONE) * height
            out_S[i] = curve if curve > floor else floor
    else:
        _outside_block(out_S, kind, u_S, v_S, width, height, taper)


@kernel
def _outside_block(
    out_S: Array, kind: int, u_S: Array, v_S: Array, width: np.float32, height: np.float32, taper: np.float32
) -> None:
    """The same for a block with straight or leaning walls, in three steps (STEPS), or with a gate (ARCH)."""
    for i in range(len(out_S)):
        if kind == STEPS:
            terrace = np.floor(_F(1.5) * _clip(v_S[i], -_ONE, _F(0.99)) + _F(1.5))  # 0, 1, 2
            wall = _ONE - _F(0.28) * terrace
        else:
            wall = _ONE - _HALF * taper * (v_S[i] + _ONE)
        beside, above = (abs(u_S[i]) - wall) * width, (abs(v_S[i]) - _ONE) * height
        out_S[i] = beside if beside > above else above
    if kind == ARCH:
        smaller = width if width < height else height
        for i in range(len(out_S)):
            u, v = u_S[i] / _F(0.58), (v_S[i] + _ONE) / _F(1.45)
            opening = (_ONE - np.sqrt(u * u + v * v)) * _F(0.58) * smaller
            out_S[i] = out_S[i] if out_S[i] > opening else opening


@kernel
def _expose(plane: Array, screen_x_SS: Array, screen_y_SS: Array, view: Array, light: np.float32) -> None:
    for row in range(len(plane)):
        pixels, xs, y = plane[row], screen_x_SS[row], screen_y_SS[row, 0]
        for i in range(len(pixels)):
            fall = _ONE + view[_GRADIENT] * xs[i] + view[_GRADIENT + 1] * y
            pixels[i] = (pixels[i] * (fall * light) - _HALF) * view[_CONTRAST] + _HALF


@kernel
def _blur(plane: Array, spare: Array, weight: np.float32) -> None:
    """Each pass mixes every pixel with its neighbours; larger images get more passes, to look equally blurred."""
    size = len(plane)
    if weight == _ZERO:
        return
    for _ in range(max(1, size // 16)):
        for row in range(size):
            above, here, below, out = plane[max(row - 1, 0)], plane[row], plane[min(row + 1, size - 1)], spare[row]
            for i in range(size):
                out[i] = here[i] + weight * (above[i] + below[i] - _TWO * here[i])
        for row in range(size):
            here, out = spare[row], plane[row]
            for i in range(1, size - 1):
                out[i] = here[i] + weight * (here[i - 1] + here[i + 1] - _TWO * here[i])
            for i in (0, size - 1):
                before, after = here[max(i - 1, 0)], here[min(i + 1, size - 1)]
                out[i] = here[i] + weight * (before + after - _TWO * here[i])


@kernel
def _develop(out_SSC: Array, planes: Array, noise: np.float32, grain: np.uint64) -> None:
    """Add grain (per colour the sum of two random bytes, a triangular distribution) and round to uint8."""
    size = planes.shape[1]
    for row in range(size):
        for i in range(size):
            state = grain + np.uint64(row * size + i + 1) * _GOLDEN
            state = (state ^ (state >> _30)) * _MIX_1
            state = (state ^ (state >> _27)) * _MIX_2
            state = state ^ (state >> _31)
            for channel in range(3):
                first = (state >> np.uint64(16 * channel)) & _BYTE
                second = (state >> np.uint64(16 * channel + 8)) & _BYTE
                pair = _F(first) + _F(second)
                value = planes[channel, row, i] + noise * (pair * _F(1 / 255) - _ONE)
                out_SSC[row, i, channel] = np.uint8(_clip(value, _ZERO, _ONE) * _F(255) + _HALF)


DATASETS = (DataSet("landmarks", Settings, open_images),)
