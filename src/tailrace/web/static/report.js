// The report's plots, each drawn when it comes near the screen; all of them before the page is printed.
const pictures = JSON.parse(document.getElementById("pictures").textContent);
const PRINT_WIDTH = 680; // what a portrait A4 or Letter page holds at 96 dpi, its margins taken away

function draw(place) {
  const picture = pictures[place.dataset.picture];
  if (!picture || place.dataset.drawn) return;
  place.dataset.drawn = "yes";
  const layout = picture.layout;
  // On a touch screen a drag is a scroll.
  if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
  if (place.clientWidth < 460) shrink(picture);
  place.replaceChildren();
  window.Plotly.newPlot(place, picture.data, layout, { displayModeBar: false, responsive: true, doubleClick: "reset" });
}

const places = [...document.querySelectorAll(".plot[data-picture]")];
const watcher = new IntersectionObserver(
  (seen) => {
    for (const one of seen) {
      if (!one.isIntersecting) continue;
      watcher.unobserve(one.target);
      draw(one.target);
    }
  },
  { rootMargin: "600px" },
);
for (const place of places) {
  const height = (pictures[place.dataset.picture] || { layout: {} }).layout.height;
  if (height) place.style.minHeight = `${height}px`; // nothing jumps when it is drawn
  watcher.observe(place);
}

window.addEventListener("beforeprint", () => {
  for (const place of places) {
    draw(place);
    window.Plotly.relayout(place, { width: PRINT_WIDTH });
  }
  for (const details of document.querySelectorAll("details")) details.open = true;
});
window.addEventListener("afterprint", () => {
  for (const place of places) window.Plotly.relayout(place, { width: place.clientWidth });
});
