// Tell what the nearest point of a figure says: by pointer, by finger, and by the arrow keys.
"use strict";
(() => {
  const NEAR = 26;
  for (const hint of document.querySelectorAll(".hint")) { hint.hidden = false; }
  for (const plate of document.querySelectorAll("figure .plate")) {
    const points = Array.from(plate.querySelectorAll("i"));
    if (!points.length) { continue; }
    const box = plate.closest(".scroll");
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.setAttribute("role", "status");
    plate.append(tip);
    // The browser's own title would come up beside the tip.
    for (const point of points) { point.dataset.says = point.title; point.removeAttribute("title"); }
    let told = null;
    const tell = (point) => {
      if (told === point) { return; }
      if (told) { told.classList.remove("told"); }
      told = point;
      tip.textContent = point ? point.dataset.says : "";
      if (!point) { return; }
      point.classList.add("told");
      const [x, y] = [point.offsetLeft + point.offsetWidth / 2, point.offsetTop];
      const room = plate.clientWidth - tip.offsetWidth;
      tip.style.left = `${Math.max(0, Math.min(room, x - tip.offsetWidth / 2))}px`;
      const above = y - tip.offsetHeight - 6;
      tip.style.top = `${above < 0 ? y + point.offsetHeight + 6 : above}px`;
    };
    const nearest = (event) => {
      let found = null;
      let least = NEAR;
      for (const point of points) {
        const at = point.getBoundingClientRect();
        const far = Math.hypot(event.clientX - at.left - at.width / 2,
          event.clientY - at.top - at.height / 2);
        if (far < least) { [found, least] = [point, far]; }
      }
      tell(found);
    };
    plate.addEventListener("pointermove", nearest);
    plate.addEventListener("pointerdown", nearest);
    plate.addEventListener("pointerleave", (event) => {
      if (event.pointerType === "mouse") { tell(null); }
    });
    box.addEventListener("blur", () => tell(null));
    box.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (event.key === "Escape") { tell(null); }
      // Where the figure is wider than its box, these keys scroll it.
      if (!step || box.scrollWidth > box.clientWidth + 1) { return; }
      const next = told ? points.indexOf(told) + step : step > 0 ? 0 : points.length - 1;
      event.preventDefault();
      tell(points[(next + points.length) % points.length]);
    });
  }
})();
