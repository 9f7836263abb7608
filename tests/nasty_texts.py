"""Titles and labels that some format would read as its own markup."""

from string import punctuation

TITLE = (
    f"{punctuation} \\input{{secret}} {{x}} {{wildcards.name}} {{{{ study.name }}}} {{figures/ $a$ "
    "\"quoted\" 'single' ``q'' a--b --- ... -? 5 -? <b>&amp;</b> [x](y) *i* _e_ ~~s~~ H~2~O x^2^ "
    "@bai2022 #fn(1) // c /* d */ “typographic” Größe e\u0301 שלום 🙂 1. a"
)
LABELS = (
    "amp_o2 *x* [y] | z",
    "{x} {wildcards.name} {{ y }}",
    "$a_1$ and $b$",
    "- 1. a",
    "1. b",
    "# c",
    "= d",
    ": e // f",
    "_g_ `h` \\i \\\\",
    '"j" \'k\' & <l> &lt; %m "',
    "[n] o ~p~ q^r^ @s -? t... --",
    "שלום e\u0301 🙂  \t two\nlines",
    "分散学習 训练 한국어 カ、 \N{KHMER LETTER KA} 🚀",
)
