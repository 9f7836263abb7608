// Filter and sort the list of runs. Without this script the page shows all of them in their order.
"use strict";
(() => {
  const table = document.getElementById("run-table");
  const controls = document.getElementById("run-controls");
  const [words, status, order, count] = ["words", "status", "order", "count"].map(
    (name) => document.getElementById(`run-${name}`));
  const runs = Array.from(table.tBodies);
  const place = new Map(runs.map((run, index) => [run, index]));
  const number = (run) => run.dataset.seconds === "" ? Infinity : Number(run.dataset.seconds);
  const orders = {
    study: () => 0,
    fastest: (a, b) => number(a) - number(b) || 0,
    slowest: (a, b) => (number(b) === Infinity ? -1 : number(b)) - (number(a) === Infinity ? -1 : number(a)),
    status: (a, b) => a.dataset.status.localeCompare(b.dataset.status),
  };
  const show = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const run of runs) {
      const text = run.textContent.toLowerCase();
      run.hidden = (status.value !== "" && run.dataset.status !== status.value)
        || !wanted.every((word) => text.includes(word));
      shown += run.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${runs.length} runs`;
  };
  const sort = () => table.append(
    ...runs.slice().sort((a, b) => orders[order.value](a, b) || place.get(a) - place.get(b)));
  words.addEventListener("input", show);
  status.addEventListener("change", show);
  order.addEventListener("change", sort);
  controls.hidden = false;
  show();
})();
