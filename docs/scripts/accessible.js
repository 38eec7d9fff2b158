/* What the theme's pages lack for readers who listen to them, or move by the keyboard. Each change is made once: an observer that
   answered every change with one of its own would never end. */
document.addEventListener("DOMContentLoaded", () => {
  const all = (what, change) => document.querySelectorAll(what).forEach(change);
  const name = (part, label) => { if (part.getAttribute("aria-label") !== label) part.setAttribute("aria-label", label); };
  all(".md-search", (part) => name(part, "Search"));
  all("input.md-toggle", (part) => { part.setAttribute("aria-hidden", "true"); part.tabIndex = -1; });
  all("nav.md-nav nav.md-nav", (part) => {
    ["aria-label", "aria-labelledby", "aria-expanded"].forEach((attribute) => part.removeAttribute(attribute));
    part.setAttribute("role", "none");
  });
  all("th:empty", (part) => part.replaceWith(document.createElement("td")));
  const again = () => {
    all("pre > code:not([tabindex])", (part) => { part.tabIndex = 0; });
    all(".md-typeset__scrollwrap", (part) => {  // where the window is narrow
      const stop = part.scrollWidth > part.clientWidth ? 0 : -1;
      if (part.tabIndex !== stop) part.tabIndex = stop;
    });
    all(".md-code__nav", (part, place) => name(part, `Code ${place + 1}`));
  };
  again();
  new MutationObserver(again).observe(document.body, { attributeFilter: ["tabindex"], childList: true, subtree: true });
  window.addEventListener("resize", again);
});
