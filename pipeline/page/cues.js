// Say of what is wider than its box that it scrolls, and of nothing else. In a table that does, what
// the rows are about stays in view: the cell, or else the first column.
"use strict";
(() => {
  const look = (box) => {
    const cue = box.parentElement.querySelector(".cue");
    cue.classList.add("measured");
    const wide = box.scrollWidth > box.clientWidth + 1;
    cue.classList.toggle("needed", wide);
    box.classList.toggle("wide", wide);
  };
  const sizes = new ResizeObserver((found) => found.forEach((one) => look(one.target)));
  const stay = (rows) => {
    const heads = Array.from(rows.length ? rows[0].cells : [], (cell) => cell.textContent.trim());
    const place = Math.max(0, heads.indexOf("Cell"));
    for (const row of rows) { row.cells[place]?.classList.add("stays"); }
  };
  for (const box of document.querySelectorAll("figure .scroll, details.table .scroll")) {
    for (const table of box.querySelectorAll("table")) { stay(table.rows); }
    sizes.observe(box);
  }
})();
