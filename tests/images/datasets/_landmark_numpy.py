"""What ``landmarks.render`` must paint, said in numpy: its oracle.

Shapes: B images; P pixels of an image (S * S, top row first); S pixels a side. Planes are (B, P) float32.
"""

import numpy as np
from numpy.typing import NDArray

from ray_backfill.images.datasets.landmarks.scene import (
    ARCH,
    BLOCK,
    DOME,
    ELLIPSE,
    GROUND,
    NOISE,
    RING,
    STEPS,
    Floats32,
    Shapes,
    Views,
    behind_shapes,
    front_shapes,
    landmark_shapes,
    views,
)
from ray_backfill.images.draws import hash_grid

# Planes of this many pixels stay in a core's cache, which is worth a factor of two.
_PIXELS_AT_ONCE = 32 * 1024


def render(
    seed: int, ids_B: NDArray[np.int64], labels_B: NDArray[np.int64], size: int, difficulty: float
) -> NDArray[np.uint8]:
    """(B, S, S, 3) uint8: image ``ids_B[i]``, a view of landmark ``labels_B[i]``. Cost: O(B S^2)."""
    out_BSSC = np.empty((len(ids_B), size, size, 3), np.uint8)
    step = max(1, _PIXELS_AT_ONCE // (size * size))
    for start in range(0, len(ids_B), step):
        part = slice(start, start + step)
        out_BSSC[part] = _render_part(seed, ids_B[part], labels_B[part], size, difficulty)
    return out_BSSC


def _render_part(
    seed: int, ids_B: NDArray[np.int64], labels_B: NDArray[np.int64], size: int, difficulty: float
) -> NDArray[np.uint8]:
    view = views(seed, ids_B, labels_B, difficulty)
    axis_S = ((np.arange(size, dtype=np.float32) + 0.5) * (2 / size) - 1).astype(np.float32)
    screen_x, screen_y = np.tile(axis_S, size)[None], np.repeat(-axis_S, size)[None]
    m = [view.to_world[:, i : i + 1] for i in range(8)]
    # At a high difficulty the horizon of the projection could enter the picture; nothing is beyond it.
    depth: Floats32 = np.maximum(1 + m[6] * screen_x + m[7] * screen_y, np.float32(0.2))
    x: Floats32 = (m[0] * screen_x + m[1] * screen_y + m[2]) / depth
    y: Floats32 = (m[3] * screen_x + m[4] * screen_y + m[5]) / depth
    pixel = np.abs(m[4]) * np.float32(2 / size)

    planes = _backdrop(view, x, y, pixel)
    for shapes in (behind_shapes(seed, ids_B), landmark_shapes(seed, labels_B)):
        _paint(planes, shapes, x, y, pixel, view.side)
    in_front = front_shapes(seed, ids_B, difficulty)
    flat = np.full_like(pixel, 2 / size)
    _paint(planes, in_front, np.repeat(screen_x, len(x), 0), np.repeat(screen_y, len(x), 0), flat, view.side)
    _expose(planes, view, screen_x, screen_y)
    planes = _blur(planes, view.blur, size)
    return _develop(planes, view.noise, hash_grid(seed, NOISE, ids_B, size * size), size)


def _wave(phase: Floats32) -> Floats32:
    """A wave between 0 and 1 with period 1 and flat tops, 1 at phase 0."""
    triangle = np.abs(2 * (phase - np.floor(phase)) - 1)
    return np.clip(2 * triangle - 0.5, 0, 1)


def _backdrop(view: Views, x: Floats32, y: Floats32, pixel: Floats32) -> list[Floats32]:
    height = np.clip((y - np.float32(GROUND)) * 0.65, 0, 1)
    cloud = _wave(0.35 * x + view.clouds[:, :1]) * _wave(0.9 * y + 0.15 * x + view.clouds[:, 1:2])
    cloud *= view.clouds[:, 2:]
    on_ground = np.clip((np.float32(GROUND) - y) / pixel + 0.5, 0, 1)
    shade = 0.85 + 0.15 * _wave(2.5 * y) * _wave(1.3 * x + y)
    planes = []
    for channel in range(3):
        low, high = view.sky[:, channel, None], view.sky[:, channel + 3, None]
        sky = low + (high - low) * height
        sky += (0.95 - sky) * cloud
        sky += (view.ground[:, channel, None] * shade - sky) * on_ground
        planes.append(sky)
    return planes


def _paint(planes: list[Floats32], shapes: Shapes, x: Floats32, y: Floats32, pixel: Floats32, side: Floats32) -> None:
    """Paint ``shapes`` over ``planes`` in place, one shape of every image at a time."""
    for n in range(shapes.kind.shape[1]):
        for kind in (BLOCK, STEPS, ARCH, DOME, ELLIPSE, RING):
            rows = np.flatnonzero((shapes.kind[:, n] == kind) & (shapes.opacity[:, n] > 0))
            if rows.size:
                _paint_one(planes, shapes, n, kind, rows, x[rows], y[rows], pixel[rows], side[rows])


def _paint_one(
    planes: list[Floats32],
    shapes: Shapes,
    n: int,
    kind: int,
    rows: NDArray[np.int64],
    x: Floats32,
    y: Floats32,
    pixel: Floats32,
    side: Floats32,
) -> None:
    width, height = shapes.width[rows, n, None], shapes.height[rows, n, None]
    dx = np.where(shapes.mirrored[rows, n, None] > 0, np.abs(x), x) - shapes.x[rows, n, None]
    dy = y - shapes.y[rows, n, None]
    u, v = dx / width, dy / height
    cover = np.clip(0.5 - _outside(kind, u, v, width, height, shapes.taper[rows, n, None]) / pixel, 0, 1)
    cover *= shapes.opacity[rows, n, None]
    texture = _wave(dx * shapes.columns[rows, n, None]) * _wave(dy * shapes.courses[rows, n, None])
    shade = (1 - shapes.relief[rows, n, None] * texture) * (1 + 0.28 * side * np.clip(u, -1, 1))
    for channel, plane in enumerate(planes):
        under = plane[rows]
        under += (shapes.colour[rows, n, channel, None] * shade - under) * cover
        plane[rows] = under


def _outside(kind: int, u: Floats32, v: Floats32, width: Floats32, height: Floats32, taper: Floats32) -> Floats32:
    """How far a point lies outside of a shape, roughly, in world units; negative inside. (u, v) is -1..1 in its box."""
    if kind in (ELLIPSE, RING):
        radius = np.sqrt(u * u + v * v)
        thickness = 0.12 + 0.2 * taper
        away = radius - 1 if kind == ELLIPSE else np.abs(radius - (1 - thickness)) - thickness
        return away * np.minimum(width, height)
    if kind == DOME:
        up = 0.5 * (v + 1)
        return np.maximum((np.sqrt(u * u + up * up) - 1) * np.minimum(width, 2 * height), -(v + 1) * height)
    terrace = np.floor(1.5 * np.clip(v, -1, 0.99) + 1.5)  # 0, 1, 2
    wall = 1 - 0.28 * terrace if kind == STEPS else 1 - 0.5 * taper * (v + 1)
    block = np.maximum((np.abs(u) - wall) * width, (np.abs(v) - 1) * height)
    if kind == ARCH:
        opening_u, opening_v = u / 0.58, (v + 1) / 1.45
        opening = 1 - np.sqrt(opening_u * opening_u + opening_v * opening_v)
        block = np.maximum(block, opening * 0.58 * np.minimum(width, height))
    return block


def _expose(planes: list[Floats32], view: Views, screen_x: Floats32, screen_y: Floats32) -> None:
    fall = 1 + view.gradient[:, :1] * screen_x + view.gradient[:, 1:] * screen_y
    for channel, plane in enumerate(planes):
        plane *= fall * view.light[:, channel, None]
        plane -= 0.5
        plane *= view.contrast
        plane += 0.5


def _blur(planes: list[Floats32], weight_B: Floats32, size: int) -> list[Floats32]:
    """Each pass mixes every pixel with its neighbours; more passes for larger images, so that all look alike."""
    weight = weight_B[:, :, None]
    blurred = []
    for plane in planes:
        image = plane.reshape(-1, size, size)
        for _ in range(max(1, size // 16)):
            for axis in (1, 2):
                padded = np.pad(image, [(int(a == axis),) * 2 for a in range(3)], mode="edge")
                before, after = (padded[:, :-2], padded[:, 2:]) if axis == 1 else (padded[:, :, :-2], padded[:, :, 2:])
                image = image + weight * (before + after - 2 * image)
        blurred.append(image.reshape(len(plane), -1))
    return blurred


def _develop(planes: list[Floats32], noise: Floats32, grain_BP: NDArray[np.uint64], size: int) -> NDArray[np.uint8]:
    """Add grain (the sum of two random bytes a colour: triangular) and round to uint8."""
    grain_BP8 = grain_BP.astype("<u8", copy=False).view(np.uint8).reshape(*grain_BP.shape, 8)
    out_BPC = np.empty((*grain_BP.shape, 3), np.uint8)
    for channel, plane in enumerate(planes):
        pair = grain_BP8[..., 2 * channel].astype(np.float32) + grain_BP8[..., 2 * channel + 1]
        plane += noise * (pair * (1 / 255) - 1)
        out_BPC[..., channel] = np.clip(plane, 0, 1) * 255 + 0.5
    return out_BPC.reshape(-1, size, size, 3)
