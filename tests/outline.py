"""The elements and texts of a page, as a browser reads them."""

from html.parser import HTMLParser


class Outline(HTMLParser):
    """Elements with their attributes, ends and comments too, all texts, and that of each run."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.runs: list[str] = []
        self._within = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "tbody" and "data-status" in dict(attrs):
            self.runs.append("")
            self._within = True

    def handle_endtag(self, tag: str) -> None:
        self.elements.append((f"/{tag}", {}))
        self._within = self._within and tag != "tbody"

    def handle_comment(self, data: str) -> None:
        self.elements.append(("!", {}))

    def handle_decl(self, decl: str) -> None:
        self.handle_comment(decl)

    unknown_decl = handle_pi = handle_comment

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if self._within:
            self.runs[-1] += f" {data}"
