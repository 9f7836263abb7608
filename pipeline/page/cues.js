// Say of what is wider than its box that it scrolls, and of nothing else.
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
  for (const box of document.querySelectorAll("figure .scroll, details.table .scroll")) {
    sizes.observe(box);
  }
})();
