// Thumbnails of all heads, and the selected head over the text.
const attention = (() => {
  const THUMB = 64; // most dots across a small head
  const strips = document.getElementById("strips");
  const canvas = document.getElementById("matrix");
  let preview = null; // the token that is hovered over
  let grid = null;
  let drawn = -1; // the attention that the grid and the strips show

  // A head's weights as a picture at most `most` dots wide, each dot the largest weight that it covers.
  function picture(target, layer, head, most) {
    const [, , n, m] = sizes();
    const [height, width] = [Math.min(n, most), Math.min(m, most)];
    const array = arrays[`A${state.block}`];
    const first = (layer * sizes()[1] + head) * n * m;
    const dots = new Uint8Array(width * height);
    for (let x = 0; x < n; x++) {
      const row = Math.floor((x * height) / n) * width;
      for (let z = 0; z < m; z++) {
        const dot = row + Math.floor((z * width) / m);
        const w = array.numbers[first + x * m + z];
        if (w > dots[dot]) dots[dot] = w;
      }
    }
    target.width = width;
    target.height = height;
    const context = target.getContext("2d");
    const image = context.createImageData(width, height);
    const table = Array.from({ length: 256 }, (_, w) => ofWeight(w * array.step));
    dots.forEach((w, i) => image.data.set([...table[w], 255], 4 * i));
    context.putImageData(image, 0, 0);
  }

  function makeGrid() {
    const [layers, heads, n, m] = sizes();
    const cell = Math.max(1.15, Math.min(4.2, 26 / heads));
    grid = headGrid({
      title: `${block().title}: ${layers} layers of ${heads} heads`,
      layers,
      heads,
      cell: window.innerWidth < 640 ? Math.max(1.15, Math.min(2.9, (window.innerWidth / 16 - 5.6) / heads)) : cell,
      describe: (l, h) => describeHead(l, h),
      draw: (td, l, h) => {
        const small = td.firstChild ?? td.appendChild(element("canvas"));
        picture(small, l, h, THUMB);
      },
    });
    document.getElementById("heads").replaceChildren(grid.table);
    canvas.parentElement.parentElement.style.setProperty("--ratio", n / m);
  }

  function describeHead(l, h) {
    if (!data.circuits?.scores || state.block) return `Layer ${l}, head ${h}`;
    const best = data.circuits.scores
      .map((name) => [at(`scores.${name}`, l, h), name])
      .filter(([score]) => score >= 0.4)
      .sort((a, b) => b[0] - a[0]);
    const said = best.map(([score, name]) => `${name} ${score.toFixed(2)}`).join(", ");
    return `Layer ${l}, head ${h}${said ? `: ${said}` : ""}`;
  }

  function makeStrips() {
    const { of, to } = block();
    const both = of === to ? [of] : [of, to];
    strips.replaceChildren(
      ...both.map((text) => {
        const strip = element("div", { class: "strip", role: "group", "data-text": text, "aria-label": `Tokens of the ${text}` });
        if (both.length > 1) strip.append(element("h4", { text: text === of ? `The ${text}, which attends` : `The ${text}` }));
        data.texts[text].forEach((token, i) => {
          strip.append(element("button", { type: "button", class: "token", "data-i": i, tabindex: "-1", dir: "auto", text: token }));
          strip.append(token.includes("⏎") ? element("br") : "\u200b");
        });
        return strip;
      }),
    );
  }

  const attending = () => (preview !== null ? preview : tokenOf(state.by ? block().to : block().of));
  const chosenText = () => (state.by ? block().to : block().of);
  const otherText = () => (state.by ? block().of : block().to);
  const between = (a, b) => (state.by ? weight(state.layer, state.head, b, a) : weight(state.layer, state.head, a, b));

  function paintStrips() {
    const i = attending();
    for (const strip of strips.children) {
      const { text } = strip.dataset;
      for (const token of strip.querySelectorAll(".token")) {
        const j = Number(token.dataset.i);
        if (text === otherText()) paint(token, ofWeight(between(i, j)));
        else token.style.cssText = "";
        token.setAttribute("aria-current", String(text === chosenText() && j === i));
        token.tabIndex = text === chosenText() && j === tokenOf(text) ? 0 : -1;
      }
    }
    const tokens = data.texts[otherText()];
    const best = tokens.map((token, j) => [between(i, j), token, j]).sort((a, b) => b[0] - a[0]);
    const parts = best.slice(0, 5).filter(([w]) => w >= 0.004);
    const readout = document.getElementById("readout");
    readout.replaceChildren(element("b", { text: data.texts[chosenText()][i] }), ` (token ${i}) ${state.by ? "is attended to by" : "attends to"} `);
    parts.forEach(([w, token, j], k) => readout.append(k ? ", " : "", element("b", { text: token }), ` (${j}) ${w.toFixed(3)}`));
    if (!parts.length) readout.append("nothing");
    readout.append(".");
  }

  function paintMatrix() {
    const [, , n, m] = sizes();
    picture(canvas, state.layer, state.head, 4096);
    canvas.style.aspectRatio = `${m} / ${n}`;
    canvas.setAttribute("aria-label", `Weights of layer ${state.layer}, head ${state.head}: ${n} tokens attend to ${m}`);
    const mark = document.querySelector(".row-mark");
    const row = tokenOf(block().of);
    mark.style.cssText = `top:calc(${(100 * row) / n}% - 1px);height:calc(${100 / n}% + 2px)`;
    const few = n <= 40 && m <= 40;
    const labels = (tokens) => (few ? tokens.map((text) => element("span", { class: text.length > 1 ? "long" : "", text })) : []);
    document.querySelector(".across").replaceChildren(...labels(data.texts[block().to]));
    document.querySelector(".down").replaceChildren(...labels(data.texts[block().of]));
  }

  function repaint(changes) {
    if (drawn !== state.block) {
      drawn = state.block;
      makeGrid();
      makeStrips();
      grid.repaint();
    } else if (!changes || changes.theme) grid.repaint();
    else grid.mark();
    document.getElementById("head-name").textContent = describeHead(state.layer, state.head);
    legend(document.querySelector("#attention .legend"), { label: "Weights from 0 to 1, colors by their square root" });
    paintMatrix();
    paintStrips();
  }

  function look(i) {
    if (preview === i) return;
    preview = i;
    paintStrips();
  }

  function pick(i, focus = false) {
    preview = null;
    choose({ token: { ...state.token, [chosenText()]: i } });
    if (focus) strips.querySelector(`[data-text="${chosenText()}"] [data-i="${i}"]`).focus();
  }

  function listen() {
    const tokenAt = (event) => {
      const token = event.target.closest(".token");
      return token && token.parentElement.dataset.text === chosenText() ? Number(token.dataset.i) : null;
    };
    strips.addEventListener("pointerover", (event) => event.pointerType === "mouse" && tokenAt(event) !== null && look(tokenAt(event)));
    strips.addEventListener("pointerleave", () => look(null));
    strips.addEventListener("click", (event) => tokenAt(event) !== null && pick(tokenAt(event)));
    strips.addEventListener("focusin", (event) => {
      const i = tokenAt(event);
      if (i !== null && i !== tokenOf(chosenText())) pick(i);
    });
    strips.addEventListener("keydown", (event) => {
      const [layers, heads] = sizes();
      const n = data.texts[chosenText()].length;
      const i = tokenOf(chosenText());
      const to = { ArrowLeft: i - 1, ArrowRight: i + 1, Home: 0, End: n - 1 }[event.key];
      const other = {
        ArrowUp: { layer: clamp(state.layer - 1, layers) },
        ArrowDown: { layer: clamp(state.layer + 1, layers) },
        "[": { head: clamp(state.head - 1, heads) },
        "]": { head: clamp(state.head + 1, heads) },
      }[event.key];
      if (to === undefined && !other) return;
      event.preventDefault();
      if (other) choose(other);
      else pick(clamp(to, n), true);
    });
    explain(strips, ".token", (token) => {
      const [i, j] = [tokenOf(chosenText()), Number(token.dataset.i)]; // the selected token, not the hovered one
      if (i === j && token.parentElement.dataset.text === chosenText()) return ""; // described below the text
      const name = `${quoted(token.textContent)} (token ${j})`;
      if (token.parentElement.dataset.text !== otherText()) return name;
      const way = state.by ? "attends to" : "is attended to by";
      return `${name} ${way} ${quoted(data.texts[chosenText()][i])} (${i}): ${between(i, j).toFixed(3)}`;
    });
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      const [, , n, m] = sizes();
      return [clamp(Math.floor(((event.clientY - box.top) / box.height) * n), n), clamp(Math.floor(((event.clientX - box.left) / box.width) * m), m)];
    };
    explain(canvas.parentElement, "canvas", (_, event) => {
      const [x, z] = place(event);
      const names = [data.texts[block().of][x], data.texts[block().to][z]].map(quoted);
      return `${names[0]} (${x}) attends to ${names[1]} (${z}): ${weight(state.layer, state.head, x, z).toFixed(3)}`;
    });
    canvas.addEventListener("click", (event) => choose({ token: { ...state.token, [block().of]: place(event)[0] } }));
    document.querySelectorAll("[name=direction]").forEach((radio) =>
      radio.addEventListener("change", () => choose({ by: radio.value === "by" })),
    );
  }

  return { repaint, listen, pick };
})();
