"""Pictures inside the pages: a matplotlib figure as SVG text, the same bytes at every build."""

import io

import matplotlib

matplotlib.use("Agg")
matplotlib.rcParams.update({
    "svg.hashsalt": "pplseq", "svg.fonttype": "none", "figure.figsize": (7.0, 2.6), "figure.constrained_layout.use": True,
    "axes.spines.top": False, "axes.spines.right": False,
})
# what a figure is drawn in -> the colours of the page, in its light and its dark theme (styles/pages.css)
THEME = {
    "#000000": "currentColor", "#1d1c1a": "currentColor", "#6a665e": "var(--figure-muted)", "#1d5a7a": "var(--figure-accent)",
    "#ffffff": "var(--md-default-bg-color)",
}  # fmt: skip


def svg(figure, description: str) -> str:
    """The figure as an SVG element that a screen reader can name; the figure is closed."""
    import matplotlib.pyplot as plt

    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    drawing = buffer.getvalue()
    for drawn, shown in THEME.items():
        drawing = drawing.replace(f": {drawn}", f": {shown}")
    told = f'<svg role="img" aria-label="{description}" fill="currentColor" '
    return drawing[drawing.index("<svg") :].replace("<svg ", told, 1)
