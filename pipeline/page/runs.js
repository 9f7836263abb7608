// Filter the runs. Without this script the page shows all in their order.
"use strict";
(() => {
  const list = document.getElementById("run-groups");
  const controls = document.getElementById("run-controls");
  const [words, status, count] = ["words", "status", "count"].map(
    (name) => document.getElementById(`run-${name}`));
  const groups = Array.from(list.children);
  const runs = Array.from(list.querySelectorAll("tbody"));
  const opened = new Map(groups.map((group) => [group, group.open]));
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
  words.addEventListener("input", show);
  status.addEventListener("change", show);
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
