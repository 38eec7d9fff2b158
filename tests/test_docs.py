"""The pages' Python runs, and what the site needs is there."""

import functools
import io
import json
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "```python exec" in page.read_text(encoding="utf-8"))
LONG = ("jobs", "regimes", "kinds_of_data", "own_program", "text", "iohmm", "constraints", "economy")  # more than a few seconds

# what a reader waits for, a test need not
QUICKER = [
    ("max_time=20", "max_time=0.2"), ("range(300)", "range(3)"), ("24 * 7 * 3", "24 * 5"), ("50, 60))", "50, 20))"),
    ("size=59", "size=19"), ("size=60)", "size=20)"), ("num_restarts=4", "num_restarts=1"),
    ('"num_restarts": 4', '"num_restarts": 1'), ('{"seed": 0}', '{"seed": 0, "max_iterations": 2}'),
    ("fit(typed)", "fit(typed, num_steps=2)"), ("fit(found.without())", "fit(found.without(), num_steps=2)"),
    ("said, seed=0)", "said, seed=0, num_steps=2)"),
    ("StreamingHMM(2, num_words=4).fit(x, seed=0)", "StreamingHMM(2, num_words=4).fit(x, seed=0, num_steps=2)"),
    *((end, f'{end[:-1]}, num_steps=2, initialization="still")') for end in ("(drift, times=times)", "(passengers[:108])")),
]  # fmt: skip


def quicker(code):
    for text, shorter in QUICKER:
        code = code.replace(text, shorter)
    return code


@pytest.mark.parametrize(
    "page", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in LONG else []) for p in PAGES]
)
def test_code_of_a_page(page, tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    if "from statsmodels" in page.read_text(encoding="utf-8"):
        pytest.importorskip("statsmodels")
    settings = dict(pyplot.rcParams)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(DOCS))
    names: dict = {"__name__": "page"}
    blocks = re.findall(r"```python (exec[^\n]*)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    try:
        for options, code in blocks:
            printed = io.StringIO()
            with redirect_stdout(printed):
                exec(compile(quicker(code), str(page), "exec"), names)
            assert "nan" not in printed.getvalue() or 'html="1"' in options
            assert ("<svg" in printed.getvalue()) == ('html="1"' in options)  # a picture where one is promised
    finally:
        pyplot.close("all")
        pyplot.rcParams.update(settings)  # as they were before the pages' own
        sys.modules.pop("figures", None)


def test_notebooks_have_the_programs_of_their_pages(monkeypatch):
    """In the order of the page, without what only the site draws with; no link leads into a site that is not there."""
    monkeypatch.syspath_prepend(str(DOCS))
    from notebooks import notebook

    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        made = json.loads(notebook(text))
        assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]]
        programs = [code for kind, code in cells if kind == "code"][1:]
        shown = re.findall(r"```python (exec[^\n]*)\n(.*?)```", text, re.DOTALL)
        assert programs == [code.strip() for options, code in shown if 'html="1"' not in options]
        words = "".join(code for kind, code in cells if kind == "markdown")
        assert "```python exec" not in words and not re.search(r"[^!]\[[^\]]+\]\([^)]*\.md", words)
        assert len({cell["id"] for cell in made["cells"]}) == len(cells)


def test_ten_jobs_take_ten_lines_at_most():
    """As the table of the page says."""
    page = (DOCS / "jobs.md").read_text(encoding="utf-8")
    told = {int(number): (name, int(lines)) for number, name, lines in re.findall(r"^\| (\d+)\. (.*?) \| (\d+) \|", page, re.M)}
    assert sorted(told) == list(range(1, 11))
    for number, name, body in re.findall(r"^## (\d+)\. (.*?)\n(.*?)(?=^## )", page, re.M | re.S):
        code = re.search(r"```python exec[^\n]*\n(.*?)```", body, re.S)[1].splitlines()
        lines = [line for line in code if line.strip() and not line.startswith(("import ", "from "))]
        assert told.pop(int(number)) == (name, len(lines)) and len(lines) <= 10
    assert told == {}


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert listed == {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")}


def test_what_the_reference_names_is_there():
    import importlib

    for page in [*(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")), *made_pages().values()]:
        for name in re.findall(r"^::: (\S+)", page, re.MULTILINE):
            module, _, attribute = name.rpartition(".")
            try:
                importlib.import_module(name)
            except ImportError:
                assert hasattr(importlib.import_module(module), attribute), name


@pytest.mark.parametrize("room", ["", *".models .infer .distributions .data .recipes .baselines .sources .plot".split()])
def test_every_public_name_is_in_the_reference(room):
    """As itself, or as one of a module that defines it or has it in its ``__all__``."""
    import importlib

    package = importlib.import_module(f"pplseq{room}")
    homes = {name: getattr(getattr(package, name), "__module__", "pplseq.distributions.state") for name in package.__all__}
    pages = [*(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md")), *made_pages().values()]
    told = {name for page in pages for name in re.findall(r"^::: (\S+)", page, re.MULTILINE)}
    listed = {other for name in told for other in getattr(sys.modules.get(name), "__all__", ())}
    assert [name for name, home in homes.items() if not {home, f"{home}.{name}"} & told and name not in listed] == []


@functools.cache
def made_pages():
    return runpy.run_path(str(DOCS / "reference_pages.py"))["contents"]()


def test_every_public_class_has_a_page_and_every_command_is_told():
    """What trains or is asked; other names stand on the pages of what classes share."""
    import pplseq
    from pplseq import models

    made = made_pages()
    learns = ("fit", "learn_one")
    named = [(pplseq, name) for name in pplseq.__all__]
    named += [(models, name) for name in ("ConstrainedLDS", "StreamingHMM", "PROPSLearner")]
    classes = {name for room, name in named if any(hasattr(getattr(room, name), verb) for verb in learns)}
    assert classes <= {Path(name).stem for name in made}
    pages = [text for name, text in made.items() if "/classes/" in name]
    assert all("```python exec" in text for text in pages)
    assert not re.search(":(class|func|meth|mod|attr):", made["reference/every_command.md"])
    for command in ("train iohmm", "tag compare", "count-merge", "personalize"):
        assert f"\n## pplseq {command}\n\n```text\nUsage: pplseq {command} " in made["reference/every_command.md"]


@pytest.mark.parametrize("name", sorted(runpy.run_path(str(DOCS / "reference_pages.py"))["BEGIN"]))
def test_program_of_a_class_asks_its_verbs(name):
    """The page's program runs; every verb that it offers is asked, of a sequence model all that they share."""
    code = re.search(r"```python exec[^\n]*\n(.*?)```", made_pages()[f"reference/classes/{name}.md"], re.DOTALL)
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(quicker(code[1]), name, "exec"), {})
    told = re.findall(r"^(\w+):", printed.getvalue(), re.MULTILINE)
    assert sorted(told) == sorted(re.findall(r"^print\(\"(\w+):", code[1], re.MULTILINE)) != []
    shared = {"score", "filter", "decode", "sample", "bic"} | (set() if name == "PROPS" else {"predict_next", "forecast"})
    assert shared <= set(told) or "bic" not in told  # a sequence model's
    assert "nan" not in printed.getvalue()


def test_pages_load_nothing_from_other_hosts():
    for page in DOCS.rglob("*"):
        if page.suffix in (".md", ".css", ".py"):
            assert not re.search(r"(src|href)=[\"']https?:|url\(https?:", page.read_text(encoding="utf-8")), page


def test_code_that_fails_is_an_error_of_the_build(monkeypatch):
    exceptions = pytest.importorskip("mkdocs.exceptions")
    from types import SimpleNamespace

    monkeypatch.syspath_prepend(str(DOCS))
    import hooks

    page = SimpleNamespace(file=SimpleNamespace(src_path="jobs.md"))
    assert hooks.on_page_content("<p>fine</p>", page, None, None) == "<p>fine</p>"
    with pytest.raises(exceptions.PluginError, match=r"(?s)jobs.md: its code failed:.*KeyError: 3"):
        hooks.on_page_content("<pre>Traceback (most recent call last): KeyError: 3</pre>", page, None, None)


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    """``strict`` makes every warning an error; nothing is fetched."""
    pytest.importorskip("mkdocs")
    import subprocess

    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for page in (tmp_path / "site").rglob("*.html"):
        html = page.read_text(encoding="utf-8")
        assert not re.search(r"<(script|link|img)[^>]*(src|href)=[\"']?https?:", html), page.name
        assert not re.search(r":(class|func|meth|mod|attr):", html), page.name


def test_places_of_changes_are_there():
    """What CONTRIBUTING says of ten changes: every file is there, and every name in the file it is said to be in."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## Ten changes and where they go")[1].split("\n\n")[1]
    rows = [row.split("|")[2] for row in table.splitlines()[2:]]
    assert len(rows) == 10
    for row in rows:
        found = re.findall(r"`([\w/]+(?:\.py|/))`(?:: `(\w+)`)?", row)
        assert found, row
        for place, name in found:
            path = next((p for p in (ROOT / "pplseq" / place, ROOT / place) if p.exists()), None)
            assert path is not None, place
            assert not name or re.search(rf"\b{name}\b", path.read_text(encoding="utf-8")), (place, name)
