"""The commands of the pages on stores run as they stand, and serve what numpy computes."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ray_backfill.engine.merges import ScoreMap, fit_merge
from ray_backfill.engine.systems import RetrievalSystem, UpgradePair
from tests.data.sources.stores import items, postgres
from tests.test_structure import ROOT

pytestmark = pytest.mark.full

K = 10
OF, ASKED = items(200), items(30, seed=1)
ORDER = np.random.default_rng(2).permutation(OF.id).tolist()
ROW = {item: row for row, item in enumerate(OF.id.tolist())}
# Commands of docs/stores-more.md but those of the third place need servers, and run nowhere.
NAMES = ("stores", "stores-more", "serving-two-models")
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in NAMES}
PGVECTOR, THIRD = "PostgreSQL with pgvector", "A third place"
Answer = list[int]


def block(page: str, heading: str, name: str) -> str:
    """The code below a heading whose first line names it."""
    section = PAGES[page].split(f"\n## {heading}\n")[1].split("\n## ")[0]
    (code,) = re.findall(rf"^```(?:sql|python)\n(?:--|#) {name}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    return str(code)


def cosines(queries: NDArray[np.float32], gallery: NDArray[np.float32]) -> NDArray[np.float64]:
    """(Q, N) distances."""
    unit_Q, unit_N = (v.astype(np.float64) / np.linalg.norm(v, axis=1, keepdims=True) for v in (queries, gallery))
    return np.asarray(1 - unit_Q @ unit_N.T)


OLD, NEW = cosines(ASKED.old, OF.old), cosines(ASKED.new, OF.new)


def nearest(scores: NDArray[np.float64]) -> list[Answer]:
    """Ids of the K lowest scores of each row; no two scores there are closer than float32 can tell."""
    order = np.argsort(scores, axis=1, kind="stable")[:, : K + 1]
    assert np.diff(np.take_along_axis(scores, order, axis=1), axis=1).min() > 1e-5
    return [OF.id[row[:K]].tolist() for row in order]


# A map fitted on a part of the gallery; queries are embedded by the new model. LATE is inserted during the fill.
MAP = np.linalg.lstsq(OF.old[:150].astype(np.float64), OF.new[:150].astype(np.float64), rcond=None)[0]
MAPPED = cosines(ASKED.new, (OF.old @ MAP).astype(np.float32))
LATE = int(OF.id.min())
WITH_LATE_LAST = [*(item for item in ORDER if item != LATE), LATE]


def mapped(vectors: Sequence[Sequence[float]]) -> list[list[float]]:
    """items_backward.onnx."""
    return (np.asarray(vectors) @ MAP).tolist()


class Mapper:
    """The same; something happens during the second batch. Breaks off after so many, as a process that is killed."""

    def __init__(self, most: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.most, self.meanwhile, self.batches = most, meanwhile, 0

    def __call__(self, vectors: Sequence[Sequence[float]]) -> list[list[float]]:
        self.batches += 1
        if self.batches == 2:
            self.meanwhile()
        if self.batches > self.most:
            raise InterruptedError
        return mapped(vectors)


def served_mapped(done: Sequence[int]) -> list[Answer]:
    """What old items in the map's vectors and new ones together answer to queries of the new model."""
    return nearest(np.where(np.isin(OF.id, done), NEW, MAPPED))


def served(done: Sequence[int], maps: tuple[ScoreMap, ScoreMap] | None = None) -> list[Answer]:
    """What both partitions together answer when these ids are backfilled."""
    scores = [OLD, NEW] if maps is None else [by_knots(of, m) for of, m in zip((OLD, NEW), maps, strict=True)]
    return nearest(np.where(np.isin(OF.id, done), scores[1], scores[0]))


def by_knots(distances: NDArray[np.float64], score_map: ScoreMap) -> NDArray[np.float64]:
    """Piecewise linear, and beyond the ends with the slope of the end segment."""
    x, y = score_map.distances, score_map.scores
    scores = np.interp(distances, x, y)
    for end, next_to, beyond in ((0, 1, distances < x[0]), (-1, -2, distances > x[-1])):
        slope = (y[end] - y[next_to]) / (x[end] - x[next_to])
        scores[beyond] = y[end] + (distances[beyond] - x[end]) * slope
    return np.asarray(scores)


class Embedder:
    """The new vectors of ids; breaks off after so many of them, as a process that is killed."""

    def __init__(self, most: int) -> None:
        self.left = most

    def __call__(self, ids: Sequence[int]) -> list[list[float]]:
        if not self.left:
            raise InterruptedError
        self.left -= len(ids)
        return [OF.new[ROW[int(item)]].tolist() for item in ids]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres(tmp_path_factory.mktemp("server")) as running:
        yield running


class Shop:
    """The table of the page, and its commands."""

    def __init__(self, connection: Any, ids: str = "bigint", vectors: str = "vector") -> None:
        self.connection, self.ids, self.vectors = connection, ids, vectors
        self.run("DROP TABLE IF EXISTS items, backfill_queue; CREATE EXTENSION IF NOT EXISTS vector")
        self.run(f"CREATE TABLE items (id {ids} PRIMARY KEY, embedding {vectors}(16))")
        with connection.cursor().copy("COPY items FROM STDIN") as copy:
            for item, vector in zip(OF.id.tolist(), OF.old.tolist(), strict=True):
                copy.write_row((item, str(vector)))
        self.run(block("stores", PGVECTOR, "settings"))

    def run(self, statements: str) -> None:
        """One by one, because an index is built concurrently only outside a transaction."""
        for statement in filter(str.strip, statements.split(";")):
            self.connection.execute(statement)

    def command(self, name: str) -> str:
        """With the types of this table, as the page says."""
        return block("stores", PGVECTOR, name).replace("id bigint", f"id {self.ids}").replace("vector", self.vectors)

    def page(self, name: str) -> None:
        self.run(self.command(name))

    def add(self, order: Sequence[int] = ORDER) -> None:
        self.page("add")
        with self.connection.cursor().copy("COPY backfill_queue FROM STDIN CSV HEADER") as copy:
            copy.write("id,rank,score\n" + "".join(f"{item},{rank},0.5\n" for rank, item in enumerate(order)))

    def backfill(self, embed: Callable[[Sequence[int]], list[list[float]]], **more: Any) -> None:
        scope: dict[str, Any] = {}
        exec(block("stores", PGVECTOR, "backfill"), scope)
        self.connection.autocommit = False
        try:
            scope["backfill"](self.connection, embed, batch=15, **more)
        finally:
            self.connection.rollback()
            self.connection.autocommit = True

    def answers(self, query: str, backward: NDArray[np.float32] = ASKED.old, **more: Any) -> list[Answer]:
        asked = {"backward": backward, "old": ASKED.old, "forward": ASKED.new}
        given = [{"k": K, **more, **{name: str(of[row].tolist()) for name, of in asked.items()}} for row in range(30)]
        return [[row[0] for row in self.connection.execute(query, values)] for values in given]

    def search(self) -> list[Answer]:
        return self.answers(self.command("search"))

    def check(self) -> dict[str, int]:
        cursor = self.connection.execute(block("stores", PGVECTOR, "check"))
        return dict(zip([column.name for column in cursor.description], cursor.fetchone(), strict=True))


@pytest.fixture
def shop(address: str) -> Iterator[Shop]:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        yield Shop(connection)


def test_pgvector_from_the_first_day_to_the_last(shop: Shop) -> None:
    shop.add()
    assert shop.search() == served([])
    with pytest.raises(InterruptedError):
        shop.backfill(Embedder(60))
    assert shop.search() == served(ORDER[:60])
    assert shop.check() == {
        "items": 200,
        "backward": 140,
        "forward": 60,
        "nowhere": 0,
        "forgotten": 0,
        "no_way_back": 0,
    }
    back = block("stores", PGVECTOR, "back")
    assert shop.answers(back) == nearest(OLD), "the way back, half-way"
    with pytest.raises(Exception, match="items_backfilled"):
        shop.page("switch")
    shop.run("ALTER TABLE items DROP CONSTRAINT items_backfilled")
    shop.backfill(Embedder(200))
    assert shop.search() == served(ORDER) == nearest(NEW)
    assert shop.check() == {"items": 200, "backward": 0, "forward": 200, "nowhere": 0, "forgotten": 0, "no_way_back": 0}
    assert shop.answers(back) == nearest(OLD), "the way back, at the end"
    shop.page("switch")
    shop.page("drop")
    alone = "SELECT id FROM items ORDER BY forward <=> %(forward)s::vector LIMIT %(k)s"
    assert shop.answers(alone) == nearest(NEW)


def test_pgvector_counts_what_cannot_come_back_and_keeps_what_others_wrote(shop: Shop) -> None:
    shop.add()
    mine = [1.0] * 24
    shop.run(f"UPDATE items SET forward = '{mine}' WHERE id = {ORDER[70]}; DELETE FROM items WHERE id = {ORDER[3]}")
    shop.run(f"INSERT INTO items VALUES (10001, NULL, '{mine}'), (10002, NULL, NULL)")
    shop.backfill(Embedder(1000))
    assert shop.check() == {"items": 201, "backward": 1, "forward": 200, "nowhere": 1, "forgotten": 1, "no_way_back": 2}
    shop.page("forgotten")
    assert shop.connection.execute("SELECT * FROM backfill_queue").fetchall() == [(10002, 1, None)]
    shop.backfill(lambda ids: [mine for _ in ids])
    assert shop.check() == {"items": 201, "backward": 0, "forward": 201, "nowhere": 0, "forgotten": 0, "no_way_back": 2}
    (kept,) = shop.connection.execute("SELECT forward::text FROM items WHERE id = %s", [ORDER[70]]).fetchone()
    assert np.fromstring(kept.strip("[]"), sep=",").tolist() == mine


def test_pgvector_with_a_map_of_the_gallery(shop: Shop, address: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    shop.run(f"DELETE FROM items WHERE id = {LATE}")
    shop.add(WITH_LATE_LAST[:-1])
    shop.run(block("stores-more", THIRD, "add to PostgreSQL"))
    search = shop.command("search").replace("embedding", "backward")
    check = shop.command("check").replace("embedding IS NULL) AS nowhere", "backward IS NULL) AS nowhere")

    def counts() -> tuple[int, ...]:
        """backward, forward, nowhere, forgotten and no_way_back."""
        return tuple(shop.connection.execute(check).fetchone()[1:])

    def insert() -> None:
        with psycopg.connect(address) as application:
            application.execute("INSERT INTO items VALUES (%s, %s)", [LATE, str(OF.old[ROW[LATE]].tolist())])

    scope: dict[str, Any] = {}
    exec(block("stores-more", THIRD, "fill PostgreSQL"), scope)
    assert counts() == (199, 0, 199, 0, 0)
    with pytest.raises(InterruptedError):
        scope["fill"](shop.connection, Mapper(3), batch=15)
    assert counts() == (199, 0, 154, 0, 0), "three batches are kept"
    scope["fill"](shop.connection, Mapper(100, insert), batch=15)
    assert counts() == (200, 0, 0, 1, 0)
    shop.run(block("stores-more", THIRD, "index PostgreSQL"))
    shop.page("forgotten")
    assert counts() == (200, 0, 0, 0, 0)
    assert shop.answers(search, ASKED.new) == served_mapped([])
    shop.backfill(Embedder(1000), until=60)
    assert counts() == (140, 60, 0, 0, 0)
    assert shop.answers(search, ASKED.new) == served_mapped(WITH_LATE_LAST[:60])
    assert shop.answers(shop.command("back")) == nearest(OLD), "the way back, half-way"
    shop.backfill(Embedder(1000))
    assert counts() == (0, 200, 0, 0, 0)
    assert shop.answers(search, ASKED.new) == nearest(NEW)
    shop.page("drop")
    shop.run("INSERT INTO items VALUES (10001, NULL)")  # id and forward: no other column is left


@pytest.mark.parametrize("autocommit", [True, False])
def test_a_batch_is_claimed_until_it_is_stored(autocommit: bool, shop: Shop, address: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    shop.add()
    free = []

    def embed(ids: Sequence[int]) -> list[list[float]]:
        with psycopg.connect(address) as other:
            free.append(len(other.execute("SELECT id FROM backfill_queue FOR UPDATE SKIP LOCKED").fetchall()))
        return Embedder(1000)(ids)

    scope: dict[str, Any] = {}
    exec(block("stores", PGVECTOR, "backfill"), scope)
    shop.connection.autocommit = autocommit
    scope["backfill"](shop.connection, embed, batch=50)
    assert free == [150, 100, 50, 0]


def test_pgvector_with_ids_of_text_and_half_precision(address: str) -> None:
    psycopg = pytest.importorskip("psycopg")
    with psycopg.connect(address, autocommit=True) as connection:
        shop = Shop(connection, "text", "halfvec")
        shop.add()
        shop.backfill(Embedder(1000), until=60)
        pairs = zip(shop.search(), served(ORDER[:60]), strict=True)
        both = [len(set(answer) & {str(item) for item in exact}) for answer, exact in pairs]
        assert np.mean(both) > 0.95 * K
        for vectors, most in (("vector", 2000), ("halfvec", 4000)):
            shop.run(f"CREATE TEMP TABLE wide (a {vectors}({most}), b {vectors}({most + 1}))")
            shop.run(f"CREATE INDEX ON wide USING hnsw (a {vectors}_cosine_ops)")
            with pytest.raises(psycopg.Error, match=f"more than {most} dimensions"):
                shop.run(f"CREATE INDEX ON wide USING hnsw (b {vectors}_cosine_ops)")
            shop.run("DROP TABLE wide")


def fitted(merge: str) -> tuple[ScoreMap, ScoreMap]:
    labels = np.unique(OF.label, return_inverse=True)[1]
    pair = UpgradePair(RetrievalSystem(OF.old, OF.old), RetrievalSystem(OF.new, OF.new))
    made = fit_merge(merge, pair, labels, "cosine")
    assert made.backward is not None
    assert made.forward is not None
    return made.backward, made.forward


@pytest.mark.parametrize("merge", ["quantile", "zscore", "isotonic", "logistic"])
def test_score_maps_in_sql(merge: str, shop: Shop) -> None:
    shop.add()
    with pytest.raises(InterruptedError):
        shop.backfill(Embedder(60))
    shop.run("DROP FUNCTION IF EXISTS score")
    shop.connection.execute(block("serving-two-models", "In PostgreSQL", "score"))
    maps = fitted(merge)
    knots = [(m.distances.tolist(), m.scores.tolist()) for m in maps]
    some = np.concatenate([np.linspace(-0.5, 2.5, 400), *[m.distances for m in maps]])
    for (x, y), score_map in zip(knots, maps, strict=True):
        found = shop.connection.execute("SELECT score(d, %s, %s) FROM unnest(%s::float8[]) AS d", [x, y, some.tolist()])
        np.testing.assert_allclose([row[0] for row in found], by_knots(some, score_map), atol=1e-9)
    merged = block("stores", PGVECTOR, "search").replace(
        "ORDER BY distance, id LIMIT", block("serving-two-models", "In PostgreSQL", "order").strip() + " LIMIT"
    )
    (bx, by), (fx, fy) = knots
    given = {"backward_x": bx, "backward_y": by, "forward_x": fx, "forward_y": fy}
    assert shop.answers(merged, **given) == served_by_score(ORDER[:60], maps)


def served_by_score(done: Sequence[int], maps: tuple[ScoreMap, ScoreMap]) -> list[Answer]:
    """By score, then by distance: isotonic maps have steps, on which distances decide."""
    is_new = np.isin(OF.id, done)
    scores = np.where(is_new, by_knots(NEW, maps[1]), by_knots(OLD, maps[0]))
    distances = np.where(is_new, NEW, OLD)
    return [OF.id[np.lexsort((d, s.round(12)))[:K]].tolist() for s, d in zip(scores, distances, strict=True)]


@pytest.fixture
def client() -> Iterator[Any]:
    """The collection of the page, in this process."""
    qdrant = pytest.importorskip("qdrant_client")
    models, client = qdrant.models, qdrant.QdrantClient(":memory:")
    vector = models.VectorParams(size=16, distance=models.Distance.COSINE)
    client.create_collection("items", vectors_config={"embedding": vector})
    rows = zip(OF.id.tolist(), OF.old.tolist(), strict=True)
    client.upsert("items", [models.PointStruct(id=item, vector={"embedding": row}) for item, row in rows])
    yield client
    client.close()


def of_qdrant(client: Any) -> dict[str, Any]:
    """The functions of the page, after its first command."""
    scope: dict[str, Any] = {"client": client}
    for name in ("add", "backfill", "search", "check", "back"):
        exec(block("stores", "Qdrant", name), scope)
    return scope


def asked(search: Callable[[list[float], list[float]], list[int]]) -> list[Answer]:
    return [search(old, new) for old, new in zip(ASKED.old.tolist(), ASKED.new.tolist(), strict=True)]


def test_qdrant_from_the_first_day_to_the_last(client: Any) -> None:
    page = of_qdrant(client)

    def answers() -> list[Answer]:
        return asked(lambda old, new: [item for _, item in page["search"](client, old, new, K)])

    def back() -> list[Answer]:
        return asked(lambda old, new: [point.id for point in page["back"](client, old, K)])

    assert answers() == served([])
    with pytest.raises(InterruptedError):
        page["backfill"](client, ORDER, Embedder(60), batch=15)
    assert answers() == served(ORDER[:60])
    assert page["check"](client) == {"items": 200, "left": 140, "done": 60, "nowhere": 0, "no_way_back": 0}
    assert back() == nearest(OLD)
    page["backfill"](client, ORDER, Embedder(140), batch=15)
    assert answers() == served(ORDER) == nearest(NEW)
    assert page["check"](client) == {"items": 200, "left": 0, "done": 200, "nowhere": 0, "no_way_back": 0}
    assert back() == nearest(OLD)
    exec(block("stores", "Qdrant", "drop"), page)
    alone = asked(lambda _, new: [p.id for p in client.query_points("items", new, using="forward", limit=K).points])
    assert alone == nearest(NEW)


def test_qdrant_counts_what_cannot_come_back_and_keeps_what_others_wrote(client: Any) -> None:
    from qdrant_client import models

    page, mine = of_qdrant(client), [1.0] + [0.0] * 23
    client.update_vectors("items", [models.PointVectors(id=ORDER[70], vector={"forward": mine})])
    client.delete("items", [ORDER[3]])
    client.upsert(
        "items", [models.PointStruct(id=10001, vector={"forward": mine}), models.PointStruct(id=10002, vector={})]
    )

    def embed(ids: Sequence[int]) -> list[list[float]]:
        """While it runs, the application writes one of the items."""
        if ORDER[80] in ids:
            client.update_vectors("items", [models.PointVectors(id=ORDER[80], vector={"forward": mine})])
        return Embedder(1000)(ids)

    page["backfill"](client, ORDER, embed, batch=15)
    assert page["check"](client) == {"items": 201, "left": 1, "done": 200, "nowhere": 1, "no_way_back": 2}
    kept = client.retrieve("items", [ORDER[70], ORDER[80]], with_vectors=True)
    assert [point.vector["forward"] for point in kept] == [mine, mine]


def test_qdrant_with_a_map_of_the_gallery(client: Any) -> None:
    from qdrant_client import models

    client.delete("items", [LATE])
    page, late = of_qdrant(client), {"embedding": OF.old[ROW[LATE]].tolist()}
    exec(block("stores-more", THIRD, "fill Qdrant"), page)

    def insert() -> None:
        client.upsert("items", [models.PointStruct(id=LATE, vector=late)])

    def answers() -> list[Answer]:
        return [[item for _, item in page["search"](client, new, new, K)] for new in ASKED.new.tolist()]

    assert page["check"](client) == {"items": 199, "left": 199, "done": 0, "nowhere": 199, "no_way_back": 0}
    with pytest.raises(InterruptedError):
        page["fill"](client, Mapper(3), batch=15)
    assert page["check"](client) == {"items": 199, "left": 199, "done": 0, "nowhere": 154, "no_way_back": 0}
    page["fill"](client, Mapper(100, insert), batch=15)
    (point,) = client.retrieve("items", [LATE], with_vectors=True)
    assert np.linalg.norm(point.vector["embedding"]) == pytest.approx(1), "what maps are applied to"
    assert page["check"](client) == {"items": 200, "left": 200, "done": 0, "nowhere": 0, "no_way_back": 0}
    assert answers() == served_mapped([])
    order = WITH_LATE_LAST[:-1]
    page["backfill"](client, order[:60], Embedder(1000), batch=15)
    assert answers() == served_mapped(WITH_LATE_LAST[:60])
    page["backfill"](client, order, Embedder(1000), batch=15)
    assert page["check"](client) == {"items": 200, "left": 1, "done": 199, "nowhere": 0, "no_way_back": 0}
    forgotten = [point.id for point in client.scroll("items", page["LEFT"])[0]]
    page["backfill"](client, forgotten, Embedder(1000))
    assert answers() == nearest(NEW)
    assert [[p.id for p in page["back"](client, old, K)] for old in ASKED.old.tolist()] == nearest(OLD)


@pytest.mark.parametrize("merge", ["zscore", "logistic"])
def test_straight_score_maps_in_a_formula_of_qdrant(merge: str, client: Any) -> None:
    page, maps = of_qdrant(client), fitted(merge)
    with pytest.raises(InterruptedError):
        page["backfill"](client, ORDER, Embedder(60), batch=15)
    exec(block("serving-two-models", "In Qdrant", "formula"), page)
    lines = []
    for score_map in maps:
        (x0, x1), (y0, y1) = score_map.distances.tolist(), score_map.scores.tolist()
        slope = (y1 - y0) / (x1 - x0)
        lines.append((slope, y0 - slope * x0))
    found = asked(lambda old, new: page["merged"](client, old, new, K, *lines))
    assert found == served(ORDER[:60], maps)


def converted(store: str, distance: str, number: float) -> float:
    """The distance that the table of the page makes of what a store returns."""
    table = PAGES["serving-two-models"].split("### Distances")[1]
    header, row = ([cell.strip() for cell in re.findall(r"[^|]+", line)] for line in
                   (re.findall(rf"^\| {name} .*", table, re.MULTILINE)[0] for name in ("store", store)))  # fmt: skip
    cell = row[header.index(distance)].replace("\u2212", "-")
    return float(eval("number" if cell.endswith("is the distance") else cell, {"score": number, "number": number}))


@pytest.mark.parametrize("distance", ["cosine", "Euclidean", "inner product"])
def test_what_stores_return_is_converted(distance: str, shop: Shop) -> None:
    """pgvector's operators stand in the table; Qdrant's metrics are named after what they compute."""
    qdrant = pytest.importorskip("qdrant_client")
    one, other = OF.old[0].astype(np.float64), OF.old[1].astype(np.float64)
    expected = {
        "cosine": 1 - one @ other / np.linalg.norm(one) / np.linalg.norm(other),
        "Euclidean": float(np.sqrt(np.square(one - other).sum())),
        "inner product": -one @ other,
    }[distance]
    operator = {"cosine": "<=>", "Euclidean": "<->", "inner product": "<#>"}[distance]
    assert f"| `{operator}` is the distance |" in PAGES["serving-two-models"]
    vectors = [str(OF.old[0].tolist()), str(OF.old[1].tolist())]
    (found,) = shop.connection.execute(f"SELECT %s::vector {operator} %s::vector", vectors).fetchone()
    assert converted("pgvector", distance, found) == pytest.approx(expected, abs=1e-5)
    kind = {"cosine": "Cosine", "Euclidean": "Euclid", "inner product": "Dot"}[distance]
    client = qdrant.QdrantClient(":memory:")
    client.create_collection("two", qdrant.models.VectorParams(size=16, distance=kind))
    client.upsert("two", [qdrant.models.PointStruct(id=1, vector=OF.old[1].tolist())])
    (point,) = client.query_points("two", OF.old[0].tolist()).points
    assert converted("Qdrant", distance, point.score) == pytest.approx(expected, abs=1e-5)


def test_pages_are_short() -> None:
    for name, page in PAGES.items():
        assert len(page.split()) <= 1750, name
