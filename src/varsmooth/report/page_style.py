"""The look of the page: readable on a phone and on a wide screen, by day and by night."""

STYLE = """
:root {
  --ground: #ffffff; --ink: #222222; --quiet: #63676f; --line: #dddddd; --raised: #f5f6f8; --accent: #0072b2;
}
@media (prefers-color-scheme: dark) {
  :root { --ground: #16181d; --ink: #e6e6e6; --quiet: #a0a6b1; --line: #3a3f4a; --raised: #20242c; --accent: #56b4e9; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0.5rem 0 1rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.75rem; }
h3 { font-size: 1rem; margin: 1.25rem 0 0.5rem; }
p { max-width: 46rem; }
.quiet { color: var(--quiet); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: 0.4rem 0.75rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 600; font-size: 0.85rem; vertical-align: bottom; }
th.number, td.number { text-align: right; white-space: nowrap; }
th.number { white-space: normal; }
td.name { overflow-wrap: anywhere; min-width: 8rem; }
td.best { font-weight: 700; color: var(--accent); }
img { max-width: 100%; height: auto; border-radius: 6px; }
details { background: var(--raised); border-radius: 6px; margin: 0.5rem 0; padding: 0.6rem 1rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1rem; }
dt { color: var(--quiet); }
dd { margin: 0; overflow-wrap: anywhere; }
pre { overflow-x: auto; font-size: 0.85rem; line-height: 1.45; }
figure { margin: 0.75rem 0; }
blockquote { margin: 0; padding: 0.25rem 0 0.25rem 0.9rem; border-left: 3px solid var(--accent); }
figcaption { color: var(--quiet); font-size: 0.85rem; padding-left: 1.05rem; }
@media print { details { break-inside: avoid; } }
"""
