"""Formulas of pages as MathML, which browsers draw without a script or a font from elsewhere."""

from latex2mathml.converter import convert


def formula(source: str, language, css_class, options, md, **known) -> str:
    """HTML of a fenced block of TeX; a formula a paragraph."""
    drawn = (f'<p>{convert(part.strip(), display="block")}</p>' for part in source.split("\n\n") if part.strip())
    return f'<div class="formula" tabindex="0">{"".join(drawn)}</div>'
