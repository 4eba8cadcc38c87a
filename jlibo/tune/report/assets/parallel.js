// Parallel coordinates: one axis for each parameter and one for the score. A range on an axis filters trials.
const SCORE = -1; // the axis of scores, beside the numbers of the parameters
const MOST_LINES = 3000;
const BELOW = -0.07; // where a parameter that is off is drawn

function drawParallel(root) {
  const focused = root.contains(document.activeElement) ? document.activeElement.dataset.axis : null;
  const axes = [...data.shown, SCORE];
  const own = scored.filter((trial) => state.task === null || trials.task[trial] === state.task);
  const isCut = own.length > MOST_LINES;
  const some = [...own].sort((a, b) => ranks[b] - ranks[a]).slice(0, MOST_LINES).reverse();
  const scales = axes.map((axis) => (axis === SCORE ? scoreScale(own.map(shownValue), 5) : scaleOf(axis, 5)));
  const width = Math.max(root.clientWidth, 92 * axes.length);
  const [height, top, bottom, side] = [380, 44, 34, 46];
  const svg = shape(document.createDocumentFragment(), "svg", { width, height, role: "group", "aria-label": `Parallel coordinates of ${some.length} trials.` });
  const xs = axes.map((_, place) => side + (place * (width - 2 * side)) / Math.max(1, axes.length - 1));
  const y = (v) => top + (1 - v) * (height - top - bottom);
  const unitOf = (place, trial) => {
    if (axes[place] === SCORE) return scales[place].unit(shownValue(trial));
    const u = placeOf(axes[place], scales[place], trial);
    return u === null ? BELOW : u;
  };
  const units = new Map(some.map((trial) => [trial, axes.map((_, place) => unitOf(place, trial))]));
  const passes = (trial) =>
    axes.every((axis, place) => {
      const range = state.ranges.get(axis);
      const u = units.get(trial)[place];
      return !range || (u >= range[0] && u <= range[1]);
    });
  const pathOf = (trial) => units.get(trial).map((u, place) => `${place ? "L" : "M"}${xs[place].toFixed(1)} ${y(u).toFixed(1)}`).join("");
  const kept = some.filter(passes);
  const keptSet = new Set(kept);
  const lost = some.filter((trial) => !keptSet.has(trial));
  const lines = shape(svg, "g", { class: "lines" });
  if (lost.length) shape(lines, "path", { d: lost.map(pathOf).join(""), class: "line dim" });
  for (let colour = 0; colour < BUCKETS; colour += 1) {
    const now = kept.filter((trial) => bucket(trial) === colour);
    if (now.length) shape(lines, "path", { d: now.map(pathOf).join(""), class: `line q${colour}`, "data-count": now.length });
  }
  if (state.trial !== null && units.has(state.trial)) shape(lines, "path", { d: pathOf(state.trial), class: "line selected" });

  axes.forEach((axis, place) => drawAxis(svg, { axis, x: xs[place], y, scale: scales[place], top, bottom, height, place, last: axes.length - 1 }));
  const nearest = (event) => {
    const [px, py] = localPoint(svg, event);
    const right = Math.min(axes.length - 1, Math.max(1, xs.findIndex((x) => x >= px)));
    const share = (px - xs[right - 1]) / (xs[right] - xs[right - 1]);
    let [found, least] = [null, 10];
    for (const trial of kept) {
      const us = units.get(trial);
      const distance = Math.abs(y(us[right - 1] + share * (us[right] - us[right - 1])) - py);
      if (distance <= least) [found, least] = [trial, distance];
    }
    return found;
  };
  lines.setAttribute("pointer-events", "none");
  svg.addEventListener("pointermove", (event) => {
    if (event.buttons || event.target.dataset.axis !== undefined) return hideTip();
    const trial = nearest(event);
    if (trial === null) hideTip();
    else showTip(event, trialText(trial));
  });
  svg.addEventListener("pointerleave", hideTip);
  let wasPressed = false; // a drag along an axis ends with a click that is not meant for a line
  svg.addEventListener("pointerdown", (event) => (wasPressed = event.target.dataset.axis === undefined));
  svg.addEventListener("click", (event) => {
    if (!wasPressed) return;
    const trial = nearest(event);
    if (trial !== null) select(state.task, trial);
  });
  root.replaceChildren(svg);
  if (focused !== null) root.querySelector(`[data-axis="${focused}"]`).focus();

  const said = document.getElementById("parallel-words");
  const cut = isCut ? `, the best ${MOST_LINES.toLocaleString("en")} of ${own.length.toLocaleString("en")}` : "";
  said.textContent = `${kept.length} of ${some.length} trials${cut}.`;
  document.getElementById("parallel-clear").hidden = state.ranges.size === 0;
  const best = kept.slice(-5).reverse();
  document.getElementById("parallel-best").replaceChildren(
    ...best.map((trial) =>
      element(
        "li",
        {},
        element("button", { class: "link", type: "button", onclick: () => select(state.task, trial) }, `${data.tasks[trials.task[trial]].name}, trial ${trials.number[trial]}`),
        ` ${format(trials.score[trial])}`,
      ),
    ),
  );
}

function axisName(axis) {
  return axis === SCORE ? (state.view === "rank" ? "place" : "score") : data.parameters[axis].name;
}

function drawAxis(svg, { axis, x, y, scale, top, bottom, height, place, last }) {
  const group = shape(svg, "g", { class: "axes" });
  shape(group, "line", { x1: x, x2: x, y1: y(0), y2: y(1), class: "axis" });
  const anchor = place === last ? "end" : "start";
  for (const tick of scale.ticks) {
    shape(group, "line", { x1: x - 3, x2: x + 3, y1: y(tick.at), y2: y(tick.at), class: "tick" });
    shape(group, "text", { x: place === last ? x - 7 : x + 7, y: y(tick.at) + 4, class: `tick-text halo ${anchor}` }, tick.text);
  }
  shape(group, "text", { x, y: top - 18, class: "title middle" }, shortened(axisName(axis), 15));
  const range = state.ranges.get(axis);
  if (range) shape(group, "rect", { x: x - 9, width: 18, y: y(range[1]), height: Math.max(2, y(range[0]) - y(range[1])), class: "range" });
  const label = `Filter by ${axisName(axis)}. Drag, or use the arrow keys to move the range, plus and minus to change it, Escape to clear it.`;
  const handle = shape(group, "rect", { x: x - 14, width: 28, y: top - 8, height: height - top - bottom + 16, class: "handle", tabindex: 0, role: "slider", "aria-label": label, "aria-valuetext": range ? "filtered" : "all values", "data-axis": axis });
  const unitAt = (event) => Math.min(1, Math.max(0, (y(0) - localPoint(svg, event)[1]) / (y(0) - y(1))));
  handle.addEventListener("pointerdown", (event) => {
    const start = unitAt(event);
    const preview = shape(group, "rect", { x: x - 9, width: 18, y: y(start), height: 1, class: "range" });
    const move = (moved) => {
      const [low, high] = [start, unitAt(moved)].sort((a, b) => a - b);
      preview.setAttribute("y", y(high));
      preview.setAttribute("height", Math.max(1, y(low) - y(high)));
    };
    const stop = (last) => {
      window.removeEventListener("pointermove", move);
      window.removeEventListener("pointerup", stop);
      window.removeEventListener("pointercancel", stop);
      const [low, high] = [start, unitAt(last)].sort((a, b) => a - b);
      if (high - low < 0.015) state.ranges.delete(axis);
      else state.ranges.set(axis, [low, high]);
      redraw();
    };
    // On the window, because a drag may leave the axis.
    window.addEventListener("pointermove", move);
    window.addEventListener("pointerup", stop);
    window.addEventListener("pointercancel", stop);
  });
  handle.addEventListener("keydown", (event) => {
    const [low, high] = range || [0.5, 1];
    const moves = { ArrowUp: [0.05, 0.05], ArrowDown: [-0.05, -0.05], "+": [-0.05, 0.05], "-": [0.05, -0.05] };
    if (event.key === "Escape") state.ranges.delete(axis);
    else if (event.key in moves) {
      const [down, up] = range ? moves[event.key] : [0, 0];
      if (low + down < high + up) state.ranges.set(axis, [Math.max(0, low + down), Math.min(1, high + up)]);
    } else return;
    event.preventDefault();
    redraw();
  });
}
