// Data, state and small helpers. Everything that comes from the memory is text: it is set by textContent and
// setAttribute, and never parsed as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const trials = data.trials;
const COMPLETE = data.states.indexOf("complete");
const BUCKETS = 8; // colours of scores, from bad to good
const AGES = 6; // colours of tasks, from old to new
const state = { task: null, trial: null, view: data.tasks.length > 1 ? "rank" : "score", ranges: new Map() };
const redraws = [];

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

function shape(parent, tag, attributes = {}, text = null) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== null) made.textContent = text;
  parent.append(made);
  return made;
}

function format(number) {
  if (number === null || number === undefined) return "–";
  const size = Math.abs(number);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return number.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(number.toPrecision(5)));
}

function shortened(text, most) {
  return text.length <= most ? text : text.slice(0, most - 1) + "…";
}

// --- trials --------------------------------------------------------------------------------------------------

const byTask = data.tasks.map(() => []);
trials.task.forEach((task, trial) => byTask[task].push(trial));
const isScored = trials.state.map((one, trial) => one === COMPLETE && trials.score[trial] !== null);
const scored = isScored.flatMap((yes, trial) => (yes ? [trial] : []));

// The share of the task's other scores that are not better. 1 is the best; with ties, the worst is above 0.
const ranks = trials.score.map(() => null);
for (const own of byTask) {
  const known = own.filter((trial) => isScored[trial]);
  const sign = data.maximise ? 1 : -1;
  const order = known.map((trial) => sign * trials.score[trial]).sort((a, b) => a - b);
  const last = new Map(order.map((score, place) => [score, place]));
  for (const trial of known) {
    const place = last.get(sign * trials.score[trial]);
    ranks[trial] = known.length === 1 ? 1 : place / (known.length - 1);
  }
}

function shownValue(trial) {
  return state.view === "rank" ? ranks[trial] : trials.score[trial];
}

function bucket(trial) {
  return Math.min(BUCKETS - 1, Math.floor(ranks[trial] * BUCKETS));
}

function age(task) {
  return data.tasks.length < 2 ? AGES - 1 : Math.round((task / (data.tasks.length - 1)) * (AGES - 1));
}

function valueText(parameter, trial) {
  const value = trials.values[parameter][trial];
  if (value === null) return "off";
  const kind = data.parameters[parameter];
  return kind.choices ? kind.choices[value] : format(value);
}

function trialText(trial) {
  const task = data.tasks[trials.task[trial]];
  const lines = [`${task.name}, trial ${trials.number[trial]}: ${format(trials.score[trial])}`];
  data.shown.forEach((parameter) => {
    lines.push(`${data.parameters[parameter].name} = ${valueText(parameter, trial)}`);
  });
  return lines.join("\n");
}

// --- scales: from values to [0, 1], with ticks ---------------------------------------------------------------

function niceTicks(low, high, most) {
  const raw = (high - low) / Math.max(most, 1);
  if (!(raw > 0) || !Number.isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= raw * 0.999);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9); tick * step <= high + 1e-9 * step; tick += 1) ticks.push(tick * step);
  return ticks;
}

function linear(low, high, most = 5) {
  const span = high > low ? high - low : 1;
  const unit = (value) => (high > low ? (value - low) / span : 0.5);
  const ticks = niceTicks(low, high, most).map((value) => ({ at: unit(value), text: format(value) }));
  return { unit, value: (at) => low + at * span, ticks };
}

function logarithmic(low, high, most = 5) {
  const span = Math.log(high / low);
  const unit = (value) => Math.log(value / low) / span;
  const powers = niceTicks(Math.log10(low), Math.log10(high), most).filter(Number.isInteger).map((one) => 10 ** one);
  const values = powers.length >= 2 ? powers : [low, Math.sqrt(low * high), high];
  return { unit, value: (at) => low * Math.exp(at * span), ticks: values.map((value) => ({ at: unit(value), text: format(value) })) };
}

function choices(texts, most = 6) {
  const unit = (index) => (index + 0.5) / texts.length;
  const every = Math.ceil(texts.length / most);
  const ticks = texts.flatMap((text, index) => (index % every === 0 ? [{ at: unit(index), text: shortened(text, 14) }] : []));
  return { unit, value: (at) => Math.floor(at * texts.length), ticks };
}

function scaleOf(parameter, most = 5) {
  const kind = data.parameters[parameter];
  if (kind.choices) return choices(kind.choices, most + 1);
  return kind.log ? logarithmic(kind.low, kind.high, most) : linear(kind.low, kind.high, most);
}

// The scale of scores. A few scores far on the bad side do not squeeze the others: they lie on the edge.
function scoreScale(values, most = 5) {
  if (state.view === "rank") {
    const ticks = [[0, "worst"], [0.25, ""], [0.5, "median"], [0.75, ""], [1, "best"]];
    return { unit: (value) => value, ticks: ticks.map(([at, text]) => ({ at, text })) };
  }
  if (values.length === 0) return linear(0, 1, most);
  const sorted = [...values].sort((a, b) => a - b);
  const quantile = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const reach = 3 * (quantile(0.75) - quantile(0.25));
  let [low, high] = [sorted[0], sorted[sorted.length - 1]];
  if (reach > 0 && data.maximise) low = Math.max(low, quantile(0.25) - reach);
  if (reach > 0 && !data.maximise) high = Math.min(high, quantile(0.75) + reach);
  const margin = (high - low) * 0.04;
  const scale = linear(low - margin, high + margin, most);
  return { ...scale, unit: (value) => Math.min(1, Math.max(0, scale.unit(value))) };
}

function scoreTitle() {
  return state.view === "rank" ? "place within its task" : "score";
}

// --- selection ------------------------------------------------------------------------------------------------

function select(task, trial = null) {
  state.task = task;
  state.trial = trial;
  redraw();
}

let isWaiting = false;
function redraw() {
  if (isWaiting) return;
  isWaiting = true;
  requestAnimationFrame(() => {
    isWaiting = false;
    for (const draw of redraws) draw();
    document.body.dataset.ready = "yes";
  });
}

function whenChanged(draw) {
  redraws.push(draw);
}

async function copyText(text, button) {
  const words = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = element("textarea", {}, text);
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = words), 1500);
}
