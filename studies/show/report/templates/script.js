const inks = {{ inks | tojson }};
const color = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Figures are stored for a white page; here they take the colours of the theme.
function themed(layout) {
  const made = {...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)"};
  made.font = {...layout.font, color: color("--ink")};
  made.hoverlabel = {...layout.hoverlabel, bgcolor: color("--card"), bordercolor: color("--line"), font: {color: color("--ink")}};
  for (const name of Object.keys(layout)) {
    if (!/^[xy]axis/.test(name)) continue;
    made[name] = {...layout[name], gridcolor: color("--grid"), linecolor: color("--line"), tickcolor: color("--line")};
  }
  // Labels hide the lines that they stand on.
  made.annotations = (layout.annotations || []).map(label => ({...label, bgcolor: color("--card"), borderpad: 1}));
  return made;
}
function draw(holder) {
  let stored = JSON.stringify(figures[holder.dataset.figure]);
  for (const [white, name] of Object.entries(inks)) stored = stored.replaceAll(white, color(name));
  const figure = JSON.parse(stored);
  Plotly.react(holder, figure.data, themed(figure.layout), {responsive: true, displayModeBar: false});
  holder.dataset.drawn = "yes";
}
// A folded figure has no width, so it is drawn when it is unfolded first.
for (const holder of document.querySelectorAll("[data-figure]")) {
  const folded = holder.closest("details:not([open])");
  if (folded) folded.addEventListener("toggle", () => draw(holder), {once: true});
  else draw(holder);
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  for (const holder of document.querySelectorAll("[data-drawn]")) draw(holder);
});
addEventListener("beforeprint", () => { for (const folded of document.querySelectorAll("details")) folded.open = true; });
