"""Any text -> a format -> read by what reads the format: the same text."""

import json
import re
from typing import Any

import pypandoc
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.text import latex, markdown, markdown_code, one_line
from tests.nasty_texts import LABELS, TITLE
from tests.programs import ran

# Markup is made of few characters, so these come often; the rest is all that can be written.
_WORDS = [
    *"\\`*_[]{}<>|$@^~#&!\"'.-+:=()%/,;? \n\t012aB",
    "e\u0301",
    "学",
    "שלום",
    "🙂",
    "\u2019",
    "\u201c",
]
_ANY = st.characters(codec="utf-8", exclude_categories=("Cs", "Cn", "Co"))
_MADE = st.lists(st.one_of(st.sampled_from(_WORDS), _ANY), min_size=1, max_size=12).map("".join)
TEXTS = st.one_of(_MADE, st.sampled_from([TITLE, *LABELS]))


def words(text: str) -> str:
    """What a reader sees: pandoc sets a no-break space after `Mr.`, and blanks only divide."""
    return " ".join(one_line(text).split())


def inlines(parts: list[Any]) -> str:
    """The text of pandoc's inlines; an element that is no text is named, so that it is found."""
    blanks = {"Space": " ", "SoftBreak": " "}
    return "".join(
        part["c"] if part["t"] == "Str" else blanks.get(part["t"], f"<{part['t']}>")
        for part in parts
    )


def block(one: dict[str, Any]) -> str:
    if one["t"] in ("Para", "Plain"):
        return inlines(one["c"])
    if one["t"] == "BulletList":
        return "".join(map(block, one["c"][0]))
    if one["t"] == "Table":
        # The first cell of the first row of the first body.
        return "".join(map(block, one["c"][4][0][3][0][1][0][4]))
    return f"<{one['t']}>"


def pandoc(text: str) -> dict[str, Any]:
    """The document that pandoc reads."""
    command = [pypandoc.get_pandoc_path(), "--from=markdown", "--to=json"]
    done = ran(command, input=text, check=True)
    return dict(json.loads(done.stdout))


def places(text: str) -> str:
    """One text at the start of a paragraph, inside one, in a list and in a table."""
    table = f"| A | B |\n|---|---|\n| {text} | b |"
    return f"{text}end\n\n*x*{text} y\n\n- {text}end\n\n{table}\n\n"


@given(st.lists(TEXTS.filter(words), min_size=40, max_size=60))
@settings(max_examples=15, deadline=None, derandomize=True)
def test_pandoc_reads_every_text_as_given(texts: list[str]) -> None:
    document = pandoc("".join(places(markdown(text)) for text in texts))
    found = [words(block(one)) for one in document["blocks"]]
    expected = [
        words(each)
        for text in texts
        for each in (f"{text}end", f"<Emph>{text} y", f"{text}end", text)
    ]
    assert found == expected


@given(st.lists(TEXTS.filter(words), min_size=40, max_size=60))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_front_matter_holds_any_title(texts: list[str]) -> None:
    """The manuscript has its title in a block of YAML, which is where one could end it."""
    keys = "".join(f"t{n}: |-\n  {markdown(text)}\n" for n, text in enumerate(texts))
    document = pandoc(f"---\n{keys}---\n\nend\n")
    assert [words(block(one)) for one in document["blocks"]] == ["end"]
    for n, text in enumerate(texts):
        found = document["meta"][f"t{n}"]
        if found["t"] == "MetaBlocks":
            (found,) = found["c"]
        assert words(inlines(found["c"])) == words(text)


@given(st.lists(TEXTS.filter(words), min_size=40, max_size=60))
@settings(max_examples=5, deadline=None, derandomize=True)
def test_a_code_span_holds_any_text(texts: list[str]) -> None:
    source = "\n\n".join(f"x {markdown_code(text)}" for text in texts)
    spans = [one["c"][-1]["c"][1] for one in pandoc(source)["blocks"]]
    assert [words(span) for span in spans] == [words(text) for text in texts]


_COMMANDS = {
    "textbackslash": "\\", "textasciitilde": "~", "textasciicircum": "^", "textless": "<",
    "textgreater": ">", "textbar": "|", "textasciigrave": "`",
}  # fmt: skip
_TOKEN = re.compile(
    r"\\(?P<command>[a-z]+)\{\}|\\(?P<symbol>symbol\{34\})|\\(?P<escaped>[&%$#_{}])"
    r"|\{(?P<grouped>[\[\]*])\}|(?P<dash>(?<!-)--(?!-))|(?P<joined>[-',])\{\}(?=(?P=joined))"
    r"|(?P<plain>(?!--|''|,,)[^\\&%$#_{}~^<>|`\"\[\]*])"
)


def plain_latex(text: str) -> str:
    """The text that LaTeX prints of what is safe in it; fails at the first other character."""
    found, at = [], 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        assert token, f"LaTeX would interpret {text[at : at + 10]!r}"
        at = token.end()
        kind = str(token.lastgroup)
        inside = token[kind]
        fixed = {"command": _COMMANDS.get(inside, ""), "symbol": '"', "dash": "\N{EN DASH}"}
        found.append(fixed.get(kind, inside))
    return "".join(found)


@given(TEXTS)
@settings(deadline=None, derandomize=True)
def test_latex_interprets_nothing(text: str) -> None:
    assert plain_latex(latex(text)) == one_line(text)
