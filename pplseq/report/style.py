"""The page's style sheet: one column, rules as in printed tables, light and dark."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fdfcf9; --ink: #1d1c1a; --muted: #6a665e; --rule: #d8d3c7; --faint: #efece4;
  --accent: #1d5a7a; --second: #7a5c1d; --train: #8d887d; --heat: #1d5a7a; --hot: 200 82 36; --wash: .7; --base: 40%;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #16171a; --ink: #e4e1d9; --muted: #a09b90; --rule: #3a3a3c; --faint: #222327;
    --accent: #7fbfe0; --second: #d9b56c; --train: #8a867d; --heat: #7fbfe0; --hot: 236 122 70; --wash: .48; --base: 44%;
  }
}
* { box-sizing: border-box }
html { background: var(--paper); color: var(--ink); -webkit-text-size-adjust: 100% }
body {
  max-width: 54rem; margin: 0 auto; padding: 3.2rem 1.4rem 5rem;
  font: 1rem/1.5 Charter, "Bitstream Charter", "Iowan Old Style", "Palatino Linotype", "Source Serif 4", "STIX Two Text",
    Georgia, "DejaVu Serif", serif;
  font-variant-numeric: lining-nums;
}
h1, .lead, dt, figcaption, td.k + td.l { overflow-wrap: anywhere } td { overflow-wrap: break-word }
h1 { font-size: 1.9rem; line-height: 1.2; font-weight: 600; margin: 0 0 .5rem; letter-spacing: -.01em }
h2 { font-size: 1.18rem; font-weight: 600; margin: 3.2rem 0 .5rem; padding-top: .9rem; border-top: 1px solid var(--rule) }
h2 .n { color: var(--muted); font-weight: 400; margin-right: .55em }
h3 { font-size: 1rem; font-weight: 600; font-style: italic; margin: 1.8rem 0 .3rem }
p { margin: .5rem 0; max-width: 44rem; hyphens: auto }
.lead { color: var(--muted); font-size: 1.06rem; max-width: 42rem }
.notice { border-left: 3px solid rgb(var(--hot)); padding-left: .8rem }
nav.contents ol { display: flex; flex-wrap: wrap; gap: .1rem 1.5rem; list-style: none; margin: 1.6rem 0 0; padding: .5rem 0 0;
  counter-reset: n; font-size: .9rem; border-top: 1px solid var(--rule) }
nav.contents li::before { counter-increment: n; content: counter(n) "\\2002"; color: var(--muted) }
a { color: var(--accent) } :focus-visible { outline: 2px solid var(--accent); outline-offset: 2px }
.keys { display: flex; flex-wrap: wrap; gap: .6rem 2.6rem; margin: 1.6rem 0 0; padding: 0 }
.keys div { display: flex; flex-direction: column-reverse }
.keys dt { color: var(--muted); font-size: .84rem }
.keys dd { margin: 0; font-size: 1.65rem; line-height: 1.15; font-variant-numeric: lining-nums tabular-nums }
figure { margin: 1.4rem 0 .6rem }
figcaption, .caption { font-size: .88rem; line-height: 1.42; color: var(--muted); text-align: left; max-width: 44rem }
figcaption { margin-top: .5rem }
figcaption b, .caption b { color: var(--ink); font-weight: 600 }
svg { display: block; width: 100%; height: auto; overflow: visible }
svg text, .strip { font-family: system-ui, "Helvetica Neue", Arial, "DejaVu Sans", sans-serif }
figure svg { max-width: none }
svg text { font-variant-numeric: tabular-nums }
.tick { font-size: 11px; fill: var(--muted) } .name { fill: var(--ink) } .label { font-size: 11.5px; fill: var(--muted) }
.grid { stroke: var(--rule); stroke-width: .7 } .axis { stroke: var(--muted); stroke-width: .8 }
.train { fill: none; stroke: var(--train); stroke-width: 1; opacity: .85 }
.train-dot { fill: var(--train) } .train-text { fill: var(--train) }
.valid0 { fill: none; stroke: var(--accent); stroke-width: 1.6 } .valid0-dot { fill: var(--accent) }
.valid1 { fill: none; stroke: var(--second); stroke-width: 1.6 } .valid1-dot { fill: var(--second) }
.valid0-best { fill: var(--paper); stroke: var(--accent); stroke-width: 1.8 }
.valid1-best { fill: var(--paper); stroke: var(--second); stroke-width: 1.8 }
svg text.valid0-text { fill: var(--accent); font-size: 11.5px } svg text.valid1-text { fill: var(--second); font-size: 11.5px }
svg text.train-text { fill: var(--muted) }
.drop { fill: var(--muted); opacity: .55 }
.field { fill: var(--faint) } .heat { fill: var(--heat) } .row { fill: transparent }
g:hover > .row { fill: var(--faint) } .bar { fill: var(--train); opacity: .75 }
.hot { fill: rgb(var(--hot) / calc(.25 + .75 * var(--s))) }
.mark { stroke: var(--ink); stroke-width: .9; stroke-dasharray: 3 2 }
.wide { overflow-x: auto; max-width: 100% }
table { border-collapse: collapse; width: 100%; margin: 1.2rem 0; font-size: .9rem; line-height: 1.38;
  border-top: 1.5px solid var(--ink); border-bottom: 1.5px solid var(--ink) }
figcaption + .wide table { margin-top: .45rem }
th { font-weight: 600; text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: .8px solid var(--ink);
  vertical-align: bottom }
td { padding: .28rem .8rem .28rem 0; vertical-align: top; border-bottom: .5px solid var(--rule) }
tr:last-child td { border-bottom: 0 }
th:last-child, td:last-child { padding-right: 0 }
.r, .k { white-space: nowrap } th.r, td.r { text-align: right } td.r, td.k { font-variant-numeric: lining-nums tabular-nums }
small { font-size: .82em; color: var(--muted); font-variant-numeric: lining-nums tabular-nums; white-space: nowrap }
.states th:nth-child(3) { width: 30% } .states th:nth-child(4) { width: 34% }
.states th:nth-child(5), .blocks th:nth-child(6) { width: 19% } .states, .blocks { min-width: 40rem }
.w { background: var(--faint); border-radius: 3px; padding: 0 .22em; margin-left: -.1em }
.context { color: var(--muted); font-size: .94em } .context b { color: var(--ink); font-weight: 600 }
.context + .context { margin-top: .15rem }
.swatch { display: inline-block; width: .7em; height: .7em; margin-right: .45em; border-radius: 2px }
.state { background: hsl(var(--h) 46% calc(var(--base) + 24% * var(--k))) }
.share { display: inline-block; height: .55em; background: var(--train); opacity: .75; margin-right: .4em }
.strip { display: flex; gap: 3px; font-size: .76rem; line-height: 1.4; margin: 1rem 0 .3rem; min-width: max-content }
.strip > div { min-width: 3.6rem; display: flex; flex-direction: column }
.strip .labels { width: 5.6rem; color: var(--muted); text-align: right; padding-right: .6rem }
.word { padding: .22rem .4rem; text-align: center; font-size: .92rem; line-height: 1.35rem; white-space: nowrap;
  background: rgb(var(--hot) / calc(var(--wash) * var(--s)));
  border-bottom: 2px solid rgb(var(--hot) / calc(.25 + .75 * var(--s))) }
.unknown bdi { text-decoration: underline dotted; text-underline-offset: 3px }
.value { text-align: center; color: var(--muted); font-variant-numeric: tabular-nums; white-space: nowrap }
.ink { color: var(--ink) } .ink small { font-size: .92em } .stack + .value { padding-top: .2rem }
.stack { height: 4.6rem; background: var(--faint); display: flex; flex-direction: column-reverse; margin-top: .2rem }
.stack i { display: block; border-top: 1px solid var(--paper) }
.labels .word { background: none; border-color: transparent; padding: .22rem 0; text-align: right; font-size: inherit }
.labels .stack { background: none } .labels .value { text-align: right }
.written { max-width: 44rem; hyphens: none; padding-left: 1.2em; text-indent: -1.2em; overflow-wrap: anywhere }
.facts { color: var(--muted); font-size: .88rem; font-variant-numeric: lining-nums }
details { margin: .6rem 0 1.4rem } summary { cursor: pointer; color: var(--muted); font-size: .88rem }
footer { margin-top: 3.5rem; color: var(--muted); font-size: .84rem; border-top: 1px solid var(--rule); padding-top: .8rem }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt } h2, figure, tr, .strip { break-inside: avoid }
  details { display: none }
  .state, .word, .stack, .share { print-color-adjust: exact; -webkit-print-color-adjust: exact }
}
"""
