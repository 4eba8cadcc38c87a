// Axes and the plots made of them: progress, importance, slices, pairs, and what the model believes.
const tip = document.getElementById("tip");

function showTip(event, text) {
  tip.textContent = text;
  tip.hidden = false;
  const box = tip.getBoundingClientRect();
  const left = Math.min(event.clientX + 14, window.innerWidth - box.width - 8);
  const below = event.clientY + 14 + box.height < window.innerHeight;
  tip.style.left = `${Math.max(8, left)}px`;
  tip.style.top = `${below ? event.clientY + 14 : Math.max(8, event.clientY - box.height - 10)}px`;
}

function hideTip() {
  tip.hidden = true;
}

// An SVG with axes. `at` maps a point of the unit square to pixels; `paper` is what to draw on.
function frame(root, { height, x, y, xTitle = "", yTitle = "", label, left = 54, right = 12, top = 10, bottom = 40 }) {
  root.replaceChildren();
  const width = Math.max(160, root.clientWidth);
  const svg = shape(root, "svg", { width, height, role: "img", "aria-label": label });
  const inner = { width: width - left - right, height: height - top - bottom };
  const at = (u, v) => [left + u * inner.width, top + (1 - v) * inner.height];
  const axes = shape(svg, "g", { class: "axes" });
  let end = -Infinity; // labels that would overlap are left out
  for (const tick of x ? x.ticks : []) {
    const [px, py] = at(tick.at, 0);
    shape(axes, "line", { x1: px, x2: px, y1: py, y2: py + 4, class: "tick" });
    const half = tick.text.length * 3.3;
    const place = Math.min(Math.max(px, half + 2), width - half - 2);
    if (place - half < end + 4) continue;
    end = place + half;
    shape(axes, "text", { x: place, y: py + 16, class: "tick-text middle" }, tick.text);
  }
  for (const tick of y ? y.ticks : []) {
    const [px, py] = at(0, tick.at);
    shape(axes, "line", { x1: px, x2: px + inner.width, y1: py, y2: py, class: "grid" });
    shape(axes, "text", { x: px - 6, y: py + 4, class: "tick-text end" }, tick.text);
  }
  const [x0, y0] = at(0, 0);
  shape(axes, "line", { x1: x0, x2: x0 + inner.width, y1: y0, y2: y0, class: "axis" });
  if (xTitle) shape(axes, "text", { x: x0 + inner.width / 2, y: height - 5, class: "title middle" }, xTitle);
  if (yTitle) shape(axes, "text", { transform: `translate(11 ${top + inner.height / 2}) rotate(-90)`, class: "title middle" }, yTitle);
  return { svg, at, inner, left, top, paper: shape(svg, "g", {}) };
}

function localPoint(svg, event) {
  const box = svg.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

// Many points as one path: lines of length zero with round ends.
function dots(parent, points, attributes) {
  if (points.length === 0) return;
  const path = points.map(([x, y]) => `M${x.toFixed(1)} ${y.toFixed(1)}h0`).join("");
  shape(parent, "path", { ...attributes, d: path, "data-count": points.length });
}

// Points of trials that can be pointed at and clicked.
function scatter(plot, points) {
  const isDim = (trial) => state.task !== null && trials.task[trial] !== state.task;
  for (const dim of [true, false]) {
    for (let colour = 0; colour < BUCKETS; colour += 1) {
      const own = points.filter(({ trial }) => isDim(trial) === dim && bucket(trial) === colour);
      dots(plot.paper, own.map(({ x, y }) => [x, y]), { class: dim ? "dots dim" : `dots q${colour}` });
    }
  }
  const chosen = points.filter(({ trial }) => trial === state.trial);
  for (const { x, y } of chosen) shape(plot.paper, "circle", { cx: x, cy: y, r: 6, class: "chosen" });
  const nearest = (event) => {
    const [x, y] = localPoint(plot.svg, event);
    let [found, least] = [null, 22 ** 2];
    for (const point of points) {
      const distance = (point.x - x) ** 2 + (point.y - y) ** 2 + (isDim(point.trial) ? 60 : 0);
      if (distance < least) [found, least] = [point, distance];
    }
    return found;
  };
  plot.svg.addEventListener("pointermove", (event) => {
    const found = nearest(event);
    if (found) showTip(event, trialText(found.trial));
    else hideTip();
  });
  plot.svg.addEventListener("pointerleave", hideTip);
  plot.svg.addEventListener("click", (event) => {
    const found = nearest(event);
    if (found) select(trials.task[found.trial], found.trial);
    else select(null);
  });
}

// --- progress -------------------------------------------------------------------------------------------------

function drawProgress(root) {
  const better = state.view === "rank" || data.maximise ? Math.max : Math.min;
  const lines = byTask.map((own) => {
    let best = null;
    return own.map((trial) => {
      if (isScored[trial]) best = best === null ? shownValue(trial) : better(best, shownValue(trial));
      return best;
    });
  });
  const longest = Math.max(2, ...lines.map((line) => line.length));
  const [x, y] = [linear(1, longest, 8), scoreScale(lines.flat().filter((value) => value !== null), 6)];
  const label = `Best so far by number of trials, one line for each of ${data.tasks.length} tasks.`;
  const plot = frame(root, { height: 340, x, y, xTitle: "trials", yTitle: `best so far (${scoreTitle()})`, label, left: 72 });
  const spots = lines.map((line) => line.map((value, place) => (value === null ? null : plot.at(x.unit(place + 1), y.unit(value)))));
  const pathOf = (points) => {
    const known = points.filter((point) => point !== null);
    return known.map(([px, py], place) => (place === 0 ? `M${px.toFixed(1)} ${py.toFixed(1)}` : `H${px.toFixed(1)}V${py.toFixed(1)}`)).join("");
  };
  const order = spots.map((_, task) => task).filter((task) => task !== state.task);
  if (state.task !== null) order.push(state.task);
  for (const task of order) {
    const path = pathOf(spots[task]);
    if (!path) continue;
    const kind = task === state.task ? "selected" : state.task === null ? `age${age(task)}` : "dim";
    shape(plot.paper, "path", { d: path, class: `line ${kind}`, "data-task": task });
    const end = spots[task][spots[task].length - 1];
    if (end && spots[task].length === 1) shape(plot.paper, "circle", { cx: end[0], cy: end[1], r: 3, class: `spot ${kind}` });
  }
  const nearest = (event) => {
    const [px, py] = localPoint(plot.svg, event);
    const place = Math.round(x.value((px - plot.left) / plot.inner.width)) - 1;
    let [found, least] = [null, 24];
    spots.forEach((line, task) => {
      const point = line[Math.max(0, Math.min(place, line.length - 1))];
      if (!point) return;
      const distance = Math.abs(point[1] - py) + Math.max(0, px - point[0] - 12);
      if (distance < least) [found, least] = [task, distance];
    });
    return found;
  };
  plot.svg.addEventListener("pointermove", (event) => {
    const task = nearest(event);
    if (task === null) return hideTip();
    const own = data.tasks[task];
    showTip(event, `${own.name}\n${own.complete} scores, best ${format(own.best_score)}`);
  });
  plot.svg.addEventListener("pointerleave", hideTip);
  plot.svg.addEventListener("click", (event) => {
    const task = nearest(event);
    select(task === state.task ? null : task);
  });
}

// --- importance -----------------------------------------------------------------------------------------------

function drawImportance(root) {
  const known = data.shown.filter((parameter) => data.parameters[parameter].importance !== null);
  if (known.length === 0) return root.replaceChildren(element("p", { class: "quiet" }, "Nothing is learned yet: it takes a task with two scores."));
  const most = Math.max(...known.map((parameter) => data.parameters[parameter].importance), 1e-9);
  root.replaceChildren(
    element(
      "ol",
      { class: "bars" },
      ...known.map((parameter) => {
        const { name, importance } = data.parameters[parameter];
        const bar = element("span", { class: "bar" });
        bar.style.width = `${(100 * importance) / most}%`;
        const share = importance === 0 ? "not selected" : importance < 0.005 ? "< 1 %" : `${Math.round(100 * importance)} %`;
        return element("li", {}, element("span", { class: "name", title: name }, name), element("span", { class: "track" }, bar), element("span", { class: "share" }, share));
      }),
    ),
  );
}

// --- slices and pairs -----------------------------------------------------------------------------------------

// Points of one choice are spread, in the same way in each drawing and differently for each parameter.
function jitter(parameter, trial) {
  const mixed = Math.sin(12.9898 * (trial + 1) + 78.233 * (parameter + 1)) * 43758.5453;
  return (mixed - Math.floor(mixed) - 0.5) * 0.6;
}

function placeOf(parameter, scale, trial) {
  const value = trials.values[parameter][trial];
  if (value === null) return null;
  const { choices: texts } = data.parameters[parameter];
  if (texts) return scale.unit(value + jitter(parameter, trial));
  return Math.min(1, Math.max(0, scale.unit(value))); // the range may be narrower than when it was tried
}

function small(root, parameters, draw) {
  root.replaceChildren(...parameters.map((one) => element("figure", { class: "small" })));
  parameters.forEach((one, place) => draw(root.children[place], one));
}

function drawSlices(root) {
  // Scores of other tasks may be on another scale.
  const isAlone = state.task !== null && state.view === "score";
  const focus = scored.filter((trial) => !isAlone || trials.task[trial] === state.task);
  const y = scoreScale(focus.map(shownValue), 4);
  small(root, data.shown, (figure, parameter) => {
    const { name } = data.parameters[parameter];
    const own = focus.filter((trial) => trials.values[parameter][trial] !== null);
    const x = scaleOf(parameter);
    const plot = frame(figure, { height: 210, x, y, xTitle: name, label: `Scores against ${name}, ${own.length} trials.` });
    const points = own.map((trial) => {
      const [px, py] = plot.at(placeOf(parameter, x, trial), y.unit(shownValue(trial)));
      return { trial, x: px, y: py };
    });
    scatter(plot, points);
  });
}

function drawPairs(root) {
  const few = data.shown.slice(0, 4);
  const pairs = few.flatMap((first, place) => few.slice(place + 1).map((second) => [first, second]));
  if (pairs.length === 0) return root.replaceChildren(element("p", { class: "quiet" }, "The space has one parameter only."));
  small(root, pairs, (figure, [first, second]) => {
    const names = [data.parameters[first].name, data.parameters[second].name];
    const [x, y] = [scaleOf(first), scaleOf(second)];
    const plot = frame(figure, { height: 240, x, y, xTitle: names[0], yTitle: names[1], left: 70, label: `Trials by ${names[0]} and ${names[1]}; dark is good.` });
    const points = scored.flatMap((trial) => {
      const [u, v] = [placeOf(first, x, trial), placeOf(second, y, trial)];
      if (u === null || v === null) return [];
      const [px, py] = plot.at(u, v);
      return [{ trial, x: px, y: py }];
    });
    points.sort((a, b) => ranks[a.trial] - ranks[b.trial]);
    scatter(plot, points);
  });
}

// --- what the model believes ----------------------------------------------------------------------------------

function drawCurves(root) {
  const words = document.getElementById("curves-words");
  if (data.curves === null) {
    words.textContent = data.no_model;
    return root.replaceChildren();
  }
  const isNew = state.task === null;
  const own = isNew ? data.curves.new : data.curves.tasks[state.task];
  if (isNew) words.textContent = "Of a new task, before its first score: mean and standard deviation along each parameter, in standard deviations of a task's scores. The other parameters are those of the first default. Select a task to see what is believed of it.";
  else if (own === undefined) words.textContent = `Of '${data.tasks[state.task].name}' nothing is shown: the curves are for the latest ${Object.keys(data.curves.tasks).length} tasks with two scores.`;
  else words.textContent = `Of '${data.tasks[state.task].name}': expected score and standard deviation if one parameter changes and the others stay as in the best trial that has it, which is marked.`;
  if (own === undefined) return root.replaceChildren();
  const all = own.flatMap((curve) => (curve === null ? [] : [...curve.mean.map((m, i) => m - curve.std[i]), ...curve.mean.map((m, i) => m + curve.std[i])]));
  const y = linear(Math.min(...all), Math.max(...all), 4);
  small(root, data.shown, (figure, parameter) => {
    const { name, choices: texts } = data.parameters[parameter];
    const curve = own[parameter];
    if (curve === null) return figure.replaceChildren(element("figcaption", { class: "quiet" }, `${name} is off in every trial of this task.`));
    const x = scaleOf(parameter);
    const plot = frame(figure, { height: 190, x, y, xTitle: name, label: `Expected score along ${name}.` });
    const us = data.curves.points[parameter].map(x.unit);
    const spot = (place, value) => plot.at(us[place], y.unit(value)).map((one) => one.toFixed(1)).join(" ");
    if (texts) {
      curve.mean.forEach((mean, place) => {
        shape(plot.paper, "path", { d: `M${spot(place, mean - curve.std[place])}L${spot(place, mean + curve.std[place])}`, class: "whisker" });
        const [px, py] = plot.at(us[place], y.unit(mean));
        shape(plot.paper, "circle", { cx: px, cy: py, r: 4, class: "mean-spot" });
      });
    } else {
      const upper = curve.mean.map((mean, place) => spot(place, mean + curve.std[place]));
      const lower = curve.mean.map((mean, place) => spot(place, mean - curve.std[place])).reverse();
      shape(plot.paper, "path", { d: `M${[...upper, ...lower].join("L")}Z`, class: "band" });
      shape(plot.paper, "path", { d: `M${curve.mean.map((mean, place) => spot(place, mean)).join("L")}`, class: "mean" });
    }
    const [mx] = plot.at(x.unit(curve.at), 0);
    shape(plot.paper, "line", { x1: mx, x2: mx, y1: plot.top, y2: plot.top + plot.inner.height, class: "marker" });
    plot.svg.addEventListener("pointermove", (event) => {
      const [px] = localPoint(plot.svg, event);
      const u = (px - plot.left) / plot.inner.width;
      const place = us.reduce((best, one, index) => (Math.abs(one - u) < Math.abs(us[best] - u) ? index : best), 0);
      const at = data.curves.points[parameter][place];
      showTip(event, `${name} = ${texts ? texts[at] : format(at)}\n${format(curve.mean[place])} ± ${format(curve.std[place])}`);
    });
    plot.svg.addEventListener("pointerleave", hideTip);
  });
}
