"""A real browser without a window, and what it finds wrong with a page: axe-core's violations, and sideways scrolling.

`make browser` brings what it can: selenium, and axe-core by npm into the repository's root (git ignores it), unless PPLSEQ_AXE
names its file. Chromium and its driver come from the system (`apt-get install chromium chromium-driver`).
"""

import importlib.util
import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
AXE = Path(os.environ.get("PPLSEQ_AXE") or ROOT / "node_modules" / "axe-core" / "axe.min.js")
PHONE, DESK = 390, 1200  # pixels
RUN_AXE = """
const done = arguments[0];
axe.run(document).then(found => done(found.violations.map(
  v => `${v.id} (${v.nodes.length}): ${v.nodes[0].html.slice(0, 160)}: ${v.nodes[0].any.map(a => a.message).join('; ')}`)));
"""
# text in drawings, which axe-core does not look at: smallest size on the screen, and worst contrast on the paper
DRAWN_TEXT = """
const lum = c => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map(v => v / 255)
  .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4); return .2126 * r + .7152 * g + .0722 * b };
const paper = lum(getComputedStyle(document.documentElement).backgroundColor);
return [...document.querySelectorAll('svg text')].map(t => { const s = getComputedStyle(t), scale = t.getScreenCTM();
  const ink = lum(s.fill), [hi, lo] = ink > paper ? [ink, paper] : [paper, ink];
  return [t.textContent, parseFloat(s.fontSize) * Math.hypot(scale.a, scale.b), (hi + .05) / (lo + .05)] });
"""


def missing() -> str:
    """All that is not there, and how it is had; empty where pages can be looked at."""
    there = {
        "chromium with its driver: apt-get install chromium chromium-driver": all(
            map(shutil.which, ("chromium", "chromedriver"))
        ),
        "selenium: pip install selenium": importlib.util.find_spec("selenium"),
        f"axe-core at {AXE}: npm install axe-core, or set PPLSEQ_AXE": AXE.is_file(),
    }
    return "; ".join(f"no {what}" for what, found in there.items() if not found)


class Browser:
    """Chromium, with one page after the other."""

    def __init__(self) -> None:
        from selenium import webdriver

        options = webdriver.ChromeOptions()
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
            options.add_argument(argument)
        options.binary_location = shutil.which("chromium") or ""
        self.driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
        self.axe = AXE.read_text(encoding="utf-8")

    def close(self) -> None:
        """End the browser."""
        self.driver.quit()

    def show(self, page: Path, width: int = PHONE, scheme: str = "light") -> None:
        """Open a page with all that is folded unfolded."""
        features = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", features)
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get(page.as_uri())
        self.driver.execute_script("document.querySelectorAll('details').forEach(part => part.open = true)")

    def violations(self) -> list[str]:
        """Of axe-core's rules, all of them, best practices included."""
        self.driver.execute_script(self.axe)
        return self.driver.execute_async_script(RUN_AXE)

    def overhang(self) -> int:
        """Pixels by which the page is wider than its window."""
        return self.driver.execute_script("return document.documentElement.scrollWidth - innerWidth")

    def drawn_text(self) -> list[tuple[str, float, float]]:
        """(text, pixels, contrast) of every label of a drawing."""
        return [tuple(found) for found in self.driver.execute_script(DRAWN_TEXT)]

    def headings(self) -> tuple[list[str], list[str]]:
        """Of the contents list, and of the sections its links lead to."""
        script = (
            "const links = [...document.querySelectorAll('nav a')]; return [links.map(a => a.textContent), "
            "links.map(a => document.querySelector(a.getAttribute('href')).querySelector('h2').lastChild.textContent)]"
        )
        return tuple(self.driver.execute_script(script))


def wrong_with(browser: Browser, page: Path) -> list[str]:
    """All that is wrong with a page, light and dark, on a phone and on a desk."""
    found = []
    for scheme in ("light", "dark"):
        for width in (PHONE, DESK):
            browser.show(page, width, scheme)
            where = f"{page.name}, {scheme}, {width} px"
            found += [f"{where}: {violation}" for violation in browser.violations()]
            if (over := browser.overhang()) > 0:
                found.append(f"{where}: {over} px wider than the window")
            for text, size, contrast in browser.drawn_text():
                if size < 9.5 or contrast < 4.5:
                    found.append(f"{where}: label {text!r} of {size:.1f} px with a contrast of {contrast:.2f}")
    return found
