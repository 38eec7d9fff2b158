"""Pictures inside the pages: a matplotlib figure as SVG text, the same bytes at every build."""

import io

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams.update({
    "svg.hashsalt": "pplseq", "svg.fonttype": "none", "figure.figsize": (7.0, 2.6), "figure.constrained_layout.use": True,
    "axes.spines.top": False, "axes.spines.right": False, "figure.facecolor": "white",
})


def svg(figure, description: str) -> str:
    """The figure as an SVG element that a screen reader can name; the figure is closed."""
    import matplotlib.pyplot as plt

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    drawing = buffer.getvalue()
    return drawing[drawing.index("<svg"):].replace("<svg ", f'<svg role="img" aria-label="{description}" ', 1)
