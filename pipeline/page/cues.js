// Say of what is wider than its box that it scrolls, and of nothing else.
"use strict";
(() => {
  const look = (box) => {
    const cue = box.parentElement.querySelector(".cue");
    cue.classList.add("measured");
    cue.classList.toggle("needed", box.scrollWidth > box.clientWidth + 1);
  };
  const sizes = new ResizeObserver((found) => found.forEach((one) => look(one.target)));
  for (const box of document.querySelectorAll("figure .scroll, details.table .scroll")) {
    sizes.observe(box);
  }
})();
