"""The frame of the page of a comparison: its style, and its small script for hover texts.

The page's content security policy forbids every external resource, and any script but this one.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from html import escape


def page(title: str, sections: Iterable[str]) -> str:
    """A whole HTML document around sections that are already HTML."""
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
{"".join(sections)}
</main>
<div id="tip" role="status" hidden></div>
<script>{SCRIPT}</script>
</body>
</html>
"""


SCRIPT = """
const tip = document.getElementById("tip");
for (const title of document.querySelectorAll("svg title")) {
  title.parentNode.dataset.tip = title.textContent;
  title.remove();
}
document.addEventListener("pointermove", (event) => {
  const mark = event.target.closest("[data-tip]");
  tip.hidden = !mark;
  if (!mark) return;
  tip.textContent = mark.dataset.tip;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
  const above = event.clientY - box.height - 12;
  tip.style.left = Math.max(8, left) + "px";
  tip.style.top = (above < 8 ? event.clientY + 18 : above) + "px";
});
document.addEventListener("pointerleave", () => { tip.hidden = true; });
"""

STYLE = """
:root {
  --bg: #fbfbf9; --panel: #ffffff; --ink: #1c1e23; --soft: #5d626c; --rule: #e6e6e1;
  --grid: #eeeeea; --good: #1f7a55; --bad: #b3341f; --wait: #8a6100;
  --rollout: #3a6fd0; --explore: #e3a321; --train: #c8502f; --score: #8c6bb9;
  --evaluate: #2a978a; --idle: #deded8; --loading: #b3b6bc; --starting: #8d919a;
  --on-colour: #ffffff; --phase: #f1f1ed;
}
@media (prefers-color-scheme: dark) {
  :root {
    --bg: #131418; --panel: #1a1c21; --ink: #e9e9e6; --soft: #a0a5af; --rule: #2c2f36;
    --grid: #25282e; --good: #5cc596; --bad: #f0836b; --wait: #e6b655;
    --rollout: #6b9af0; --explore: #f0bc4e; --train: #e67a5b; --score: #b398d9;
    --evaluate: #4fbdae; --idle: #33363d; --loading: #565b65; --starting: #7a808c;
    --on-colour: #131418; --phase: #24272d;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--bg); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", Arial,
    sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
main { max-width: 1120px; margin: 0 auto; padding: 56px 32px 96px; }
h1, h2, h3, p, figure, ol, dl, dd { margin: 0; padding: 0; }
h1 { font-size: 34px; line-height: 1.2; font-weight: 650; letter-spacing: -0.02em;
  overflow-wrap: anywhere; }
h2 { font-size: 20px; line-height: 1.3; font-weight: 620; letter-spacing: -0.01em; }
h3 { font-size: 14px; line-height: 1.4; font-weight: 600; }
.soft { color: var(--soft); }
.over { font-size: 13px; color: var(--soft); margin-bottom: 6px; }
header .about { color: var(--soft); max-width: 70ch; margin-top: 10px; }
.title { display: flex; flex-wrap: wrap; align-items: center; gap: 8px 16px; }
section { margin-top: 64px; }
section > h2 + p { color: var(--soft); margin-top: 4px; max-width: 72ch; }
.charts { display: grid; grid-template-columns: 1fr 1fr; gap: 48px 56px; margin-top: 28px; }
figure { min-width: 0; }
figcaption p { font-size: 13px; color: var(--soft); }
.plot { padding: 18px 10px 0 44px; }
svg { display: block; }
svg text { font-size: 12px; fill: var(--soft); }
svg text.y { text-anchor: end; } svg text.x { text-anchor: middle; }
svg text.start { text-anchor: start; } svg text.end { text-anchor: end; }
.grid { stroke: var(--grid); } .base { stroke: var(--rule); stroke-width: 1.5; }
.l { fill: none; stroke: var(--c); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round;
  vector-effect: non-scaling-stroke; }
.b { fill: var(--c); opacity: 0.13; }
.f { fill: var(--c); }
.dot { stroke: var(--bg); stroke-width: 1.5; }
.hit { fill: transparent; }
.hidden { visibility: hidden; fill: var(--ink); }
.mark:hover .hidden { visibility: visible; }
.c-rollout { --c: var(--rollout); } .c-explore { --c: var(--explore); }
.c-train { --c: var(--train); } .c-score { --c: var(--score); }
.c-evaluate { --c: var(--evaluate); } .c-idle { --c: var(--idle); }
.c-loading { --c: var(--loading); } .c-starting { --c: var(--starting); }
.c-lost { --c: var(--bad); } .c-phase { --c: var(--phase); }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 13px; color: var(--soft);
  margin-top: 8px; list-style: none; padding: 0; }
.legend li { display: flex; align-items: center; gap: 7px; }
.legend li::before { content: ""; width: 11px; height: 11px; border-radius: 3px;
  background: var(--c); }
.legend li.line::before { height: 3px; width: 16px; }
.scroll { overflow: auto; max-height: 460px; margin-top: 20px; border-top: 1px solid var(--rule);
  border-bottom: 1px solid var(--rule); }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th { position: sticky; top: 0; background: var(--bg); text-align: left; font-weight: 500;
  font-size: 13px; color: var(--soft); }
th, td { padding: 8px 20px 8px 0; vertical-align: top; }
tr + tr td { border-top: 1px solid var(--grid); }
td:first-child, th:first-child { text-align: right; width: 76px; color: var(--soft); }
td:nth-child(2) { white-space: nowrap; }
td:last-child { overflow-wrap: anywhere; }
.plain td:first-child, .plain th:first-child { text-align: left; width: auto; }
footer { margin-top: 64px; font-size: 13px; color: var(--soft); }
#tip { position: fixed; pointer-events: none; background: var(--ink); color: var(--bg);
  font-size: 13px; line-height: 1.4; padding: 5px 10px; border-radius: 6px; max-width: 300px;
    white-space: pre-line; z-index: 1; }
#tip[hidden] { display: none; }
@media (max-width: 860px) {
  .charts { grid-template-columns: 1fr; gap: 40px; }
}
@media (max-width: 560px) {
  main { padding: 32px 18px 64px; }
  h1 { font-size: 27px; }
  section { margin-top: 48px; }
  th, td { padding-right: 12px; } td:first-child, th:first-child { width: 52px; }
}
@media (max-width: 560px) { td:nth-child(2) { white-space: normal; } }
@media print { .scroll { max-height: none; } section { break-inside: avoid; } }
"""
