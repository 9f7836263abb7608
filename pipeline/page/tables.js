// Sort the tables of results by a column and filter their rows. Without this script they are plain.
"use strict";
(() => {
  const MANY = 12;
  // A value that stands in the rows below too is printed once; alone, a row needs its own.
  const whole = (rows) => {
    const above = [];
    return rows.map((row) => Array.from(row.cells, (cell, column) => {
      const text = cell.textContent.trim();
      above[column] = text === "" && above[column] !== undefined ? above[column] : text;
      return above[column];
    }));
  };
  const number = (text) => {
    const found = /^[-\u2212]?[\d,]*\.?\d+(e[-+]?\d+)?/i.exec(text);
    return found ? Number(found[0].replace(/,/g, "").replace("\u2212", "-")) : NaN;
  };
  // Rows without a number stand last, whichever way the others go.
  const compare = (a, b, sign) => {
    const [x, y] = [number(a), number(b)];
    if (Number.isNaN(x) !== Number.isNaN(y)) { return Number.isNaN(x) ? 1 : -1; }
    return sign * (Number.isNaN(x) ? a.localeCompare(b) : x - y);
  };
  for (const table of document.querySelectorAll("details.table .scroll > table")) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    if (rows.length < 2) { continue; }
    const printed = rows.map((row) => Array.from(row.cells, (cell) => cell.textContent));
    const values = whole(rows);
    const place = new Map(rows.map((row, index) => [row, index]));
    const heads = Array.from(table.tHead.rows[0].cells);
    let words = [];
    const show = () => {
      const sorted = heads.some((head) => head.hasAttribute("aria-sort"));
      rows.forEach((row, index) => {
        const text = values[index].join(" ").toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        const full = sorted || words.length > 0;
        Array.from(row.cells).forEach((cell, column) => {
          if (printed[index][column] !== values[index][column]) {
            cell.textContent = full ? values[index][column] : printed[index][column];
          }
        });
      });
    };
    // The first press sorts up, the second down, the third brings the printed order back.
    const sort = (column) => {
      const next = { none: "ascending", ascending: "descending", descending: "none" };
      const order = next[heads[column].getAttribute("aria-sort") || "none"];
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      if (order !== "none") { heads[column].setAttribute("aria-sort", order); }
      const sign = order === "descending" ? -1 : 1;
      body.append(...rows.slice().sort((a, b) => (order === "none" ? 0
        : compare(values[place.get(a)][column], values[place.get(b)][column], sign))
        || place.get(a) - place.get(b)));
      show();
    };
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      button.addEventListener("click", () => sort(column));
      head.replaceChildren(button);
    });
    if (rows.length > MANY) {
      const label = document.createElement("label");
      const field = document.createElement("input");
      label.className = "filter";
      field.type = "search";
      field.placeholder = "words of a row";
      label.append("Filter rows ", field);
      field.addEventListener("input", () => {
        words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
        show();
      });
      table.closest(".scroll").before(label);
    }
  }
})();
