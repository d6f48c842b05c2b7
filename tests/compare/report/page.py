"""A page as a test sees it: its tables as text, its charts with their lines and legends."""

from html.parser import HTMLParser


class Page(HTMLParser):
    """Parses a page.

    rows: of all tables, without the text for screen readers. tags, addresses: what the page consists of and refers to.
    labels: what a screen reader is told about charts and scroll boxes. lines: keys of drawn lines, chart by chart.
    legends: title and number of each line, chart by chart. headings: of any level. open: rows outside of folded parts;
    topics count as unfolded.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.rows: list[list[str]] = []
        self.open: list[list[str]] = []
        self.headings: list[str] = []
        self.addresses: list[str] = []
        self.tags: set[str] = set()
        self.labels: list[str] = []
        self.lines: list[set[str]] = []
        self.legends: list[dict[str, str]] = []
        self.ids: list[str] = []
        self._into: list[str] | None = None
        self._hidden = False
        self._folded = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        css = found.get("class", "").split()
        self.tags.add(tag)
        self.addresses += [found[name] for name in ("src", "href", "srcset", "action") if name in found]
        self.labels += [found["aria-label"]] if "aria-label" in found else []
        self.ids += [found["id"]] if "id" in found else []
        if tag == "figure":
            self.lines.append(set())
            self.legends.append({})
        if tag == "g" and "line" in css:
            self.lines[-1].add(found["data-key"])
        if tag == "details" and "open" not in found and "topic" not in css:
            self._folded += 1
        if tag == "tr":
            self.rows.append([])
            if not self._folded:
                self.open.append(self.rows[-1])
        if tag in ("td", "th"):
            self._start(self.rows[-1])
        if tag in ("h1", "h2", "h3"):
            self._start(self.headings)
        if "title" in css or tag == "output":
            self._entry = tag
            self._start(self._parts if tag == "output" else self._new_parts())
        self._hidden = self._hidden or "hidden" in css

    def handle_endtag(self, tag: str) -> None:
        if tag == "output":
            self.legends[-1] |= {self._parts[0]: self._parts[1]}
        if tag in ("td", "th", "h1", "h2", "h3", "output", "label"):
            self._into = None
        if tag == "span":
            self._hidden = False
        if tag == "details":
            self._folded = max(0, self._folded - 1)

    def handle_data(self, data: str) -> None:
        if self._into is not None and not self._hidden:
            self._into[-1] += data.strip()

    def _start(self, into: list[str]) -> None:
        into.append("")
        self._into = into

    def _new_parts(self) -> list[str]:
        self._parts: list[str] = []
        return self._parts
