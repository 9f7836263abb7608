"""Figures of tables that tests made, and what is read back from them."""

from importlib import import_module
from typing import Any

import pandas as pd
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text

from pipeline.figures import theme
from pipeline.metrics.results import Results


def draw(name: str, table: pd.DataFrame, *more: Any) -> Figure:
    """The figure in the shared look; those drawn before are closed, and stay readable."""
    theme.apply()
    plt.close("all")
    figure = import_module(f"pipeline.figures.{name}").draw(Results(table), *more)
    assert isinstance(figure, Figure)
    return figure


def words(figure: Figure) -> str:
    """All that is written in the figure, on one line."""
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    return " ".join(" ".join(text.get_text() for text in texts).split())
