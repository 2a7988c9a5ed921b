// The tooltip, and tables: a row for each layer and a column for each head or token, with arrow keys to move.
const tip = document.getElementById("tip");

function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(window.innerWidth - width - 6, x + 12))}px`;
  tip.style.top = `${y + height + 26 > window.innerHeight ? y - height - 12 : y + 16}px`;
}

function hideTip() {
  tip.hidden = true;
}

// Show `describe(target, event)` as a tooltip for elements in a host that match a selector: on hover, focus and tap.
function explain(host, selector, describe) {
  const show = (event) => {
    const target = event.target.closest?.(selector);
    const text = target && host.contains(target) ? describe(target, event) : "";
    if (!text) return hideTip();
    if (event.clientX) return showTip(text, event.clientX, event.clientY);
    const box = target.getBoundingClientRect();
    return showTip(text, box.left, box.bottom);
  };
  host.addEventListener("pointermove", show);
  host.addEventListener("pointerdown", show);
  host.addEventListener("focusin", (event) => event.target.matches(":focus-visible") && show(event));
  host.addEventListener("pointerleave", hideTip);
  host.addEventListener("focusout", hideTip);
}

// options: title, note, layers, heads, cell (in rem), draw(td, layer, head), describe(layer, head), extra {name, draw, describe}
function headGrid(options) {
  const { layers, heads, extra } = options;
  const caption = element("caption", { text: options.title });
  if (options.note) caption.append(element("small", { text: options.note }));
  const across = element("tr", {}, element("th", { scope: "col", "aria-label": "Layer" }));
  for (let h = 0; h < heads; h++) across.append(element("th", { scope: "col", text: h, "aria-label": `Head ${h}` }));
  if (extra) across.append(element("th", { scope: "col", class: "apart", text: extra.name }));
  const body = element("tbody");
  const cells = [];
  for (let l = 0; l < layers; l++) {
    const row = element("tr", { role: "row" }, element("th", { scope: "row", text: l, "aria-label": `Layer ${l}` }));
    for (let h = 0; h < heads; h++) {
      const td = element("td", { role: "gridcell", tabindex: "-1", "data-layer": l, "data-head": h });
      cells.push(td);
      row.append(td);
    }
    if (extra) row.append(element("td", { class: "extra", "data-layer": l }));
    body.append(row);
  }
  const table = element("table", { class: "grid", role: "grid", style: `--cell:${options.cell}rem` });
  table.append(caption, element("thead", {}, across), body);
  const at = (l, h) => cells[l * heads + h];

  const step = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  table.addEventListener("keydown", (event) => {
    const move = step[event.key];
    const from = event.target.closest("td[data-head]");
    if (!move || !from) return;
    event.preventDefault();
    const l = clamp(Number(from.dataset.layer) + move[0], layers);
    const h = clamp(Number(from.dataset.head) + move[1], heads);
    choose({ layer: l, head: h });
    at(l, h).focus();
  });
  table.addEventListener("click", (event) => {
    const td = event.target.closest("td[data-head]");
    if (td && !td.classList.contains("blank")) choose({ layer: Number(td.dataset.layer), head: Number(td.dataset.head) });
  });
  explain(table, "td", (td) =>
    td.dataset.head === undefined
      ? extra.describe(Number(td.dataset.layer))
      : options.describe(Number(td.dataset.layer), Number(td.dataset.head)),
  );

  function mark() {
    for (const td of cells) {
      const chosen = Number(td.dataset.layer) === state.layer && Number(td.dataset.head) === state.head;
      if (chosen || td.tabIndex === 0) td.setAttribute("aria-selected", String(chosen));
      td.tabIndex = chosen ? 0 : -1;
    }
  }
  function repaint() {
    for (const td of cells) {
      const [l, h] = [Number(td.dataset.layer), Number(td.dataset.head)];
      options.draw(td, l, h);
      td.setAttribute("aria-label", options.describe(l, h));
    }
    if (extra) table.querySelectorAll("td.extra").forEach((td) => extra.draw(td, Number(td.dataset.layer)));
    mark();
  }
  return { table, repaint, mark };
}

// A signed number in a cell, written out if it is large enough to matter.
function drawNumber(td, value, most, text) {
  paint(td, ofSigned(value, most));
  td.replaceChildren(element("span", { text: Math.abs(value) >= 0.15 * most ? text(value) : "" }));
}

// A table of layers and tokens. options: title, note, text (its name), tokens, rows, narrow, draw(td, row, token),
// describe(row, token)
function tokenTable(options) {
  const table = element("table", { class: options.narrow ? "lens narrow" : "lens" });
  const across = element("tr", {}, element("td"));
  options.tokens.forEach((token, t) =>
    across.append(element("th", { scope: "col", "data-token": t }, element("span", { text: token }))),
  );
  const body = element("tbody");
  options.rows.forEach((name, r) => {
    const row = element("tr", {}, element("th", { scope: "row", text: name }));
    options.tokens.forEach((_, t) => row.append(element("td", { "data-row": r, "data-token": t })));
    body.append(row);
  });
  table.append(element("thead", {}, across), body);
  table.addEventListener("click", (event) => {
    const td = event.target.closest("[data-token]");
    if (td) choose({ token: { ...state.token, [options.text]: Number(td.dataset.token) } });
  });
  explain(table, "td[data-row]", (td) => options.describe(Number(td.dataset.row), Number(td.dataset.token)));
  const scroller = element("div", { class: "wide", role: "region", tabindex: "0", "aria-label": options.title }, table);
  const host = element("div", {}, element("h3", { text: options.title }), scroller);
  if (options.note) scroller.before(element("p", { class: "caption", text: options.note }));
  if (options.tokens.length > (options.narrow ? 18 : 8)) host.classList.add("too-wide");

  function mark() {
    table.querySelectorAll(".chosen").forEach((cell) => cell.classList.remove("chosen"));
    const chosen = table.querySelectorAll(`[data-token="${tokenOf(options.text)}"]`);
    chosen.forEach((cell) => cell.classList.add("chosen"));
    const first = chosen[0];
    if (first) scroller.scrollLeft = first.offsetLeft - scroller.clientWidth / 2;
  }
  function repaint() {
    table.querySelectorAll("td[data-row]").forEach((td) => options.draw(td, Number(td.dataset.row), Number(td.dataset.token)));
    mark();
  }
  return { host, repaint, mark };
}

// A list of {name, value, layer, head} with bars; clicking a head's name selects it.
function ranking(list, most, { short = false, text = signed } = {}) {
  const host = element("ol", { class: short ? "ranking short" : "ranking" });
  for (const { name, value, layer, head } of list) {
    const label =
      head === undefined
        ? element("span", { class: "part", text: name })
        : element("button", { type: "button", text: name, "data-layer": layer, "data-head": head });
    const bar = element("i");
    const share = (50 * Math.abs(value)) / (most || 1);
    bar.style.cssText = `left:${value < 0 ? 50 - share : 50}%;width:${share}%`;
    bar.style.backgroundColor = `rgb(${ofSigned(value < 0 ? -0.7 : 0.7, 1).join(" ")})`;
    const parts = short ? [label, element("span", { text: text(value) })] : [
      label,
      element("span", { class: "measure", "aria-hidden": "true" }, bar),
      element("span", { text: text(value) }),
    ];
    host.append(element("li", {}, ...parts));
  }
  host.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose({ layer: Number(button.dataset.layer), head: Number(button.dataset.head) });
  });
  return host;
}
