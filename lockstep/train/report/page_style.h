// The report's style sheet and script. The page loads nothing, so both stand in it.
#pragma once

namespace lockstep::internal::inline train {

/// Colours come in pairs, for light and dark: each has a contrast of at least 4.5 to the background and to cards. Paper
/// is light. Lines differ by dashes too.
inline constexpr const char* kPageStyle = R"css(
:root{color-scheme:light dark;--ground:#ffffff;--card:#f4f6f8;--rule:#d5dae0;--text:#1b1f24;--soft:#57606a;
--s0:#0a62a8;--s1:#a84a00;--s2:#0b6b4a;--s3:#85378a;--s4:#5c5f66;--s5:#8a4b4b;--good:#0b6b4a;--warn:#8a5200;--bad:#b3261e}
@media(prefers-color-scheme:dark){:root{--ground:#14171c;--card:#1d2128;--rule:#353b44;--text:#e7eaee;--soft:#a3acb8;
--s0:#68b5f2;--s1:#f0a458;--s2:#4ac79a;--s3:#d79bdc;--s4:#b0b5bd;--s5:#e0a0a0;--good:#4ac79a;--warn:#f0c050;--bad:#ff8a80}}
*{box-sizing:border-box}
body{margin:0 auto;padding:1.2rem;max-width:78rem;background:var(--ground);color:var(--text);
font:16px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}
h1{margin:.3rem 0;font-size:1.7rem;line-height:1.25}
h2{margin:2.2rem 0 .8rem;padding-bottom:.2rem;font-size:1.2rem;border-bottom:1px solid var(--rule)}
h3{margin:0 0 .2rem;font-size:1rem}
p{margin:.3rem 0}
pre,code{font:.86rem/1.45 ui-monospace,monospace}
pre{margin:0;white-space:pre-wrap}
.soft,figcaption,footer,small,dt{color:var(--soft)}
.state{display:inline-block;padding:.05rem .7rem;border:1.5px solid currentColor;border-radius:1rem;font-weight:600}
.finished{color:var(--good)}.running{color:var(--s0)}.stopped{color:var(--warn)}.failed{color:var(--bad)}
.figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(13rem,1fr));gap:.8rem;margin:1rem 0 0}
.figures>div,.finding{padding:.8rem 1rem;background:var(--card);border:1px solid var(--rule);border-radius:.5rem}
.figures dd{margin:0}.figures .value{font-size:1.55rem;font-variant-numeric:tabular-nums}
.finding{margin-bottom:.8rem;border-left:.35rem solid var(--warn)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1.2rem}
figure{margin:0;min-width:0}
svg{display:block;width:100%;height:auto;overflow:visible}
svg:focus-visible{outline:2px solid var(--s0);outline-offset:2px}
.grid{stroke:var(--rule)}.mark{stroke:var(--soft);stroke-dasharray:2 4}
.tick{fill:var(--soft);font:13px system-ui,sans-serif}.name{font:600 14px system-ui,sans-serif}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.line.s0{stroke:var(--s0)}.line.s1{stroke:var(--s1);stroke-dasharray:8 4}.line.s2{stroke:var(--s2);stroke-dasharray:2 3}
.line.s3{stroke:var(--s3);stroke-dasharray:10 3 2 3}.line.s4{stroke:var(--s4);stroke-dasharray:5 5}
.line.s5{stroke:var(--s5);stroke-dasharray:12 4 4 4}
.dot,.name,.part{fill:var(--s0)}.s0.part,.s0.name,.s0.dot{fill:var(--s0)}.s1.part,.s1.name,.s1.dot{fill:var(--s1)}
.s2.part,.s2.name,.s2.dot{fill:var(--s2)}.s3.part,.s3.name,.s3.dot{fill:var(--s3)}
.s4.part,.s4.name,.s4.dot{fill:var(--s4)}.s5.part,.s5.name,.s5.dot{fill:var(--s5)}
.part{stroke:var(--ground);stroke-width:1.5}
.pointer line{stroke:var(--text)}.pointer circle{fill:var(--ground);stroke:var(--text);stroke-width:2}
output{display:block;min-height:1.6rem;font-size:.9rem;font-variant-numeric:tabular-nums}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:.5rem 0;padding:0;list-style:none}
.legend svg{display:inline-block;width:.9rem;height:.9rem;margin-right:.4rem;vertical-align:-.1rem}
.wide{overflow-x:auto}
table{border-collapse:collapse;min-width:min(100%,32rem)}
th,td{padding:.25rem .9rem .25rem 0;border-bottom:1px solid var(--rule);text-align:left;white-space:nowrap}
.number{text-align:right;font-variant-numeric:tabular-nums}
.facts{display:grid;grid-template-columns:minmax(8rem,max-content) minmax(0,1fr);gap:.4rem 1.2rem;margin:0}
.facts dd{margin:0}
summary{margin:.6rem 0;cursor:pointer}
footer{margin-top:2.5rem;font-size:.85rem}
@media(max-width:42rem){.facts{grid-template-columns:1fr}.tick{font-size:19px}.name{font-size:20px}}
@media print{:root{color-scheme:light;--ground:#ffffff;--card:#ffffff;--rule:#bbbbbb;--text:#000000;--soft:#444444;
--s0:#0a62a8;--s1:#a84a00;--s2:#0b6b4a;--s3:#85378a;--s4:#5c5f66;--s5:#8a4b4b;--good:#0b6b4a;--warn:#8a5200;--bad:#b3261e}
body{max-width:none;font-size:10.5pt;padding:0}figure,.finding,.figures>div,tr{break-inside:avoid}
h2,summary{break-after:avoid}.charts{grid-template-columns:1fr 1fr}.figures{grid-template-columns:repeat(4,1fr)}
.tick{font-size:19px}.name{font-size:20px}output,.pointer{display:none}
details::details-content{content-visibility:visible;height:auto}}
)css";

/// Shows the values under a pointer, or those that the arrow keys have come to. All text that it writes is text, not
/// HTML.
inline constexpr const char* kPageScript = R"js(
'use strict';
const json = id => JSON.parse(document.getElementById(id).textContent);
const charts = json('lockstep-charts'), run = json('lockstep-run');
const element = (parent, kind, attributes) => {
  const made = document.createElementNS(parent.namespaceURI, kind);
  for (const name in attributes) made.setAttribute(name, attributes[name]);
  parent.append(made);
};
/* The point of a curve that is nearest to a step; points are step, value, step, value, ... */
const nearest = (points, step) => {
  let low = 0, high = points.length / 2 - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[2 * middle] < step) low = middle; else high = middle;
  }
  const at = step - points[2 * low] < points[2 * high] - step ? low : high;
  return [points[2 * at], points[2 * at + 1]];
};
for (const figure of document.querySelectorAll('[data-chart]')) {
  const {box: [left, top, right, bottom], steps, values, lines} = charts[figure.dataset.chart];
  const svg = figure.querySelector('svg'), pointer = svg.querySelector('.pointer');
  const output = figure.querySelector('output');
  const x = step => left + (step - steps[0]) / (steps[1] - steps[0]) * (right - left);
  const y = value => bottom - (value - values[0]) / (values[1] - values[0]) * (bottom - top);
  let at = null;
  const hide = () => { at = null; pointer.replaceChildren(); output.textContent = ''; };
  const show = step => {
    at = Math.min(steps[1], Math.max(steps[0], step));
    pointer.replaceChildren();
    element(pointer, 'line', {x1: x(at), x2: x(at), y1: top, y2: bottom});
    output.textContent = lines.map(line => {
      const [step, value] = nearest(run[line.part][line.curve].points, at);
      element(pointer, 'circle', {cx: x(step), cy: y(value), r: 4});
      return `${line.name} ${+value.toPrecision(6)} (step ${step})`;
    }).join(' \u00b7 ');
  };
  svg.addEventListener('pointermove', event => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse());
    show(steps[0] + (place.x - left) / (right - left) * (steps[1] - steps[0]));
  });
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('blur', hide);
  svg.addEventListener('keydown', event => {
    const way = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (!way) return;
    event.preventDefault();
    show((at ?? steps[0]) + way * (steps[1] - steps[0]) / 100);
  });
}
)js";

}  // namespace lockstep::internal::train
