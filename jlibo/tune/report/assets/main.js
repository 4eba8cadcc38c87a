// Tables and controls, and the start of the page.
const MOST_ROWS = 1000;
const table = { key: null, isDown: false, words: "" };

function taskColumns() {
  return [
    { key: "name", title: "Task" },
    { key: "complete", title: "Scores", isNumber: true },
    { key: "failed", title: "Failed", isNumber: true },
    ...(data.tasks.some((task) => task.stopped > 0) ? [{ key: "stopped", title: "Stopped", isNumber: true }] : []),
    { key: "pending", title: "Pending", isNumber: true },
    { key: "best_score", title: "Best score", isNumber: true },
    { key: "best_params", title: "Best parameters" },
  ];
}

function drawTasks(root) {
  let order = data.tasks.map((_, place) => place);
  const words = table.words.toLowerCase();
  if (words) order = order.filter((place) => data.tasks[place].name.toLowerCase().includes(words));
  if (table.key) {
    const sign = table.isDown ? -1 : 1;
    const missing = (one) => one === null || one === undefined;
    order.sort((a, b) => {
      const [first, second] = [data.tasks[a][table.key], data.tasks[b][table.key]];
      if (missing(first) || missing(second)) return missing(first) - missing(second);
      return sign * (typeof first === "number" ? first - second : first.localeCompare(second, "en", { numeric: true }));
    });
  }
  const head = taskColumns().map(({ key, title, isNumber }) => {
    const isSorted = table.key === key;
    const sort = () => {
      Object.assign(table, { key, isDown: isSorted ? !table.isDown : Boolean(isNumber) });
      drawTasks(root);
      root.querySelector(`[data-key="${key}"]`).focus();
    };
    const arrow = isSorted ? (table.isDown ? " ↓" : " ↑") : "";
    const button = element("button", { type: "button", class: "sort", "data-key": key, onclick: sort }, title + arrow);
    return element("th", { scope: "col", class: isNumber ? `number ${key}` : null, "aria-sort": isSorted ? (table.isDown ? "descending" : "ascending") : null }, button);
  });
  const rows = order.slice(0, MOST_ROWS).map((place) => {
    const task = data.tasks[place];
    const isChosen = place === state.task;
    const choose = () => select(isChosen ? null : place);
    const name = element("button", { type: "button", class: "link", "aria-pressed": String(isChosen), "data-task": place, onclick: choose }, task.name);
    const cells = taskColumns().slice(1).map(({ key, isNumber }) => {
      const value = task[key];
      const text = typeof value === "number" ? format(value) : (value ?? "–");
      return element("td", { class: isNumber ? `number ${key}` : "words", title: isNumber ? null : text }, key !== "best_score" && value === 0 ? element("span", { class: "quiet" }, "0") : text);
    });
    return element("tr", { class: isChosen ? "chosen" : null }, element("th", { scope: "row" }, name), ...cells);
  });
  const place = root.scrollTop;
  root.replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows)));
  root.scrollTop = place;
  const hidden = order.length - rows.length;
  document.getElementById("tasks-words").textContent = `${order.length} of ${data.tasks.length} tasks` + (hidden ? `; the first ${MOST_ROWS} are listed.` : ".");
}

function pythonOf(trial) {
  const parts = data.parameters.flatMap(({ key, choices: texts, python }, parameter) => {
    const value = trials.values[parameter][trial];
    if (value === null) return [];
    return [`${key}: ${texts ? python[value] : value}`];
  });
  return `{${parts.join(", ")}}`;
}

function drawTrial(root) {
  const trial = state.trial;
  root.hidden = trial === null;
  if (trial === null) return root.replaceChildren();
  const code = pythonOf(trial);
  const button = element("button", { type: "button", onclick: () => copyText(code, button) }, "Copy");
  const close = element("button", { type: "button", class: "plain", "aria-label": "Clear the selected trial", onclick: () => select(state.task) }, "×");
  const others = byTask[trials.task[trial]].filter((one) => isScored[one] && ranks[one] > ranks[trial]).length;
  const place = others === 0 ? ", the best of its task" : `, ${others} of its task are better`;
  root.replaceChildren(
    element("div", { class: "row" }, element("strong", {}, `${data.tasks[trials.task[trial]].name}, trial ${trials.number[trial]}`), close),
    element("p", {}, `Score ${format(trials.score[trial])}${place}.`),
    element("pre", {}, code),
    button,
  );
}

function drawControls() {
  const picker = document.getElementById("task");
  picker.value = state.task === null ? "" : String(state.task);
  const isClear = state.task === null && state.trial === null;
  document.getElementById("clear").style.visibility = isClear ? "hidden" : "visible";
  for (const one of document.querySelectorAll("input[name=view]")) one.checked = one.value === state.view;
  const legend = document.getElementById("legend");
  const words = state.task === null ? "" : `'${data.tasks[state.task].name}' is highlighted; the other tasks are grey.`;
  legend.textContent = words;
  document.getElementById("ages").hidden = state.task !== null || data.tasks.length < 2;
}

function start() {
  const picker = document.getElementById("task");
  picker.append(element("option", { value: "" }, "All tasks"));
  picker.append(...data.tasks.map(({ name }, place) => element("option", { value: place }, name)));
  picker.addEventListener("change", () => select(picker.value === "" ? null : Number(picker.value)));
  document.getElementById("clear").addEventListener("click", () => select(null));
  document.getElementById("filter").addEventListener("input", (event) => {
    table.words = event.target.value;
    drawTasks(document.getElementById("tasks-table"));
  });
  for (const one of document.querySelectorAll("input[name=view]")) {
    one.addEventListener("change", () => {
      state.view = one.value;
      state.ranges.delete(SCORE);
      redraw();
    });
  }
  document.getElementById("parallel-clear").addEventListener("click", () => {
    state.ranges.clear();
    redraw();
  });
  document.getElementById("theme").addEventListener("click", () => {
    const { dataset } = document.documentElement;
    const now = dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    dataset.theme = now === "dark" ? "light" : "dark";
  });
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", () => copyText(document.getElementById(button.dataset.copy).textContent, button));
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented) select(null);
  });
  const draws = {
    "tasks-table": drawTasks,
    progress: drawProgress,
    importance: drawImportance,
    slices: drawSlices,
    pairs: drawPairs,
    parallel: drawParallel,
    curves: drawCurves,
    trial: drawTrial,
  };
  for (const [name, draw] of Object.entries(draws)) whenChanged(() => draw(document.getElementById(name)));
  whenChanged(drawControls);
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) redraw(); // phones change the height alone while scrolling
    width = window.innerWidth;
  });
  redraw();
}

start();
