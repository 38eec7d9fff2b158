"""What the site's build needs: pages draw with `figures`, and every page's code starts from the same seed and folder."""

import os
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
# what the code of pages writes; gone with this process
WRITTEN = tempfile.TemporaryDirectory(prefix="pplseq-docs-", ignore_cleanup_errors=True)


def on_config(config):
    for place in (str(HERE), str(HERE.parent)):
        if place not in sys.path:
            sys.path.insert(0, place)
    os.environ.setdefault("MPLBACKEND", "Agg")
    from formulas import formula
    from reference_pages import CLASSES

    fences = config.mdx_configs.setdefault("pymdownx.superfences", {}).setdefault("custom_fences", [])
    fences.append({"name": "math", "class": "formula", "format": formula})
    reference = next(part["Reference"] for part in config.nav if "Reference" in part)
    for group, classes in reversed(CLASSES.items()):
        reference.insert(0, {group: [{name: f"reference/classes/{name}.md"} for name in classes]})
    reference.append({"Every command": "reference/every_command.md"})
    return config


def on_files(files, config):
    """Adds the pages that are made from the classes and commands themselves, the notebooks of tutorials, and reports."""
    from mkdocs.structure.files import File
    from notebooks import notebook
    from reference_pages import contents
    from report_pages import reports

    pages = (file for file in files.documentation_pages() if file.src_uri.startswith("tutorials/"))
    notebooks = {_notebook(page): notebook(page.content_string) for page in pages if "exec=" in page.content_string}
    for name, text in (contents() | notebooks | reports()).items():
        files.append(File.generated(config, name, content=text))
    return files


def _notebook(file) -> str:
    """Where a page's notebook stands."""
    return file.src_uri.removesuffix(".md") + ".ipynb"


def on_page_markdown(markdown, page, config, files):
    """A page's code writes its files into a folder of its own, and draws random numbers that do not depend on other pages."""
    import pyro
    import torch

    pyro.clear_param_store()  # guides of two pages may have parameters of one name
    os.chdir(tempfile.mkdtemp(dir=WRITTEN.name))
    torch.manual_seed(0)
    if files.get_file_from_path(_notebook(page.file)) is not None:
        markdown += f"\n\n[This page as a notebook]({Path(_notebook(page.file)).name})\n"
    return markdown


def on_page_content(html, page, config, files):
    """Code that failed is an error of the build; markdown-exec only prints what it raised."""
    if "Traceback (most recent call last)" in html:
        from mkdocs.exceptions import PluginError

        raise PluginError(f"{page.file.src_path}: its code failed:{html.rpartition('Traceback')[2][-600:]}")
    return html
