"""How the page looks: one style sheet, for light and dark, phone and desk."""

from __future__ import annotations

__all__ = ["CSS"]

CSS = """
:root{color-scheme:light dark;--page:#fbfbfa;--card:#fff;--ink:#1c1e21;--c-muted:#5f666e;
--rule:#e3e4e6;--c-wait:#d1495b;--c-startup:#e8a33d;--c-loop:#2f7fb8;--c-outside:#d9dce0;
--c-fetch:#2f7fb8;--c-collate:#3a9d7e;--c-encode:#9b6fc4;
--c-restart:#8b1e9b;--c-bad:#b3541e;--c-warning:#c79100;
--c-run-0:#2f7fb8;--c-run-1:#d1495b;--c-run-2:#3a9d7e;--c-run-3:#b8860b;
--c-run-4:#9b6fc4;--c-run-5:#1f9aa5;--c-run-6:#c2537f;--c-run-7:#6f7a35}
@media (prefers-color-scheme:dark){:root{--page:#16181b;--card:#1e2125;--ink:#e8e9eb;
--c-muted:#a2a9b2;--rule:#34383e;--c-wait:#ef6f80;--c-startup:#f0b65a;--c-loop:#5aa6dc;
--c-outside:#3b4047;--c-fetch:#5aa6dc;--c-collate:#57bd9c;--c-encode:#b794dd;
--c-restart:#d883e6;--c-bad:#e8894f;--c-warning:#e3b53a;
--c-run-0:#5aa6dc;--c-run-1:#ef6f80;--c-run-2:#57bd9c;--c-run-3:#e3b53a;
--c-run-4:#b794dd;--c-run-5:#4fc4cf;--c-run-6:#e58fb1;--c-run-7:#b3bf6a}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1180px;padding:28px 24px 60px;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:26px;line-height:1.25;margin:0 0 18px}h1 small{font-weight:400;font-size:16px;
color:var(--c-muted);margin-left:8px;overflow-wrap:anywhere}
h2{font-size:18px;margin:30px 0 2px}h3{font-size:15px;margin:0 0 4px;overflow-wrap:anywhere}
.note{color:var(--c-muted);font-size:13.5px;margin:2px 0 6px}
.runs{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr));gap:16px}
.card{background:var(--card);border:1px solid var(--rule);border-left-width:5px;border-radius:8px;
padding:16px 20px;min-width:0}
.card.ranks{margin-bottom:16px}
.card p{margin:8px 0 0;overflow-wrap:anywhere}.card .verdict{font-size:18px;line-height:1.4;
margin:2px 0 12px}
.good{border-left-color:var(--c-collate)}.poor{border-left-color:var(--c-startup)}
.bad{border-left-color:var(--c-wait)}
.tiles{display:flex;flex-wrap:wrap;gap:10px 34px;margin:0 0 10px}
.tiles dt{color:var(--c-muted);font-size:12.5px}
.tiles dd{margin:0;font-size:19px;font-weight:600;font-variant-numeric:tabular-nums}
.zoom{position:absolute;opacity:0;pointer-events:none}
.zooms{display:flex;align-items:center;gap:6px;margin:26px 0 0;font-size:13.5px;
color:var(--c-muted)}
.zooms label{border:1px solid var(--rule);border-radius:6px;padding:5px 12px;cursor:pointer;
background:var(--card);color:var(--ink)}
#zoom-1:checked~.zooms [for=zoom-1],#zoom-4:checked~.zooms [for=zoom-4],
#zoom-16:checked~.zooms [for=zoom-16]{background:var(--ink);color:var(--page)}
.zoom:focus-visible~.zooms label{outline:2px solid var(--c-loop)}
.timeline{overflow-x:auto;overflow-y:hidden;margin:0 -6px;padding:0 6px;scrollbar-width:thin}
.canvas{width:100%;padding-bottom:4px}
#zoom-4:checked~.timeline .canvas{width:400%}#zoom-16:checked~.timeline .canvas{width:1600%}
.stay{position:sticky;left:0;width:min(calc(100vw - 48px),1132px)}
.canvas .stay:first-child h2{margin-top:12px}
.label{font-size:13px;color:var(--c-muted);margin:8px 0 0;overflow-wrap:anywhere}
.plot{position:relative;display:grid;height:190px;background:var(--card);
border:1px solid var(--rule);
border-radius:8px;padding:18px 0 26px}.plot>svg,.plot>.ys{grid-area:1/1;min-height:0}
.label+.plot{height:150px}.plot+.label{margin-top:12px}
svg{display:block;width:100%;height:100%}
.grid{stroke:var(--rule);stroke-width:1;vector-effect:non-scaling-stroke}
.line{fill:none;stroke-width:2;stroke-linejoin:round;vector-effect:non-scaling-stroke}
.limit{stroke:var(--c-muted);stroke-width:1.3;stroke-dasharray:5 4;
vector-effect:non-scaling-stroke}
.hit{fill:transparent}.hit:hover{fill:var(--ink);fill-opacity:.1}
.ys{position:sticky;left:0;width:1px;justify-self:start;pointer-events:none}
.ys span{position:absolute;left:0;padding:0 4px;border-radius:0 4px 4px 0;background:var(--card);
opacity:.9}
.ys span,.xs span{font-size:12px;line-height:1.3;color:var(--c-muted);white-space:nowrap;
font-variant-numeric:tabular-nums}
.xs{position:absolute;inset:auto 0 5px 0;height:17px;pointer-events:none}
.xs span{position:absolute;padding-left:6px;border-left:1px solid var(--rule)}
.xs .end{padding:0 6px 0 0;border-left:0;border-right:1px solid var(--rule)}
.xs .fine{display:none}
#zoom-4:checked~.timeline .fine,#zoom-16:checked~.timeline .fine{display:inline}
.mark{position:absolute;top:18px}
.mark.line{width:0;bottom:26px;border-left:1px dotted var(--ink);opacity:.6}
.mark.triangle{top:3px;width:12px;height:12px;margin-left:-6px;
clip-path:polygon(0 0,100% 0,50% 100%)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:0 0 8px;font-size:13.5px}
.legend span{overflow-wrap:anywhere;min-width:0}
.legend i,.label i{display:inline-block;width:12px;height:12px;border-radius:2px;margin-right:6px;
vertical-align:-1px}
.legend i.triangle{clip-path:polygon(0 0,100% 0,50% 100%);border-radius:0}
.legend i.line{width:0;border-radius:0;border-left:2px dotted var(--ink)}
.bar{display:inline-block;width:120px;height:10px;border-radius:2px;background:var(--rule);
margin-right:10px}
.bar i{display:block;height:10px;border-radius:2px;background:var(--c-loop)}
td small{color:var(--c-muted)}
.scroll{overflow-x:auto;margin:6px 0 14px}
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:5px 18px 5px 0;border-bottom:1px solid var(--rule);
vertical-align:top}
td{min-width:6.5em;max-width:46em}td.text{overflow-wrap:break-word}
thead th{color:var(--c-muted);font-weight:600;min-width:6.5em;max-width:22em;
overflow-wrap:anywhere}
tbody th{font-weight:400;white-space:nowrap}
details{margin-top:26px;border-top:1px solid var(--rule);padding-top:14px}
.runs+details{margin-top:16px}
summary{cursor:pointer;font-weight:600;font-size:18px;margin-bottom:12px;overflow-wrap:anywhere}
code{font:13px ui-monospace,monospace;overflow-wrap:anywhere}
@media (max-width:640px){body{padding:18px 14px 40px}h1{font-size:22px}
h1 small{display:block;margin:2px 0 0;font-size:14px}.card{padding:14px 14px}
.card .verdict{font-size:16.5px}.stay{width:calc(100vw - 28px)}.bar{width:64px}
table{font-size:13px}th,td{padding-right:8px}td,thead th{min-width:4.2em}
tbody th{white-space:normal}
.tiles{gap:8px 22px}.tiles dd{font-size:17px}.plot{height:170px}}
@media print{.zooms{display:none}}
"""
