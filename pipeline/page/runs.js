// Filter the runs and sort their groups. Without this script the page shows all in their order.
"use strict";
(() => {
  const list = document.getElementById("run-groups");
  const controls = document.getElementById("run-controls");
  const [words, status, order, count] = ["words", "status", "order", "count"].map(
    (name) => document.getElementById(`run-${name}`));
  const groups = Array.from(list.children);
  const runs = Array.from(list.querySelectorAll("tbody"));
  const place = new Map(groups.map((group, index) => [group, index]));
  const opened = new Map(groups.map((group) => [group, group.open]));
  const number = (group, none) => group.dataset.seconds === "" ? none : Number(group.dataset.seconds);
  const orders = {
    study: () => 0,
    fastest: (a, b) => number(a, 1e99) - number(b, 1e99),
    slowest: (a, b) => number(b, -1) - number(a, -1),
  };
  const show = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const group of groups) {
      const title = group.querySelector("summary").textContent;
      let inside = 0;
      for (const run of group.querySelectorAll("tbody")) {
        const text = `${title} ${run.textContent}`.toLowerCase();
        run.hidden = (status.value !== "" && run.dataset.status !== status.value)
          || !wanted.every((word) => text.includes(word));
        inside += run.hidden ? 0 : 1;
      }
      group.hidden = inside === 0;
      group.open = wanted.length > 0 || status.value !== "" ? true : opened.get(group);
      shown += inside;
    }
    count.textContent = `${shown} of ${runs.length} runs`;
  };
  const sort = () => list.append(
    ...groups.slice().sort((a, b) => orders[order.value](a, b) || place.get(a) - place.get(b)));
  words.addEventListener("input", show);
  status.addEventListener("change", show);
  order.addEventListener("change", sort);
  controls.hidden = false;
  show();
  // A link of the contents to what lies in a closed fold opens it.
  const unfold = () => {
    const goal = document.getElementById(location.hash.slice(1));
    const fold = goal && goal.closest("details");
    if (fold) { fold.open = true; }
  };
  window.addEventListener("hashchange", unfold);
  unfold();
})();
