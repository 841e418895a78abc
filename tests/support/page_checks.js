// What a person would see at a glance, measured: run in a page, it gives `checks`, whose functions list what is wrong.
(() => {
  const SLACK = 1.5;
  const OWN_BOXES = "section, td, .scroll, main";
  const TEXT_BOXES = "td, th, p, li, pre, summary, h1, h2";
  const box = each => each.getBoundingClientRect();
  const named = each => `${each.tagName} ${each.className} ${each.textContent.trim().slice(0, 40)}`;
  const figures = () => [...document.querySelectorAll("[data-figure]")];
  const texts = figure => [...figure.querySelectorAll(".main-svg text")].filter(each => each.textContent.trim() && box(each).width);
  const beyond = (inner, outer) => inner.right > outer.right + SLACK || inner.left < outer.left - SLACK;

  // Unfolds everything, and waits until every figure is drawn.
  async function unfold() {
    for (const folded of document.querySelectorAll("details")) folded.open = true;
    while (figures().some(each => !each.querySelector(".main-svg"))) await new Promise(done => setTimeout(done, 10));
  }

  // What leaves the box that it belongs to. A box that scrolls may hold more than it shows.
  function overflows() {
    const found = [], edge = document.documentElement.clientWidth;
    const width = document.documentElement.scrollWidth;
    if (width > edge) found.push(`page: ${width} > ${edge}`);
    for (const each of document.querySelectorAll("header *, section, section *")) {
      if (each.closest("svg") || !box(each).width) continue;
      const outer = each.parentElement.closest(OWN_BOXES);
      if (!outer.matches(".scroll") && !each.closest("table") && beyond(box(each), box(outer))) found.push(named(each));
      if (each.closest("td") && beyond(box(each), box(each.closest("td")))) found.push(`out of its cell: ${named(each)}`);
      if (each.matches(TEXT_BOXES) && each.scrollWidth > each.clientWidth + SLACK) found.push(`cut: ${named(each)}`);
    }
    // A map of many columns may scroll; a table of sentences may not.
    for (const each of document.querySelectorAll(".scroll:has(.rows)")) {
      if (each.scrollWidth > each.clientWidth + SLACK) found.push(`scrolls: ${named(each)}`);
    }
    for (const figure of figures()) {
      for (const text of texts(figure)) {
        const [inner, outer] = [box(text), box(figure)];
        const above = inner.top < outer.top - SLACK || inner.bottom > outer.bottom + SLACK;
        if (above || beyond(inner, outer)) found.push(`${figure.dataset.figure}: ${text.textContent}`);
      }
    }
    return found;
  }

  // Pairs of texts of one figure that cover each other.
  function overlaps() {
    const found = [];
    for (const figure of figures()) {
      const all = texts(figure), boxes = all.map(box);
      for (let i = 0; i < all.length; i++) {
        for (let j = 0; j < i; j++) {
          const wide = Math.min(boxes[i].right, boxes[j].right) - Math.max(boxes[i].left, boxes[j].left);
          const high = Math.min(boxes[i].bottom, boxes[j].bottom) - Math.max(boxes[i].top, boxes[j].top);
          if (wide > 2 && high > 3) found.push(`${figure.dataset.figure}: ${all[i].textContent} / ${all[j].textContent}`);
        }
      }
    }
    return found;
  }

  // Texts whose contrast with what lies behind them is below what WCAG asks: 4.5, of large bold labels 3.
  function faint() {
    const linear = value => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const light = color => {
      const [red, green, blue] = color.match(/[0-9.]+/g).map(value => linear(Number(value) / 255));
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const behind = each => {
      while (each && getComputedStyle(each).backgroundColor === "rgba(0, 0, 0, 0)") each = each.parentElement;
      return each ? getComputedStyle(each).backgroundColor : "rgb(255, 255, 255)";
    };
    const found = new Set();
    for (const each of document.querySelectorAll("h1, h2, p, td, th, li, b, span, summary, code, pre, .main-svg text")) {
      if (!each.textContent.trim() || each.matches(".cell")) continue;
      const drawn = each.closest("svg"), style = getComputedStyle(each);
      const [one, other] = [light(drawn ? style.fill : style.color), light(behind(drawn ? each.closest("[data-figure]") : each))];
      const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      if (contrast < (each.closest(".annotation") ? 3 : 4.5)) found.add(`${contrast.toFixed(1)}: ${named(each)}`);
    }
    return [...found];
  }

  window.checks = {unfold, overflows, overlaps, faint};
})();
