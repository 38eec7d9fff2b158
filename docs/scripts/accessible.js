/* What the theme's pages lack for readers who listen to them, or move by the keyboard. */
document.addEventListener("DOMContentLoaded", () => {
  const all = (what, change) => document.querySelectorAll(what).forEach(change);
  const name = (what, label) => all(what, (part) => part.setAttribute("aria-label", label));
  name(".md-search", "Search");
  all("input.md-toggle", (part) => { part.setAttribute("aria-hidden", "true"); part.tabIndex = -1; });
  all("nav.md-nav nav.md-nav", (part) => part.setAttribute("role", "group"));
  all("th:empty", (part) => part.replaceWith(document.createElement("td")));
  const buttons = () => all(".md-code__nav", (part, place) => {
    const label = `Code ${place + 1}`;  // an observer: what answers with a change of its own would never end
    if (part.getAttribute("aria-label") !== label) part.setAttribute("aria-label", label);
  });
  buttons();
  new MutationObserver(buttons).observe(document.body, { childList: true, subtree: true });
});
