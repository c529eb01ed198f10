// What a phone's width cannot hold: second lines in cells, the colour bar, labels of slender segments.
export function shrink(picture) {
  const layout = picture.layout;
  for (const note of layout.annotations || []) {
    note.text = note.text.replace(/(^|<br>)p9[59] [^<]*<br>/, "$1");
    note.font = { ...note.font, size: 10 };
  }
  const bars = picture.data.filter((trace) => trace.type === "bar" && trace.orientation === "h");
  const full = Math.max(0, ...(bars.length ? bars[0].x : []).map((_, place) => bars.reduce((sum, bar) => sum + bar.x[place], 0)));
  for (const trace of picture.data) {
    if (trace.colorbar) trace.showscale = false;
    if (trace.textfont) trace.textfont.size = 10;
    if (trace.type === "bar" && trace.orientation === "h") trace.text = trace.text.map((text, place) => (trace.x[place] / full < 0.13 ? "" : text));
  }
  for (const name of ["xaxis", "yaxis", "yaxis2"]) {
    const axis = layout[name];
    if (axis) axis.tickfont = { ...axis.tickfont, size: 11 };
  }
}
