from pathlib import Path

import pytest
import yaml
from matplotlib.font_manager import findfont, get_font

from pipeline.errors import StudyError
from pipeline.study.load import (
    CONFIG,
    check_study,
    font_warning,
    load_study,
    results_folder,
)
from tests.fake_records import make_study
from tests.nasty_texts import TITLE

CJK = "分散学習한국어\N{KATAKANA LETTER KA}、\N{FULLWIDTH LATIN CAPITAL LETTER A}"


def test_what_figures_show_in_place_of_boxes_is_said() -> None:
    study = make_study(title="a 🙂 of 🙂")
    study["cells"][0] |= {"name": "ship", "label": "DDP 🚀"}
    assert font_warning(check_study(study, "here")) == (
        "warning: no font here has 🙂 🚀; figures, PDF and LaTeX show 'a 🙂 of 🙂' as "
        "'a (slightly smiling face) of (slightly smiling face)', 'DDP 🚀' as 'ship'; "
        "HTML shows them as they are"
    )


@pytest.mark.parametrize("title", ["Plain", "Größe, µs, Ωмега “quoted” → ≥ 2"])
def test_what_the_fonts_have_is_not_warned_of(title: str) -> None:
    assert font_warning(check_study(make_study(title=title), "here")) is None
    glyphs = get_font(findfont("DejaVu Sans")).get_charmap()
    assert all(ord(character) in glyphs for character in title)
    assert not any(ord(character) in glyphs for character in CJK)


@pytest.mark.parametrize("study", sorted(Path("workflow/config").glob("*/study.yaml")))
def test_the_shipped_studies_have_no_such_characters(study: Path) -> None:
    assert font_warning(load_study(study)) is None


@pytest.mark.parametrize(
    ("key", "text", "said"),
    [
        ("title", "a\x07b", r"title 'a\\x07b' holds '\\x07', which cannot be printed"),
        ("title", " \n", r"title ' \\n' is blank"),
        ("label", "\ud800", r"cells\.0\.label '\\ud800' holds"),
    ],
)
def test_a_text_that_nothing_can_print_stops_the_study(key: str, text: str, said: str) -> None:
    study = make_study()
    (study if key == "title" else study["cells"][0])[key] = text
    with pytest.raises(StudyError, match=said):
        check_study(study, "here")


def test_a_title_of_markup_is_a_title() -> None:
    check_study(make_study(title=TITLE), "here")


def write(path: Path, **content: object) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_study_states_what_differs_from_the_one_it_extends(tmp_path: Path) -> None:
    own = write(tmp_path / "own.yaml", extends="smoke", study="own", title="Own", repeats=7,
                workload={"steps": 20}, profile=None)  # fmt: skip
    smoke, found = load_study(CONFIG / "smoke/study.yaml").to_dict(), load_study(own).to_dict()
    assert found["workload"] == smoke["workload"] | {"steps": 20}
    assert (found["study"], found["repeats"], "profile" in found) == ("own", 7, False)
    assert {key: found[key] for key in ("model", "cells", "cluster")} == {
        key: smoke[key] for key in ("model", "cells", "cluster")
    }
    further = write(
        tmp_path / "further.yaml",
        extends="own.yaml",
        study="further",
        corpus={"source": "json", "paths": ["a.json"]},
        cluster={"network": "loopback"} | dict.fromkeys(("links", "cores_per_node", "yardstick")),
    )
    found = load_study(further).to_dict()
    assert found["corpus"] == {"source": "json", "paths": ["a.json"]}
    assert not {"links", "cores_per_node"} & {*found["cluster"]}
    assert results_folder(further) == Path("results/further")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"extends": "smok", "study": "a"}, "no study 'smok'; give a file or one of .*smoke"),
        ({"extends": 3}, "extends 3 is no name"),
        ({"extends": "none.yaml", "study": "a"}, "none.yaml does not exist"),
        ({"extends": "smoke"}, "no name of its own"),
        ({"extends": "x" * 300, "study": "a"}, "is no path"),
        ({"extends": "a\0.yaml", "study": "a"}, "cannot be printed"),
        ({"extends": "loop.yaml", "study": "a"}, "loop.yaml"),
        ({"extends": "chain0.yaml", "study": "a"}, "chain of over 20"),
        ({"extends": "smoke", "study": "smoke"}, "the name of the study 'smoke' that it extends"),
        ({"extends": "own.yaml", "study": "a"}, "comes back to itself"),
        ({"extends": "round.yaml", "study": "a"}, "comes back to itself"),
        ({"extends": "list.yaml", "study": "a"}, "is no mapping"),
        ({"extends": "smoke", "study": "a", "workload": {"stesp": 3}}, "'stesp'"),
        ({"extends": "smoke", "study": "a", "model": None}, "'model' is a required property"),
    ],
)
def test_a_wrong_extension_is_one_line(
    tmp_path: Path, content: dict[str, object], said: str
) -> None:
    write(tmp_path / "round.yaml", extends="own.yaml")
    (tmp_path / "list.yaml").write_text("[1]")
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    for n in range(30):
        (tmp_path / f"chain{n}.yaml").write_text(f"extends: chain{n + 1}.yaml\n")
    with pytest.raises(StudyError, match=said) as caught:
        load_study(write(tmp_path / "own.yaml", **content))
    assert "\n" not in str(caught.value)
