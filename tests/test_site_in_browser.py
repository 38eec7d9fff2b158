"""The documentation in a real browser, opened from a folder: it is searched, and axe-core finds nothing wrong with any page."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.browser import DESK, PHONE

pytestmark = pytest.mark.browser
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(browser, tmp_path_factory):
    pytest.importorskip("mkdocs", reason="no mkdocs: pip install -e .[plot,docs]")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", folder], cwd=ROOT, check=True)
    return folder


def test_a_word_that_is_searched_is_found(site, browser):
    browser.show(site / "index.html", DESK)
    look = (
        "const field = document.querySelector('.md-search__input'); field.focus(); field.value = arguments[0]; "
        "field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true})); "
        "return [...document.querySelectorAll('.md-search-result__item a')].map(link => link.getAttribute('href'))"
    )
    found, end = [], time.monotonic() + 30
    while not found and time.monotonic() < end:
        found = browser.driver.execute_script(look, "viterbi")
        time.sleep(0.2)
    assert any("chains.html" in link for link in found), found


ELSEWHERE = "return performance.getEntriesByType('resource').map(e => e.name).filter(name => !/^(file|data|blob):/.test(name))"


@pytest.mark.parametrize("width", [PHONE, DESK])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_wrong_with_any_page(site, browser, scheme, width):
    found = {}
    for page in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # which only a server shows, with its files
        browser.show(page, width, scheme)
        browser.driver.execute_script("localStorage.clear()")  # where the theme keeps the colours of the last page
        browser.show(page, width, scheme)
        time.sleep(0.5)  # the theme makes what scrolls focusable a moment later
        wrong = browser.violations() + browser.driver.execute_script(ELSEWHERE)
        if (over := browser.overhang()) > 0:
            wrong.append(f"{over} px wider than the window")
        if wrong:
            found[str(page.relative_to(site))] = wrong
    assert not found, found
