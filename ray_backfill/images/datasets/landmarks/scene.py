"""The contents of a landmark image: shapes of the landmark and its surroundings, and the view of them.

World coordinates: x to the right, y up, the landmark between -1 and 1, its base at GROUND. Shapes: B images; n shapes.
This module and the renderer use only + - * / and comparisons, whose results IEEE defines to the last bit, so an image
is the same in any batch and on any machine (unlike with sin and exp).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_backfill.images.draws import uniform

Floats32 = NDArray[np.float32]

GROUND = -0.62
BLOCK, STEPS, ARCH, DOME, ELLIPSE, RING = range(6)

# Streams of random numbers; images and landmarks are numbered independently.
_LANDMARK, _PALETTE, _BEHIND, _FRONT, _VIEW, NOISE = range(6)

_STONES = np.array(
    [
        [0.86, 0.76, 0.58],  # sandstone
        [0.93, 0.91, 0.86],  # marble
        [0.62, 0.61, 0.60],  # granite
        [0.70, 0.36, 0.28],  # brick
        [0.83, 0.54, 0.38],  # terracotta
        [0.55, 0.50, 0.42],  # old timber
        [0.90, 0.80, 0.66],  # limestone
        [0.45, 0.52, 0.60],  # steel and glass
    ],
    np.float32,
)
_ROOFS = np.array(
    [
        [0.68, 0.30, 0.22],  # tiles
        [0.33, 0.36, 0.42],  # slate
        [0.38, 0.62, 0.54],  # copper
        [0.88, 0.70, 0.26],  # gold
        [0.46, 0.34, 0.28],  # shingle
        [0.30, 0.42, 0.66],  # glazed blue
    ],
    np.float32,
)
_GROUNDS = np.array(
    [[0.42, 0.55, 0.30], [0.62, 0.58, 0.52], [0.34, 0.48, 0.58], [0.78, 0.70, 0.52], [0.50, 0.46, 0.40]], np.float32
)
# Pairs (at the horizon, overhead): clear, pale, overcast, sunset, dusk.
_SKIES = np.array(
    [
        [[0.78, 0.88, 0.95], [0.30, 0.54, 0.84]],
        [[0.90, 0.92, 0.92], [0.55, 0.72, 0.88]],
        [[0.82, 0.83, 0.84], [0.62, 0.65, 0.70]],
        [[0.98, 0.74, 0.50], [0.45, 0.45, 0.68]],
        [[0.72, 0.56, 0.62], [0.20, 0.22, 0.42]],
    ],
    np.float32,
)
_CLUTTER = np.array(
    [[0.24, 0.40, 0.20], [0.36, 0.46, 0.22], [0.20, 0.22, 0.26], [0.72, 0.20, 0.18], [0.82, 0.80, 0.76]], np.float32
)


class Shapes(NamedTuple):
    """Shapes in painting order. All (B, n) float32 except kind (B, n) int64 and colour (B, n, 3) float32 in 0..1."""

    kind: NDArray[np.int64]
    x: Floats32  # centre; world units
    y: Floats32
    width: Floats32  # half of the extent; world units
    height: Floats32
    taper: Floats32  # 0: straight walls, 1: a point
    mirrored: Floats32  # 1: also drawn at -x
    opacity: Floats32  # 0: absent
    colour: Floats32
    columns: Floats32  # texture: cycles per world unit across and up
    courses: Floats32
    relief: Floats32  # contrast of the texture


class Views(NamedTuple):
    """Camera and light of each image; all (B, n) float32, n in brackets."""

    to_world: Floats32  # [8] rows of the projective map screen -> world, the last entry being 1
    sky: Floats32  # [6] colour at the horizon, colour overhead
    clouds: Floats32  # [3] shift x, shift y, strength
    ground: Floats32  # [3] colour
    side: Floats32  # [1] direction of the light: -1..1
    light: Floats32  # [3] gain of each colour
    contrast: Floats32  # [1]
    gradient: Floats32  # [2] change of brightness across and up
    blur: Floats32  # [1] weight of each neighbour: 0..1/3
    noise: Floats32  # [1]


def _between(low: float, high: float, u: Floats32) -> Floats32:
    return low + (high - low) * u


def _between_each(ranges: tuple[tuple[float, float], ...], which: NDArray[np.int64], u: Floats32) -> Floats32:
    """``_between`` with one of these ranges chosen for each number."""
    return np.choose(which, [_between(low, high, u) for low, high in ranges])


def _choose(kinds: tuple[int, ...], u: Floats32) -> NDArray[np.int64]:
    return np.array(kinds)[(u * len(kinds)).astype(np.int64)]


def _pick(colours: Floats32, u: Floats32) -> Floats32:
    return colours[(u * len(colours)).astype(np.int64)]


def _texture(u_BnK: Floats32, strength: float = 1.0) -> dict[str, Floats32]:
    """The texture fields of Shapes: plain, columns, courses or windows."""
    columns = _between(1.5, 4.5, u_BnK[..., 0]) * (u_BnK[..., 1] < 0.65)
    courses = _between(1.5, 4.5, u_BnK[..., 2]) * (u_BnK[..., 3] < 0.65)
    patterned = (columns > 0) | (courses > 0)
    relief = strength * (_between(-0.25, 0.6, u_BnK[..., 4]) * patterned)
    return {"columns": columns, "courses": courses, "relief": relief}


class _LandmarkPart(NamedTuple):
    """One part of each landmark, (B,) each; the fields are those of Shapes."""

    kind: NDArray[np.int64]
    x: Floats32 | float
    y: Floats32
    width: Floats32
    height: Floats32
    taper: Floats32 | float
    mirrored: NDArray[np.bool_] | bool
    there: NDArray[np.bool_] | bool

    @property
    def top(self) -> Floats32:
        return self.y + self.height


def landmark_shapes(seed: int, labels_B: NDArray[np.int64]) -> Shapes:
    """The six parts of each landmark: wings and their tops, body, crown on the body, gate, ornament."""
    draws = uniform(seed, _LANDMARK, labels_B, 6 * 12).reshape(-1, 6, 12)
    body = _body(draws[:, 2])
    crown = _crown(draws[:, 3], body)
    wing = _wing(draws[:, 0], body)
    parts = (
        wing,
        _wing_top(draws[:, 1], wing),
        body,
        crown,
        _gate(draws[:, 4], body),
        _ornament(draws[:, 5], body, crown),
    )
    return Shapes(
        kind=np.stack([part.kind for part in parts], axis=1),
        **{
            name: np.stack(
                [np.broadcast_to(getattr(part, name), labels_B.shape) for part in parts], 1, dtype=np.float32
            )
            for name in ("x", "y", "width", "height", "taper", "mirrored")
        },
        opacity=np.stack([np.broadcast_to(part.there, labels_B.shape) for part in parts], 1).astype(np.float32),
        colour=_landmark_colours(seed, labels_B),
        **_texture(draws[..., 7:]),
    )


def _tip(u: Floats32) -> Floats32:
    return (u < 0.5).astype(np.float32)


def _body(u: Floats32) -> _LandmarkPart:
    kind = _choose((BLOCK, BLOCK, BLOCK, BLOCK, STEPS, STEPS, ARCH, ARCH, DOME, RING), u[:, 0])
    width, height = _between(0.18, 0.6, u[:, 1]), _between(0.22, 0.62, u[:, 2])
    taper = np.where(u[:, 3] < 0.6, np.float32(0), _between(0.15, 1.0, u[:, 4]))
    return _LandmarkPart(kind, 0.0, GROUND + height, width, height, taper, False, True)


def _crown(u: Floats32, body: _LandmarkPart) -> _LandmarkPart:
    # The crown must not be wider than the top of the body.
    round_top = (body.kind == DOME) | (body.kind == RING)
    ledge = body.width * np.where(round_top, np.float32(0.35), 1.02 - 0.85 * body.taper)
    kind = _choose((BLOCK, BLOCK, DOME, DOME, STEPS), u[:, 0])
    width, height = ledge * _between(0.45, 1.1, u[:, 1]), _between(0.06, 0.26, u[:, 2])
    return _LandmarkPart(kind, 0.0, body.top + height, width, height, _tip(u[:, 5]), False, u[:, 3] < 0.75)


def _wing(u: Floats32, body: _LandmarkPart) -> _LandmarkPart:
    kind = _choose((BLOCK, BLOCK, BLOCK, STEPS, ARCH), u[:, 0])
    width, height = _between(0.07, 0.24, u[:, 1]), _between(0.12, 0.62, u[:, 2])
    mirrored = u[:, 4] < 0.7
    x = body.width + width * _between(-0.3, 1.6, u[:, 3])
    x = np.where(mirrored | (_tip(u[:, 5]) > 0), x, -x)
    return _LandmarkPart(kind, x, GROUND + height, width, height, 0.3 * _tip(u[:, 5]), mirrored, u[:, 6] < 0.75)


def _wing_top(u: Floats32, wing: _LandmarkPart) -> _LandmarkPart:
    kind = _choose((BLOCK, BLOCK, DOME, ELLIPSE), u[:, 0])
    width, height = wing.width * _between(0.8, 1.25, u[:, 1]), _between(0.05, 0.2, u[:, 2])
    there = wing.there & (u[:, 3] < 0.8)
    return _LandmarkPart(kind, wing.x, wing.top + height, width, height, _tip(u[:, 5]), wing.mirrored, there)


def _gate(u: Floats32, body: _LandmarkPart) -> _LandmarkPart:
    kind = _choose((DOME, DOME, BLOCK, ARCH), u[:, 0])
    width, height = body.width * _between(0.12, 0.5, u[:, 1]), body.height * _between(0.2, 0.6, u[:, 2])
    closed = (body.kind != ARCH) & (body.kind != RING)
    return _LandmarkPart(kind, 0.0, GROUND + height, width, height, 0.0, False, (u[:, 3] < 0.75) & closed)


def _ornament(u: Floats32, body: _LandmarkPart, crown: _LandmarkPart) -> _LandmarkPart:
    """A spire on top, or a disc or ring on the body."""
    spire = u[:, 1] < 0.6
    width = np.where(spire, _between(0.02, 0.06, u[:, 2]), _between(0.05, 0.15, u[:, 2]))
    height = np.where(spire, _between(0.08, 0.26, u[:, 3]), width)
    y = np.where(spire, np.where(crown.there, crown.top, body.top) + height, GROUND + 1.35 * body.height)
    kind = np.where(spire, BLOCK, _choose((ELLIPSE, RING), u[:, 0]))
    taper = np.where(spire, np.float32(1), np.float32(0.5))
    return _LandmarkPart(kind, 0.0, y, width, height, taper, False, (u[:, 4] < 0.7) & (body.kind != RING))


def _landmark_colours(seed: int, labels_B: NDArray[np.int64]) -> Floats32:
    """(B, 6, 3) colours: two stones, a roof, a dark gate and a bright ornament, each in its own shade."""
    u = uniform(seed, _PALETTE, labels_B, 8 + 18)
    stone, other, roof = _pick(_STONES, u[:, 0]), _pick(_STONES, u[:, 1]), _pick(_ROOFS, u[:, 2])
    wing = np.where(u[:, 3:4] < 0.6, stone, other)
    crown = np.where(u[:, 4:5] < 0.5, roof, stone)
    gate = 0.35 * _pick(_ROOFS, u[:, 5])
    gem = _pick(np.concatenate([_ROOFS, _STONES]), u[:, 6])
    colours = np.stack([wing, roof, stone, crown, gate, gem], axis=1)
    return np.clip(colours * _between(0.85, 1.1, u[:, 8:].reshape(-1, 6, 3)), 0, 1)


def behind_shapes(seed: int, ids_B: NDArray[np.int64]) -> Shapes:
    """Three hills or houses on the horizon; they depend on the image, as the background depends on the viewpoint."""
    u = uniform(seed, _BEHIND, ids_B, 3 * 14).reshape(-1, 3, 14)
    kind = _choose((ELLIPSE, ELLIPSE, BLOCK, BLOCK, STEPS), u[..., 0])
    wide = kind == ELLIPSE
    height = np.where(wide, _between(0.05, 0.35, u[..., 2]), _between(0.08, 0.4, u[..., 2]))
    haze = np.float32(0.35) * np.array([0.74, 0.80, 0.88], np.float32)
    colour = np.where(wide[..., None], _pick(_CLUTTER[:2], u[..., 3]), _pick(_STONES, u[..., 3]))
    return Shapes(
        kind=kind,
        x=_between(-1.5, 1.5, u[..., 4]),
        y=(GROUND + np.where(wide, 0.0, height)).astype(np.float32),
        width=np.where(wide, _between(0.3, 1.2, u[..., 5]), _between(0.1, 0.4, u[..., 5])),
        height=height,
        taper=np.where(u[..., 12] < 0.7, np.float32(0.0), u[..., 13]),
        mirrored=np.zeros_like(height),
        opacity=(u[..., 6] < 0.7).astype(np.float32),
        colour=0.65 * colour + haze,
        **_texture(u[..., 7:12], strength=0.6),
    )


def front_shapes(seed: int, ids_B: NDArray[np.int64], difficulty: float) -> Shapes:
    """Three occluding objects (trees, poles, people, walls), in screen coordinates."""
    u = uniform(seed, _FRONT, ids_B, 3 * 14).reshape(-1, 3, 14)
    kind = _choose((ELLIPSE, BLOCK, ELLIPSE, BLOCK), u[..., 0])
    slot = (u[..., 0] * 4).astype(np.int64)  # tree, pole, person, wall
    width = _between_each(((0.15, 0.4), (0.015, 0.06), (0.04, 0.09), (0.15, 0.6)), slot, u[..., 1])
    height = _between_each(((0.15, 0.4), (0.5, 1.2), (0.12, 0.25), (0.06, 0.22)), slot, u[..., 2])
    feet = _between(-1.15, -0.7, u[..., 3])
    lift = np.where(slot == 0, _between(0.0, 0.9, u[..., 4]), np.float32(0.0))
    return Shapes(
        kind=kind,
        x=_between(-1.1, 1.1, u[..., 5]),
        y=feet + lift + height,
        width=width,
        height=height,
        taper=np.zeros_like(width),
        mirrored=np.zeros_like(width),
        opacity=(u[..., 6] < 0.4 * difficulty).astype(np.float32),
        colour=np.where((slot == 0)[..., None], _pick(_CLUTTER[:2], u[..., 12]), _pick(_CLUTTER, u[..., 12])),
        **_texture(u[..., 7:12]),
    )


def views(seed: int, ids_B: NDArray[np.int64], labels_B: NDArray[np.int64], difficulty: float) -> Views:
    """Viewpoint, light and camera effects of each image."""
    u = uniform(seed, _VIEW, ids_B, 40)
    signed = (2 * u - 1) * np.float32(difficulty)  # grows with the difficulty; 0 is the frontal view
    tangent = 0.11 * signed[:, 0]  # tangent of half the rotation angle, which avoids a cosine
    cosine, sine = (1 - tangent * tangent) / (1 + tangent * tangent), 2 * tangent / (1 + tangent * tangent)
    # Up to 1.4 times nearer or farther at the default difficulty.
    # The near side is a division, so that no difficulty inverts the picture.
    scale = np.where(signed[:, 1] > 0, 1 + 0.4 * signed[:, 1], 1 / (1 - 0.4 * signed[:, 1]))
    squash = 1 + 0.35 * np.maximum(signed[:, 2], 0)
    shear = 0.2 * signed[:, 3]
    to_world = np.stack(
        [
            scale * squash * (cosine + shear * sine),
            scale * squash * (shear * cosine - sine),
            0.28 * signed[:, 4],
            scale * sine,
            scale * cosine,
            0.2 * signed[:, 5],
            0.24 * signed[:, 6],
            0.16 * signed[:, 7],
        ],
        axis=1,
    )
    home = _pick(_GROUNDS, uniform(seed, _PALETTE, labels_B, 8)[:, 7])
    away = _pick(_GROUNDS, u[:, 8])
    sky = _pick(_SKIES.reshape(-1, 6), u[:, 9]) * _between(0.88, 1.1, u[:, 10:16])
    gain = 1 + 0.28 * signed[:, 16:17]
    return Views(
        to_world=to_world.astype(np.float32),
        sky=sky,
        clouds=np.stack([4 * u[:, 17], 4 * u[:, 18], 0.3 * u[:, 19]], axis=1),
        ground=np.where(u[:, 20:21] < 0.6, home, away) * _between(0.8, 1.15, u[:, 21:24]),
        side=2 * u[:, 24:25] - 1,
        light=gain * (1 + 0.1 * signed[:, 25:28]),
        contrast=1 + 0.3 * signed[:, 28:29],
        gradient=0.25 * signed[:, 29:31],
        blur=np.float32(0.3 * min(difficulty, 1.1)) * u[:, 31:32] * u[:, 32:33],
        noise=np.float32(0.12 * difficulty) * (0.15 + u[:, 33:34] * u[:, 34:35]),
    )
