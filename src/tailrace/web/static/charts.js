// Pictures from the server, drawn by Plotly and kept in place: zoom and hidden series survive each refresh.
import { shrink } from "./shrink.js";
import { byId, element, say } from "./text.js";

const drawn = new Map();

// Drawn as soon as the bundle (which loads beside this) is here.
export async function plotly() {
  while (!window.Plotly) await new Promise((resolve) => setTimeout(resolve, 50));
  return window.Plotly;
}

// One picture: the sentence as heading, the note, and the figure or what to do instead.
export async function draw(picture, prefix = picture.name) {
  say(`${prefix}-title`, picture.title);
  say(`${prefix}-note`, picture.note || "");
  const empty = byId(`${prefix}-empty`);
  const place = byId(`${prefix}-plot`);
  const legend = byId(`${prefix}-legend`);
  empty.hidden = !picture.empty;
  say(`${prefix}-empty`, picture.empty || "");
  place.hidden = Boolean(picture.empty);
  if (legend) legend.hidden = Boolean(picture.empty);
  if (picture.empty) return;
  if (legend) drawLegend(legend, picture);
  place.setAttribute("role", "img");
  place.setAttribute("aria-label", [picture.title, picture.alt || picture.note].filter(Boolean).join(". "));
  const narrow = place.clientWidth < 460;
  const key = JSON.stringify([picture.data, picture.layout, narrow]);
  if (drawn.get(prefix) === key) return;
  const library = await plotly();
  const layout = picture.layout;
  if (legend) layout.showlegend = false;
  // On a touch screen a drag is a scroll.
  if (matchMedia("(pointer: coarse)").matches) layout.dragmode = false;
  if (narrow) shrink(picture);
  await library.react(place, picture.data, layout, { displayModeBar: false, responsive: true, doubleClick: "reset" });
  drawn.set(prefix, key);
}

function drawLegend(list, picture) {
  const entries = picture.data.filter((trace) => trace.meta).map((trace) => trace.meta);
  const now = JSON.stringify(entries);
  if (list.dataset.entries === now) return;
  list.dataset.entries = now;
  list.replaceChildren(
    ...entries.map(({ stage, label }) => {
      const item = element("li");
      item.append(element("i", null, { class: "swatch", "data-stage": stage }), element("span", label));
      return item;
    }),
  );
}

export function forget() {
  drawn.clear();
}
